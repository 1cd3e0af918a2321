"""From one graph of torch.compile to what is called for it: out of the store, compiled now, or given back."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from redfuser import settings, strict
from redfuser.autotune import lookup
from redfuser.autotune.device import part_for
from redfuser.cache import Cache
from redfuser.dynamo import otherwise
from redfuser.dynamo.key import key as key_of_graph
from redfuser.dynamo.key import key_of_program
from redfuser.dynamo.options import Chosen
from redfuser.dynamo.recipe import GivenBack, Recipe
from redfuser.dynamo.told import GraphReport, tell
from redfuser.errors import ArtifactError, RedFuserError

RAISED = ("RF104", "RF106", "RF459", "RF496", "RF503")
"""Codes that are about the options or the installation, and so about no graph: told as errors."""
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def compile_graph(gm: fx.GraphModule, inputs: list[Any], chosen: Chosen) -> Callable[..., Any]:
    """Each graph by itself and for one shape. A graph with symbolic sizes is compiled for each shape that it meets."""
    name = _name()
    symbolic = any(_symbolic(x) for x in (*inputs, *_placeholders(gm)))  # a size is no input where torch saw no need of it
    try:
        if not symbolic:
            return _compiled(gm, inputs, chosen, name)
        first = [_hint(x) for x in inputs]
        return Shapes(gm, _compiled(gm, first, chosen, name, _sizes(first)), first, chosen, name)
    except GivenBack as back:
        tell(GraphReport(name, "given back", code=back.code, note=f"{back.why}; it is compiled by {chosen.otherwise}"),
             chosen.fallback)
        return otherwise.compiled(gm, inputs, chosen, name)


class Shapes:
    """A graph with symbolic sizes: a program for each shape, up to as many as the options say, then the other backend."""

    def __init__(self, gm: fx.GraphModule, first: Callable[..., Any], inputs: Sequence[Any], chosen: Chosen,
                 name: str) -> None:
        self.gm, self.chosen, self.name = gm, chosen, name
        self.varying = _varying(gm)
        self.known: dict[Any, Callable[..., Any]] = {self._signature(inputs): first}
        self.rest: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        signature = self._signature(args)
        found = self.known.get(signature)
        if found is None:
            from torch._dynamo.convert_frame import compile_lock

            with compile_lock:  # torch traces in one thread at a time, and this is outside of its own compiling
                found = self.known.get(signature) or self._another(signature, args)
        return found(*args)

    def _signature(self, args: Sequence[Any]) -> Any:
        found = [args[i] for i in self.varying]
        return tuple([(x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in found])

    def _another(self, signature: Any, args: Sequence[Any]) -> Callable[..., Any]:
        back = GivenBack("RF139", f"is called with more than {self.chosen.shapes} shapes")
        if len(self.known) < self.chosen.shapes:
            try:
                self.known[signature] = _compiled(self.gm, args, self.chosen, self.name, _sizes(args))
                return self.known[signature]
            except GivenBack as other:
                back = other
        if self.rest is None:
            tell(GraphReport(self.name, "given back", _sizes(args), back.code,
                             f"{back.why}; other shapes are compiled by {self.chosen.otherwise}"), self.chosen.fallback)
            self.rest = otherwise.at_call(self.gm, self.chosen)
        return self.rest


def _compiled(gm: fx.GraphModule, inputs: Sequence[Any], chosen: Chosen, name: str, shapes: str = "") -> Callable[..., Any]:
    """Raises GivenBack."""
    from redfuser import turns
    from redfuser.api import apply_fallback

    started = time.perf_counter()
    arch = chosen.arch(_device(inputs))
    wanted = settings.load(tuning=chosen.tuning)
    part = part_for(arch)
    options = [chosen.casts, chosen.disable, chosen.verify, lookup.state(wanted, arch, part)]
    key = key_of_graph(gm, inputs, arch, options)
    store = Cache()
    found, came = _read(store, key) if key else None, "store"
    if found is None:
        from redfuser.dynamo.capture import capture

        with turns.taken():
            captured = capture(gm, inputs)
        if captured.program is None:
            tell(GraphReport(name, "views", shapes, seconds=time.perf_counter() - started))
            return gm.forward  # type: ignore[no-any-return]
        shared = key_of_program(captured.program, inputs, arch, options) if key else ""
        with store.lock(shared or key) if key else contextlib.nullcontext():  # processes of one job meet the same graphs
            found = _read(store, key) if key else None
            model = _stored(store, shared) if shared and found is None else None
            if found is None:
                artifact = b""
                if model is None:
                    came, artifact = "compiled", _artifact(captured.program, arch, part, chosen, name)
                    model = _loaded(artifact)
                if shared and artifact:
                    store.put(shared, artifact)
                if key:
                    store.put(key, _pack(captured.recipe, shared, b"" if shared else artifact))
                found = captured.recipe, model
    from redfuser.dynamo.program import Program

    recipe, model = found
    if any(not spec.finished for spec in model.kernels.values()):
        raise GivenBack("RF521", f"kernels for {arch} are HIP text that needs hipcc here")
    program = Program(model, recipe, gm, inputs, name, chosen.cuda_graphs and arch != "cpu", chosen.fallback)
    tell(GraphReport(name, came, shapes, report=model.report, key=key,  # type: ignore[arg-type]
                     seconds=time.perf_counter() - started))
    apply_fallback(model.report, chosen.fallback)
    return program


def _artifact(program: Any, arch: str, part: str, chosen: Chosen, name: str) -> bytes:
    from redfuser.dynamo.compiler import process

    try:
        return process().compile(program, arch, part, chosen, f"graph {name}")
    except RedFuserError as error:
        if error.code in RAISED or (chosen.verify == "strict" and error.code.startswith("RF9")):
            raise
        why = next(iter(error.why.splitlines()), "")
        raise GivenBack("RF135", f"does not compile: {error.code} {error.what}"
                        + (f" ({error.where})" if error.where else "") + (f": {why}" if why else "")) from error


# -- the store ---------------------------------------------------------------------------------------------------------


def _pack(recipe: Recipe, shared: str, artifact: bytes) -> bytes:
    """shared: the key that the artifact lies under, for other recipes too; empty where it follows."""
    return json.dumps({"recipe": recipe.to_json(), "artifact": shared}).encode("utf-8") + b"\n" + artifact


def _read(store: Cache, key: str) -> tuple[Recipe, Any] | None:
    """What the store has for a graph; damage is a miss, and so is an artifact that has gone."""
    payload = store.get(key)
    if payload is None:
        return None
    try:
        head, _, artifact = payload.partition(b"\n")
        data = json.loads(head)
        recipe, shared = Recipe.from_json(data["recipe"]), strict.text(data["artifact"])
        model = _loaded(artifact) if not shared else _stored(store, shared)
    except (ArtifactError, ValueError, TypeError, KeyError):
        store.drop(key)
        return None
    return (recipe, model) if model is not None else None


def _stored(store: Cache, shared: str) -> Any:
    """The model under the key of a program, or None."""
    artifact = store.get(shared)
    try:
        return _loaded(artifact) if artifact is not None else None
    except ArtifactError:
        store.drop(shared)
        return None


def _loaded(artifact: bytes) -> Any:
    from redfuser.runtime.model import CompiledModel

    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        path = Path(folder, "graph.rf")
        path.write_bytes(artifact)
        return CompiledModel.load(path)


# -- inputs ------------------------------------------------------------------------------------------------------------


def _device(inputs: Sequence[Any]) -> str:
    """The one kind of device that the tensors are on. Raises GivenBack RF133."""
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    for x in inputs:
        if isinstance(x, torch.Tensor):
            odd = type(x) not in PLAIN or x.layout is not torch.strided or x.is_conj() or x.is_neg() or x.is_quantized \
                or x.dtype.is_complex
            if odd:
                how = "a negated view (a conjugate's imag)" if x.is_neg() else f"a {type(x).__name__} of {x.dtype}, {x.layout}"
                raise GivenBack("RF133", f"has an input that is {how}")
        elif x is not None and not isinstance(x, (bool, int, float)):
            raise GivenBack("RF133", f"has an input that is a {type(x).__name__}")
    if len(devices) > 1 or not devices <= {d for d in devices if d.type in ("cpu", "cuda")}:
        raise GivenBack("RF133", f"has inputs on {', '.join(sorted(map(str, devices)))}")
    return next(iter(devices)).type if devices else "cpu"


def _symbolic(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return not all(isinstance(n, int) for n in (*x.shape, *x.stride()))
    return isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _hint(x: Any) -> Any:
    """A symbol as the value that it has in the call that is compiled. Raises GivenBack RF133."""
    if isinstance(x, torch.Tensor) and _symbolic(x):
        raise GivenBack("RF133", "has an input of symbolic shape without an example")
    if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = x.node.hint
        if hint is None:
            raise GivenBack("RF132", "has a size that depends on data")
        return hint
    return x


def _varying(gm: fx.GraphModule) -> list[int]:
    """Which inputs are of more than one shape, or numbers."""
    return [i for i, x in enumerate(_placeholders(gm)) if not isinstance(x, torch.Tensor) or _symbolic(x)]


def _placeholders(gm: fx.GraphModule) -> list[Any]:
    """The inputs as torch traced the graph with them."""
    return [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]


def _sizes(inputs: Sequence[Any]) -> str:
    return f"[{', '.join(str(x) for x in inputs if isinstance(x, int))}]"


def _name() -> str:
    """torch's own name of the graph that is being compiled."""
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id() or "-")
