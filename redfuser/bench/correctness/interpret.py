"""The same programs without a GPU: tile programs run in the interpreter, around them the outer graph as torch code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from redfuser.bench.correctness.build import asked, compiled
from redfuser.bench.correctness.examine import examine
from redfuser.errors import LoweringError, RedFuserError
from workloads.correctness import Program

_BITS = {torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
         torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
         torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2))}


def one(program: Program, target: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Judge one program's tile programs on its draws; ``code`` when nothing of it has a tile form."""
    try:
        ours = interpreted(program, target)
    except RedFuserError as e:
        return {"code": e.code, "why": e.render()[:400]}
    return {"code": ours[0], "why": ours[1]} if isinstance(ours, tuple) else examine(program, ours, "cpu", only)


def interpreted(program: Program, target: str) -> Callable[..., Any] | tuple[str, str]:
    """The whole program as a function, its kernels interpreted; (code, why) when no cascade of it is fused."""
    from redfuser import outer
    from redfuser.runtime.signature import of_imported
    from redfuser.target import target as lookup

    done = compiled(program, target, build=False)
    kept = [r for r in done.partition.parts if done.produced[r.name].reason is None]
    if not kept:
        reason = next((c.reason for c in done.report.refused if c.reason), None)
        return (reason.code, reason.why or reason.condition) if reason else ("none found", "no cascade was found")
    names = {r.name: done.produced[r.name].name for r in kept}
    graph = outer.emit(done.imported, kept, names)
    machine = lookup(target)
    tiles = {names[r.name]: _tiles(program, r.called, done.produced[r.name], machine) for r in kept}
    forward = graph.function({fn: _kernel(tiles[kernel]) for fn, kernel in graph.kernels.items()})
    signature = of_imported(done.imported, len(graph.outputs))

    def run(*args: torch.Tensor) -> Any:
        return signature.unbind(forward(*(t.contiguous() for t in signature.bind(args, {}))))

    return run


def _tiles(asking: Program, fused: Any, made: Any, machine: Any) -> Any:
    """The tile program that was planned: of the configuration whose text it is."""
    from redfuser.strategies import realise
    from redfuser.tensorize import configs, tensorize

    program = realise(fused, made.strategy, made.splits if made.strategy == "multi" else 1)
    for config in asked(asking, configs(program, machine)):
        with contextlib.suppress(LoweringError):
            tiles = tensorize(program, config, machine)
            if str(tiles) == made.stages["tiles"]:
                return tiles
    raise LoweringError("RF410", f"no configuration of {made.name} gives the tile program that was planned")


def _kernel(tiles: Any) -> Callable[..., Any]:
    from redfuser.tensorize.ir import interpret

    names = [a.name for a in tiles.args if a.role == "in"]
    outs = dict(tiles.outputs)
    order = [next(o for o, arg in outs.items() if arg == a.name) for a in tiles.args if a.role == "out"]

    def call(*tensors: torch.Tensor) -> Any:
        found = interpret.run(tiles, {n: _numpy(t) for n, t in zip(names, tensors, strict=True)})
        results = tuple(_tensor(found[o]) for o in order)
        return results if len(results) > 1 else results[0]

    return call


def _numpy(t: torch.Tensor) -> np.ndarray:
    bits, dtype = _BITS.get(t.dtype, (None, None))
    t = t.detach().contiguous()
    return t.numpy() if bits is None else t.view(bits).numpy().view(dtype)


def _tensor(a: np.ndarray) -> torch.Tensor:
    a = np.asarray(a, order="C")
    dtype = next((t for t, (_, numpy) in _BITS.items() if numpy == a.dtype), None)
    if dtype is None:
        return torch.from_numpy(a)
    return torch.from_numpy(a.view(np.int16 if dtype is torch.bfloat16 else np.uint8)).view(dtype)
