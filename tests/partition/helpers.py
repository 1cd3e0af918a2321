"""Run a partitioned model with the interpreter of cascades in place of kernels: any error of the lifting shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from redfuser import outer
from redfuser.acrf.affine import Indices
from redfuser.acrf.cascade import Cascade, Let, Reduce
from redfuser.frontend import import_model
from redfuser.partition import Partition, partition
from redfuser.partition.bounded import bounded
from redfuser.runtime.trial import function
from tests.evaluated import run

TORCH = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
         "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "e4m3": torch.float8_e4m3fn,
         "e5m2": torch.float8_e5m2}


def text(p: Partition) -> str:
    """What a partition found, as a golden file."""
    lines = []
    for r in p.parts:
        lines += [str(r.cascade).replace(f"cascade {r.cascade.name}(", f"{r.name}(", 1),
                  "  in  " + ", ".join(f"{k} = {v}" for k, v in r.inputs.items()),
                  "  out " + ", ".join(f"{k} = {v}" for k, v in r.outputs.items()), ""]
    lines += [f"refused {r.name}: {r.reason.code} {r.reason.statement}: {r.reason.condition}" for r in p.refusals]
    if p.kept:
        lines.append("kept " + ", ".join(f"{op.removeprefix('relax.')} x{n}" for op, n in sorted(p.kept.items())))
    return "\n".join(lines)


def outside(cascade: Cascade) -> list[str]:
    """Statements that may read beside a tensor."""
    shapes = {t.name: tuple(map(int, t.shape)) for t in cascade.inputs}
    ix = Indices({a.name: int(a.extent) for a in cascade.axes})
    return [str(s) for s in cascade.stmts if bounded(s.expr, ix, shapes.__getitem__) != s.expr]


def dtype_of(cascade: Cascade, name: str) -> str:
    s = cascade.stmt(name)
    if isinstance(s, Let):
        return s.expr.dtype
    assert isinstance(s, Reduce)
    return "i64" if s.reducer.kind in ("argmax", "argmin") or name != s.names[0] else s.dtype


def interpreted(cascade: Cascade) -> Any:
    """The cascade as a function of tensors, evaluated statement by statement in float64."""

    def kernel(*tensors: torch.Tensor) -> Any:
        arrays = {t.name: (x.double() if x.is_floating_point() else x).numpy()
                  for t, x in zip(cascade.inputs, tensors, strict=True)}
        got = run(cascade, arrays)
        out = tuple(torch.from_numpy(np.asarray(got[o], order="C")).to(TORCH[dtype_of(cascade, o)]) for o in cascade.outputs)
        return out[0] if len(out) == 1 else out

    return kernel


def source(imported: Any, p: Partition) -> str:
    """The outer program's text, which calls kernels by their regions' names."""
    return str(outer.emit(imported, p.parts, {r.name: r.name.replace(".", "_") for r in p.parts}).source)


def execute(imported: Any, p: Partition, args: Any, change: Any = None) -> tuple[torch.Tensor, ...]:
    """The model with every region interpreted; ``change`` may alter the cascades (to see that the check can fail). The torch
    code that stands for a region, which its kernel is held against on a GPU, must say the same of the same inputs."""
    names = {r.name: f"k{i}" for i, r in enumerate(p.parts)}
    graph = outer.emit(imported, p.parts, names)
    kernels = {names[r.name]: interpreted(change(r.cascade)) if change else _held(imported, r) for r in p.parts}
    with torch.no_grad():
        return graph.function(kernels)(*args)


def _held(imported: Any, region: Any) -> Any:
    kernel, reference = interpreted(region.cascade), outer.emit_region(imported, region)
    if reference is None:
        return kernel

    def run(*tensors: torch.Tensor) -> Any:
        got = kernel(*tensors)
        for mine, theirs in zip(got if isinstance(got, tuple) else (got,), function(reference)("cpu", *tensors), strict=True):
            if mine.is_floating_point() and mine.dtype.itemsize > 1:
                torch.testing.assert_close(mine.reshape(theirs.shape).double(), theirs.double(), rtol=0.03, atol=0.03, equal_nan=True)
        return got

    return run


def partitioned(model: Any, args: Any, casts: str = "preserve") -> tuple[Any, Partition]:
    imported = import_model(model, args)
    return imported, partition(imported, casts)


def flat(out: Any) -> list[torch.Tensor]:
    return [out] if isinstance(out, torch.Tensor) else [t for o in out for t in flat(o)]
