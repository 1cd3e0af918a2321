"""From a graph of torch.compile to a function without effects, and how its effects are made of that function's results.

The graph runs once on tensors without elements, at the shapes of its inputs: which inputs it changes, which results are
views of inputs or of each other, and under which strides. Then a copy of it, whose changed inputs are clones and whose
results are the distinct new tensors and the changed inputs, goes through torch.export. What the graph did besides is the
:class:`Recipe`: views to take, results to write back. Values of tensors play no part: parameters are inputs here.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from redfuser.dynamo import foreign
from redfuser.dynamo.key import attribute
from redfuser.dynamo.recipe import GivenBack, Out, Recipe
from redfuser.frontend import quantized
from redfuser.frontend.fast_path import written_out
from redfuser.frontend.levels import undone
from redfuser.frontend.program import module_of
from redfuser.frontend.training import RANDOM, drawn
from redfuser.users import unlogged

MODES = ("_set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode", "_enter_autocast", "_exit_autocast")
"""Calls that mean nothing where nothing asks for gradients and no autocast is on."""


@dataclass(frozen=True, slots=True)
class Captured:
    """``program``: the function without effects, or None where there is nothing to compute."""

    program: Any
    recipe: Recipe


def capture(gm: fx.GraphModule, inputs: Sequence[Any]) -> Captured:
    """Raises GivenBack for a graph that is not ours: RF130 gradients, RF131 random numbers or training, RF132 shapes or
    branches that depend on data, RF133 inputs or results that we have no form for, RF134 what torch.export refuses."""
    with _neutral(), _told("cannot be captured"):
        return _capture(gm, inputs)


def _capture(gm: fx.GraphModule, inputs: Sequence[Any]) -> Captured:
    mode = FakeTensorMode(static_shapes=True)
    gm = written_out(gm)
    foreign.autocast(gm, inputs)
    foreign.derived(gm)
    foreign.numbers(gm)
    constants = _constants(gm)
    given = [*inputs, *(attribute(gm, name) for name in constants)]
    fakes = [_fake(mode, x) if isinstance(x, torch.Tensor) else x for x in given]
    before = [(tuple(f.shape), f.stride(), f.storage_offset(), f._version) if isinstance(f, torch.Tensor) else None
              for f in fakes]
    run = _Run(gm, dict(zip(constants, fakes[len(inputs):])))
    with mode:
        results = run.run(*fakes[:len(inputs)])
    leaves = list(results) if isinstance(results, (tuple, list)) else [results]
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    if any(x.requires_grad for x in tensors):
        raise GivenBack("RF130", "asks for gradients")
    changed = []
    for i, (fake, then) in enumerate(zip(fakes, before)):
        if then is None:
            continue
        if (tuple(fake.shape), fake.stride(), fake.storage_offset()) != then[:3]:
            raise GivenBack("RF133", "changes the shape or the memory of an input")
        if fake._version != then[3]:
            if foreign.overlapping(fake):  # what is written to one element is seen in others
                raise GivenBack("RF133", "writes into an input whose elements share memory")
            changed.append(i)
    _one_device(fakes, leaves, run.values)
    outputs, bases = _outputs(leaves, fakes, run.values)
    names = [n for n in gm.graph.nodes if n.op == "placeholder"]
    taken = tuple(i for i, x in enumerate(given) if isinstance(x, torch.Tensor))
    recipe = Recipe(
        inputs=taken, constants=constants, outputs=tuple(outputs),
        results=tuple((tuple(v.shape), tuple(v.stride())) for v in (run.values[b] for b in bases)),
        writes=tuple(changed))
    if not bases and not changed:
        return Captured(None, recipe)
    graph = _without_effects(gm, names, given, constants, bases, changed)
    return Captured(_export(graph, [_fake(mode, given[i]).detach() for i in taken]), recipe)


@contextlib.contextmanager
def _neutral() -> Iterator[None]:
    """Nothing of the compilation around us is seen by torch.export, tensors count their versions, and what a graph that fails
    in its middle leaves of a transform is gone."""
    from torch._guards import tracing

    wanted = torch.is_grad_enabled()  # inference_mode(False) turns it on
    with tracing(None), torch.inference_mode(False), torch.set_grad_enabled(wanted), undone():
        yield


@contextlib.contextmanager
def _told(otherwise: str) -> Iterator[None]:
    """What torch raises, as the reason why the graph is not ours."""
    try:
        yield
    except GivenBack:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode) as error:
        raise GivenBack("RF132", f"has shapes or branches that depend on data ({_line(error)})") from error
    except UnsupportedFakeTensorException as error:
        raise GivenBack("RF133", f"holds what has no form without elements ({_line(error)})") from error
    except Exception as error:
        raise GivenBack("RF134", f"{otherwise} ({type(error).__name__}: {_line(error)})") from error


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def _fake(mode: FakeTensorMode, x: torch.Tensor) -> torch.Tensor:
    with mode, torch.no_grad():
        fake = torch.empty_strided(tuple(x.shape), tuple(x.stride()), dtype=x.dtype, device=x.device)
    return fake.requires_grad_(x.requires_grad)


class _Run(fx.Interpreter):
    """Keeps every node's value. Errors are told as they are, without the graph's source."""

    def __init__(self, gm: fx.GraphModule, constants: dict[str, Any]) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.extra_traceback = False
        self.constants = constants
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr" and n.target in self.constants:
            found = self.constants[str(n.target)]
        else:
            found = super().run_node(n)
        if n.op != "output":
            self.values[n] = found
        return found


def _constants(gm: fx.GraphModule) -> tuple[str, ...]:
    """Tensors that the graph holds itself: inputs to us, read again at every call."""
    found = []
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = attribute(gm, node.target)
            if isinstance(value, torch.Tensor):
                found.append(str(node.target))
            elif not isinstance(value, fx.GraphModule) or any(
                    n.op == "get_attr" and isinstance(attribute(value, n.target), torch.Tensor) for n in value.graph.nodes):
                raise GivenBack("RF133", f"holds a {type(value).__name__} with tensors of its own")
        elif node.op == "call_module":
            raise GivenBack("RF133", "calls a module as a whole")
    return tuple(dict.fromkeys(found))


def _one_device(fakes: Sequence[Any], leaves: Sequence[Any], values: dict[fx.Node, Any]) -> None:
    """Nothing lies elsewhere than the inputs, but numbers that the host adds."""
    where = {f.device for f in fakes if isinstance(f, torch.Tensor)} or {torch.device("cpu")}
    results = {id(x) for x in leaves}
    for value in values.values():
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(x, torch.Tensor) and x.device not in where and (
                    x.dim() or x.device.type != "cpu" or id(x) in results):
                raise GivenBack("RF133", f"computes on {x.device} too")


def _storage(x: torch.Tensor) -> int:
    """What tells memory apart; 0 for the tensors that torch.func makes inside of a transform."""
    return 0 if torch._C._functorch.is_functorch_wrapped_tensor(x) else int(x.untyped_storage()._cdata)


def _outputs(leaves: Sequence[Any], fakes: Sequence[Any], values: dict[fx.Node, Any]) -> tuple[list[Out], list[fx.Node]]:
    """How each result is made, and the nodes whose values are computed for that."""
    owners = {_storage(f): i for i, f in enumerate(fakes) if isinstance(f, torch.Tensor)}
    together: dict[int, list[torch.Tensor]] = {}
    for x in leaves:
        if isinstance(x, torch.Tensor):
            together.setdefault(_storage(x), []).append(x)
    bases: dict[int, tuple[int, torch.Tensor]] = {}
    nodes: list[fx.Node] = []
    outputs = []
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            if x is not None and not isinstance(x, (bool, int, float)):
                raise GivenBack("RF133", f"returns a {type(x).__name__}")
            outputs.append(Out("value", value=x))
            continue
        if (i := owners.get(_storage(x))) is not None:
            if x.dtype != fakes[i].dtype or x.is_conj() or x.is_neg():
                raise GivenBack("RF133", "returns an input's memory as another type")
            outputs.append(Out("input", i) if x is fakes[i] else Out("view", i, tuple(x.shape), x.stride(),
                                                                     x.storage_offset()))
            continue
        if _storage(x) not in bases:
            node, base = _base(together[_storage(x)], values)
            bases[_storage(x)] = (len(nodes), base)
            nodes.append(node)
        k, base = bases[_storage(x)]
        outputs.append(Out("result", k) if x is base else Out("part", k, tuple(x.shape), x.stride(),
                                                              x.storage_offset() - base.storage_offset()))
    return outputs, nodes


def _base(members: Sequence[torch.Tensor], values: dict[fx.Node, Any]) -> tuple[fx.Node, torch.Tensor]:
    """A value of the graph that lies densely in memory and covers all of ``members``, of which each is a view."""
    def extent(x: torch.Tensor) -> tuple[int, int]:
        return x.storage_offset(), x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride())) + 1

    first, last = min(extent(x)[0] for x in members), max(extent(x)[1] for x in members)
    for node, value in values.items():
        if not isinstance(value, torch.Tensor) or _storage(value) != _storage(members[0]):
            continue
        if any(value.dtype != x.dtype or x.is_conj() or x.is_neg() for x in members):
            continue
        low, high = extent(value)
        if value.numel() == high - low and low <= first and last <= high and _dense(value):
            return node, value
        if len(members) == 1 and value is members[0] and value.numel() == 0:
            return node, value
    raise GivenBack("RF133", "returns views of memory that no value of the graph covers")


def _dense(x: torch.Tensor) -> bool:
    """Whether the elements lie one by one, in any order of the axes."""
    step = 1
    for n, stride in sorted(((n, s) for n, s in zip(x.shape, x.stride()) if n != 1), key=lambda p: p[1]):
        if stride != step:
            return False
        step *= n
    return True


def _without_effects(gm: fx.GraphModule, names: Sequence[fx.Node], given: Sequence[Any], constants: Sequence[str],
                     bases: Sequence[fx.Node], changed: Sequence[int]) -> fx.GraphModule:
    """The graph as a function of its tensors, in the order of the recipe's inputs, that returns the values of ``bases`` and
    then of the inputs ``changed``. Numbers among the inputs are written in."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    inputs: list[Any] = []
    for i, value in enumerate(given):
        inputs.append(graph.placeholder(f"x{i}") if isinstance(value, torch.Tensor) else value)
    for i in changed:
        inputs[i] = graph.call_method("clone", (inputs[i],))
    held = dict(zip(constants, inputs[len(names):]))
    position, written = {node: i for i, node in enumerate(names)}, quantized.replaced()

    def mapped(node: fx.Node) -> Any:
        return copies[node]

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            copies[node] = inputs[position[node]]
        elif node.op == "get_attr" and node.target in held:
            copies[node] = held[str(node.target)]
        elif node.op == "output" or (node.op == "call_function" and getattr(node.target, "__name__", "") in MODES):
            continue
        else:
            made = graph.create_node(node.op, written.get(node.target, node.target), fx.node.map_arg(node.args, mapped),
                                     fx.node.map_arg(node.kwargs, mapped))
            made.meta = {"stack_trace": node.meta.get("stack_trace"), "nn_module_stack": {"": (module_of(node), "")}}
            copies[node] = made
    graph.output((*(copies[b] for b in bases), *(inputs[i] for i in changed)))
    return fx.GraphModule(gm, graph)


def _export(graph: fx.GraphModule, fakes: Sequence[torch.Tensor]) -> Any:
    with torch.no_grad(), warnings.catch_warnings(), unlogged(), _told("cannot be exported"):
        warnings.simplefilter("ignore")  # torch's remarks on its own export are not for whoever calls torch.compile
        program = torch.export.export(graph, tuple(fakes), strict=False)
    foreign.libraries(program)
    if found := [*drawn(program), *_random(program)]:
        raise GivenBack("RF131", f"draws random numbers or trains: {', '.join(found[:3])}")
    return program


def _random(program: Any) -> list[str]:
    """Operators that draw, and normalisations that keep the batch's own statistics."""
    found = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = str(node.target)
        given = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | dict(node.kwargs)
        training = given.get("training") is True and "norm" in name and given.get("running_mean") is not None
        if training or (name not in RANDOM and torch.Tag.nondeterministic_seeded in node.target.tags):
            found.append(name)
    return list(dict.fromkeys(found))
