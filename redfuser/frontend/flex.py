"""FlexAttention written out: ``torch.nn.attention.flex_attention`` exports as one operator with two small graphs, which say per
element what a score becomes and whether it is seen. Both are pointwise, so they hold for whole tensors::

    flex_attention(q, k, v, score, mask, scale)   -->   s = (q.float() @ k.float().mT) * scale
                                                        s = where(mask(b, h, i, j), score(s, b, h, i, j), -inf)
                                                        _safe_softmax(s).to(q.dtype) @ v

which is what torch itself computes without ``torch.compile``. A graph that does something else than arithmetic on its element
and reading captured tensors stays as it is.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from redfuser.users import quiet

_MADE = ("aten.scalar_tensor.default", "aten.full.default", "aten.new_ones.default", "aten.new_full.default",
         "aten.ones.default", "aten.new_zeros.default")
_MOVED = ("aten._to_copy.default", "aten.to.dtype", "aten.clone.default", "aten.lift_fresh_copy.default", "aten.alias.default",
          "aten.detach.default")
_UNTAGGED = ("aten.__and__.Tensor", "aten.__and__.Scalar", "aten.__or__.Tensor", "aten.__or__.Scalar", "aten.__xor__.Tensor",
             "aten.__xor__.Scalar", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar",
             "aten.floor_divide.default", "aten.floor_divide.Scalar", "aten.true_divide.Tensor", "aten.divide.Tensor",
             "aten.multiply.Tensor", "aten.subtract.Tensor", "aten.clip.default", "aten.square.default")
"""Pointwise operators that torch does not mark as such, since they stand for others."""


class _Foreign(Exception):
    """What the pointwise reading of a graph does not cover."""


@dataclass(frozen=True)
class _Call:
    """The operator's arguments: query, key and value, the two graphs and what they capture."""

    operands: tuple[fx.Node, ...]
    score: fx.Node
    mask: fx.Node
    scale: float
    of_score: tuple[fx.Node, ...]
    of_mask: tuple[fx.Node, ...]

    @classmethod
    def of(cls, node: fx.Node) -> _Call:
        query, key, value, score, mask, scale, _, of_score, of_mask = node.args[:9]
        if not (isinstance(mask, (tuple, list)) and isinstance(of_score, (tuple, list)) and isinstance(of_mask, (tuple, list))):
            raise _Foreign
        nodes = [query, key, value, score, mask[-1], *of_score, *of_mask]
        found = tuple(n for n in nodes if isinstance(n, fx.Node))
        if len(found) != len(nodes) or not isinstance(scale, (int, float)):
            raise _Foreign
        captured = found[5:]
        return cls(found[:3], found[3], found[4], scale, captured[:len(of_score)], captured[len(of_score):])


def written_out(program: ExportedProgram) -> ExportedProgram:
    """``program`` with its FlexAttention operators as matrix products and a softmax; itself when it has none."""
    if not any(_flexible(n) for n in program.graph.nodes):
        return program
    with quiet():
        module = copy.deepcopy(program.graph_module)
    for node in [n for n in module.graph.nodes if _flexible(n)]:
        try:
            _replace(module, node)
        except _Foreign:
            continue
    for node in reversed(list(module.graph.nodes)):  # the subgraphs' own attributes
        if node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)
    module.recompile()
    with quiet():
        changed: ExportedProgram = program._update(module, program.graph_signature)
    return changed


def _flexible(node: fx.Node) -> bool:
    return node.op == "call_function" and str(node.target) == "flex_attention"


