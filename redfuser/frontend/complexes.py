"""Complex numbers written out: a complex tensor is the pair of its real and its imaginary part, and each operator on it what
torch computes of these::

    view_as_complex(x)  -->  x[..., 0], x[..., 1]
    z * w               -->  re z re w - im z im w, re z im w + im z re w
    view_as_real(z)     -->  stack((re z, im z), -1)

Rotary embeddings are written so. A real operand has no imaginary part; weights are read as pairs where they lie; Fourier
transforms are operators of our own on such pairs (:mod:`redfuser.fourier`). A graph with an operator that has no rule here, or
with complex inputs or results, stays as it is, and so does one that writes into what a complex tensor shares with its parts,
until torch has made it functional.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_map

from redfuser import fourier  # noqa: F401 (defines the operators)
from redfuser.frontend.program import roots
from redfuser.frontend.static import mutates
from redfuser.users import quiet

aten, own = torch.ops.aten, torch.ops.redfuser
Pair = tuple[Any, Any]
"""Real and imaginary part: nodes or numbers; None for an imaginary part that is 0."""
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_ALIKE = frozenset(f"aten.{n}" for n in (
    "view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints", "unflatten.int", "permute.default",
    "transpose.int", "t.default", "mT.default", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
    "expand.default", "select.int", "slice.Tensor", "narrow.default", "clone.default", "contiguous.default", "alias.default",
    "detach.default",
    "lift_fresh_copy.default", "resolve_conj.default", "resolve_neg.default", "index.Tensor", "index_select.default",
    "flip.default", "roll.default", "repeat.default", "neg.default", "sum.default", "sum.dim_IntList", "mean.default",
    "mean.dim", "cumsum.default", "to.dtype", "to.dtype_layout", "_to_copy.default", "movedim.int"))
"""Operators that do to each part what they do to the whole; their first operand is the complex one."""
_PRODUCTS = {str(f): f for f in (aten.mul.Tensor, aten.matmul.default, aten.bmm.default, aten.mm.default)}


class _Foreign(Exception):
    """An operator that has no rule."""


def written_out(program: ExportedProgram) -> ExportedProgram:
    """``program`` without complex numbers; itself where it has none, or where they cannot be written out."""
    inputs = {s.arg.name: s for s in program.graph_signature.input_specs}
    found = [n for n in program.graph.nodes if _complex(n)]
    given = [n for n in found if n.op == "placeholder"]
    if not found or any(inputs[n.name].kind is InputKind.USER_INPUT for n in given) or _written(program.graph, found):
        return program
    with quiet():
        module = copy.deepcopy(program.graph_module)
    try:
        _Writer(module.graph).run()
    except _Foreign:
        return program
    module.recompile()
    state, constants = dict(program.state_dict), dict(program.constants)
    for target in {inputs[n.name].target for n in given}:
        source = state if target in state else constants
        real = torch.view_as_real(source[target].detach().resolve_conj())
        source[target] = torch.nn.Parameter(real, False) if isinstance(source[target], torch.nn.Parameter) else real
    with quiet():
        changed: ExportedProgram = program._update(module, program.graph_signature, state_dict=state, constants=constants)
    return changed


def _complex(node: Any) -> bool:
    val = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(val, torch.Tensor) and val.dtype in _REAL


def _written(graph: fx.Graph, complexes: Sequence[fx.Node]) -> bool:
    """Whether the memory of one of these is written into: through the tensor, a part, or a pair that it is a view of."""
    operands = [a for n in graph.nodes if mutates(n) for a in n.args[:1] if isinstance(a, fx.Node)]
    return bool(operands) and not set(roots(operands)).isdisjoint(roots(complexes))


class _Writer:
    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.pairs: dict[fx.Node, Pair] = {}
        self.made: set[fx.Node] = set()
        self.named: dict[fx.Node, str] = {}
        self.rules: dict[str, Callable[..., Pair]] = {
            "aten.view_as_complex.default": self.apart, "aten._fft_r2c.default": self.from_real,
            "aten._fft_c2c.default": self.fourier,
            "aten.complex.default": lambda re, im: (re, im), "aten.add.Tensor": self.sum, "aten.sub.Tensor": self.difference,
            "aten.div.Tensor": self.quotient, "aten.reciprocal.default": lambda w: self.quotient(1.0, w),
            "aten.exp.default": self.exp, "aten.polar.default": self.polar,
            "aten._conj.default": self.conj, "aten.conj_physical.default": self.conj,
            "aten.cat.default": self.joined(aten.cat.default), "aten.stack.default": self.joined(aten.stack.default)}
        self.real: dict[str, Callable[..., Any]] = {
            "aten.view_as_real.default": self.together, "aten._fft_c2r.default": self.to_real,
            "aten.real.default": lambda z: z[0], "aten.imag.default": self.imaginary,
            "aten.abs.default": lambda z: self(aten.hypot.default, z[0], self.imaginary(z)),
            "aten.angle.default": lambda z: self(aten.atan2.default, self.imaginary(z), z[0])}

    def run(self) -> None:
        gone: list[fx.Node] = []
        for node in list(self.graph.nodes):
            self.node = node
            touched = _complex(node) or any(map(_complex, node.all_input_nodes))
            if not touched:
                continue
            if node.op == "placeholder":
                node.meta["val"] = torch.view_as_real(node.meta["val"])
                with self.graph.inserting_after(node):
                    self.pairs[node] = self.apart(node)
                continue
            if node.op != "call_function":
                raise _Foreign
            gone.append(node)
            if node.target is aten._assert_tensor_metadata.default:  # of a tensor that is gone: `.to(x.device)` leaves these
                continue
            with self.graph.inserting_before(node):
                if _complex(node):
                    self.pairs[node] = self.fitted(self.complex(), tuple(node.meta["val"].shape))
                elif str(node.target) in self.real:
                    self.replace(self.real[str(node.target)](self.pair(node.args[0]), *node.args[1:]))
                else:
                    raise _Foreign
        for node in reversed(gone):
            self.graph.erase_node(node)
        for node, name in self.named.items():
            node.name = name

    def replace(self, result: fx.Node) -> None:
        """A real result. Results of the program are known by name, so it takes the name of the one that it stands for."""
        if result not in self.made or result in self.named:
            result = self(aten.alias.default, result)
        self.named[result] = self.node.name
        self.node.replace_all_uses_with(result)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node of real tensors, in the place and in the name of the one that is written out."""
        made = self.graph.call_function(target, args, kwargs)
        self.made.add(made)
        values = [n.meta["val"] for n in made.all_input_nodes]
        with values[0].fake_mode:
            made.meta["val"] = target(*fx.node.map_arg(args, lambda n: n.meta["val"]),
                                      **fx.node.map_arg(kwargs, lambda n: n.meta["val"]))
        made.meta |= {k: self.node.meta[k] for k in ("stack_trace", "nn_module_stack") if k in self.node.meta}
        return made

    # -- parts ---------------------------------------------------------------------------------------------------------

    def pair(self, x: Any) -> Pair:
        if isinstance(x, complex):
            return x.real, x.imag
        return self.pairs.get(x, (x, None))

    def apart(self, x: fx.Node) -> Pair:
        return self(aten.select.int, x, -1, 0), self(aten.select.int, x, -1, 1)

    def together(self, z: Pair) -> fx.Node:
        return self(aten.stack.default, [z[0], self.imaginary(z)], -1)

    def imaginary(self, z: Pair) -> Any:
        return self(aten.zeros_like.default, z[0]) if z[1] is None else z[1]

    def fitted(self, z: Pair, shape: tuple[int, ...]) -> Pair:
        """A part that was not broadcast beside the other one, at the whole's shape."""
        re, im = z
        if im is not None and not isinstance(im, fx.Node):
            im = self(aten.full_like.default, re, im)
        return tuple(x if x is None or tuple(x.meta["val"].shape) == shape  # type: ignore[return-value]
                     else self(aten.expand.default, x, shape) for x in (re, im))

    # -- operators -----------------------------------------------------------------------------------------------------

    def complex(self) -> Pair:
        target, args = str(self.node.target), self.node.args
        kwargs = {k: _REAL.get(v, v) for k, v in self.node.kwargs.items()}
        if target in self.rules and not kwargs:
            return self.rules[target](*args)
        if target in _PRODUCTS:
            return self.product(_PRODUCTS[target], *map(self.pair, args))
        if target in _ALIKE and not any(_complex(n) for n in self.node.all_input_nodes[1:]):
            rest = tree_map(lambda v: _REAL.get(v, v) if isinstance(v, torch.dtype) else v, args[1:])
            re, im = (x if x is None else self(self.node.target, x, *rest, **kwargs) for x in self.pair(args[0]))
            return re, im
        raise _Foreign

    def product(self, f: Any, z: Pair, w: Pair) -> Pair:
        (a, b), (c, d) = z, w
        if b is None:
            return self(f, a, c), None if d is None else self(f, a, d)
        if d is None:
            return self(f, a, c), self(f, b, c)
        return (self(aten.sub.Tensor, self(f, a, c), self(f, b, d)), self(aten.add.Tensor, self(f, a, d), self(f, b, c)))

    def sum(self, x: Any, y: Any) -> Pair:
        (a, b), (c, d) = self.pair(x), self.pair(y)
        return self(aten.add.Tensor, a, c), d if b is None else b if d is None else self(aten.add.Tensor, b, d)

    def difference(self, x: Any, y: Any) -> Pair:
        (a, b), (c, d) = self.pair(x), self.pair(y)
        im = b if d is None else self(aten.neg.default, d) if b is None else self(aten.sub.Tensor, b, d)
        return self(aten.sub.Tensor, a, c), im

    def quotient(self, x: Any, y: Any) -> Pair:
        z, (c, d) = self.pair(x), self.pair(y)
        if d is None:
            return self(aten.div.Tensor, z[0], c), None if z[1] is None else self(aten.div.Tensor, z[1], c)
        if not isinstance(c, fx.Node):
            raise _Foreign
        larger = self(aten.maximum.default, self(aten.abs.default, c), self(aten.abs.default, d))  # of squares none overflows
        u, v = self(aten.div.Tensor, c, larger), self(aten.div.Tensor, d, larger)
        size = self(aten.add.Tensor, self(aten.mul.Tensor, c, u), self(aten.mul.Tensor, d, v))
        re, im = self.product(aten.mul.Tensor, (u, self(aten.neg.default, v)), z)
        return self(aten.div.Tensor, re, size), self(aten.div.Tensor, im, size)

    def exp(self, x: Any) -> Pair:
        re, im = self.pair(x)
        return (self(aten.exp.default, re), None) if im is None else self.polar(self(aten.exp.default, re), im)

    def polar(self, size: Any, angle: Any) -> Pair:
        return (self(aten.mul.Tensor, size, self(aten.cos.default, angle)),
                self(aten.mul.Tensor, size, self(aten.sin.default, angle)))

    def conj(self, x: Any) -> Pair:
        re, im = self.pair(x)
        return re, im if im is None else self(aten.neg.default, im)

    def from_real(self, x: fx.Node, dim: Sequence[int], norm: int, onesided: bool) -> Pair:
        return self.apart(self(own.fft_r2c.default, x, self.counted(dim, x), norm, onesided))

    def fourier(self, x: Any, dim: Sequence[int], norm: int, forward: bool) -> Pair:
        return self.apart(self(own.fft_c2c.default, self.together(self.pair(x)), self.counted(dim, x), norm, forward))

    def to_real(self, z: Pair, dim: Sequence[int], norm: int, last: int) -> fx.Node:
        return self(own.fft_c2r.default, self.together(z), self.counted(dim, z[0]), norm, last)

    def counted(self, dim: Sequence[int], x: fx.Node) -> list[int]:
        """Dimensions counted from the first: behind them is one more."""
        return [d % x.meta["val"].dim() for d in dim]

    def joined(self, f: Any) -> Callable[..., Pair]:
        def join(parts: Sequence[Any], *dim: int) -> Pair:
            found = [self.pair(x) for x in parts]
            return self(f, [re for re, _ in found], *dim), self(f, [self.imaginary(z) for z in found], *dim)

        return join