def _replace(module: fx.GraphModule, node: fx.Node) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    call = _Call.of(node)
    for user in [n for n in node.users if n.target is operator.getitem and not n.users]:
        module.graph.erase_node(user)
    taken = sorted({n.args[1] for n in node.users if isinstance(n.args[1], int)})
    if any(n.target is not operator.getitem for n in node.users) or not {*taken} <= {0, 1}:
        raise _Foreign
    graphs = [getattr(module, str(g.target)) for g in (call.score, call.mask)]
    operands = [*call.operands, *call.of_score, *call.of_mask]
    count = len(call.of_score)

    def dense(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> list[Tensor]:
        out = _dense(q, k, v, graphs[0], graphs[1], call.scale, captured[:count], captured[count:])
        return [out[index] for index in taken]

    values = [n.meta["val"] for n in operands]
    with values[0].fake_mode:
        traced = make_fx(dense, pre_dispatch=True)(*values)
    if any(n.op not in ("placeholder", "call_function", "output") for n in traced.graph.nodes):
        raise _Foreign
    traced.graph.eliminate_dead_code()
    env = dict(zip([n for n in traced.graph.nodes if n.op == "placeholder"], operands, strict=True))
    graph, results = module.graph, []
    with graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "output":
                results = [env[n] for n in inner.args[0]]
            elif inner.op == "call_function":
                env[inner] = graph.node_copy(inner, lambda n: env[n])
                for name in ("stack_trace", "nn_module_stack"):
                    if name in node.meta:
                        env[inner].meta[name] = node.meta[name]
    for user in list(node.users):
        result, name = results[taken.index(user.args[1])], user.name
        user.replace_all_uses_with(result)
        graph.erase_node(user)
        result.name = name  # free now; results of the program are known by name
    graph.erase_node(node)


def _dense(q: Tensor, k: Tensor, v: Tensor, score: fx.GraphModule, mask: fx.GraphModule, scale: float,
           of_score: Sequence[Tensor], of_mask: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(result, log2 of the sum of exponentials), as torch's own eager form has them."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if k.shape[0] != q.shape[0]:
        k, v = (t.expand(q.shape[0], *t.shape[1:]) for t in (k, v))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    s = (q.to(wide) @ k.to(wide).transpose(-2, -1)) * scale
    extents = tuple(s.shape)
    axes = [torch.arange(n, device=q.device).view([n if a == d else 1 for a in range(4)]) for d, n in enumerate(extents)]
    s_mod = _element(score, [s, *axes, *of_score], extents, 1)
    seen = None if _sees_all(mask) else _element(mask, [*axes, *of_mask], extents, 0)
    if s_mod.shape != s.shape:
        s_mod = s_mod.expand(s.shape)
    if seen is not None:
        s_mod = torch.where(seen, s_mod, -torch.inf)
    p = torch.ops.aten._safe_softmax.default(s_mod, -1)
    return p.to(q.dtype) @ v, torch.logsumexp(s_mod, -1) / math.log(2)


def _sees_all(mask: fx.GraphModule) -> bool:
    (out,) = (n.args[0] for n in mask.graph.nodes if n.op == "output")
    return isinstance(out, fx.Node) and str(out.target) in ("aten.new_ones.default", "aten.ones.default")


def _element(graph: fx.GraphModule, operands: Sequence[Tensor], extents: tuple[int, ...], first: int) -> Tensor:
    """The graph of one element, on tensors of rank 4; operands ``first`` to ``first + 3`` are the four positions."""
    env: dict[fx.Node, Any] = {}
    positions: dict[fx.Node, int] = {}
    given = iter(operands)
    for k, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
        env[node] = _ranked(next(given))
        if 0 <= k - first < 4:
            positions[node] = k - first
    for node in graph.graph.nodes:
        target = str(node.target)
        if node.op == "output":
            out = env[node.args[0]]
            if not isinstance(out, Tensor):
                raise _Foreign
            return out
        if node.op in ("placeholder", "get_attr"):
            if node.op == "get_attr" and isinstance(value := getattr(graph, target, None), Tensor):
                env[node] = _ranked(value)
            continue
        if target == "flat_apply" and str(node.args[2]).rstrip("'>").endswith(".ModIndex"):  # source[places]
            source, *places = node.args[3:]
            env[node] = _read(env[source], [(env[p], positions.get(p)) for p in places], extents)
        elif target == "aten.index.Tensor":
            env[node] = _read(env[node.args[0]], [(env[p], positions.get(p)) for p in node.args[1]], extents)
        elif isinstance(node.target, torch._ops.OpOverload) and (
                torch.Tag.pointwise in node.target.tags or target in (*_UNTAGGED, *_MADE, *_MOVED)):
            env[node] = _ranked(node.target(*fx.node.map_arg(node.args, env.__getitem__),
                                            **fx.node.map_arg(node.kwargs, env.__getitem__)))
        else:
            raise _Foreign
    raise _Foreign


def _ranked(t: Any) -> Any:
    """A number as a tensor of rank 4: by torch's rules it takes part in promotion as an element does."""
    return t.reshape(1, 1, 1, 1) if isinstance(t, Tensor) and t.dim() == 0 else t


def _read(source: Tensor, places: Sequence[tuple[Tensor, int | None]], extents: tuple[int, ...]) -> Tensor:
    """A captured tensor at computed places; a plain view of it where each dimension goes along with one position."""
    if source.dim() != len(places):
        raise _Foreign
    along = [p for _, p in places]
    if all(p is not None and source.shape[d] >= extents[p] for d, p in enumerate(along)) and len({*along}) == len(along):
        axes = [p for p in along if p is not None]
        for d, p in enumerate(axes):
            if source.shape[d] > extents[p]:
                source = source.narrow(d, 0, extents[p])
        order = sorted(range(len(axes)), key=lambda d: axes[d])
        source = source.permute(order) if order != list(range(len(axes))) else source
        return source.reshape([extents[p] if p in axes else 1 for p in range(4)])
    return torch.ops.aten.index.Tensor(source, [t for t, _ in places])
