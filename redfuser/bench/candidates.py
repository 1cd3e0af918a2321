"""Every configuration the resource model would consider for a case, built: measured beside each other they say how good the
model's first choice is. For cases of one kernel; the tuner's manual ancestor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from redfuser.artifact import KernelSpec
from redfuser.bench.baselines import candidate_path
from redfuser.errors import LoweringError
from workloads.case import Case

SPLIT_FACTORS = (0.5, 1, 2)
"""Split counts tried around the model's choice, where it chose the split form."""


def build(case: Case, target: str, folder: Path, limit: int) -> Iterator[tuple[str, Path | None, str]]:
    """Build up to ``limit`` configurations per split count into ``folder``; yields (label, path or None, why not)."""
    from redfuser import pipeline
    from redfuser.api import architecture
    from redfuser.runtime.model import CompiledModel

    arch = architecture(target)
    done = pipeline.run(case.build(), case.inputs("cpu", 0), arch=arch)
    if len(done.partition.regions) != 1 or len(done.produced) != 1:
        yield "candidates", None, f"only for cases of one kernel; this one has {len(done.produced)}"
        return
    (region, made), = done.produced.items()
    if made.reason is not None:
        yield "candidates", None, f"{made.reason.code} {made.reason.why or made.reason.condition}"
        return
    for label, spec, why in _specs(done.partition.regions[0].fused, made, arch, limit):
        if spec is None:
            yield label, None, why
            continue
        other = replace(done, produced={region: replace(made, spec=spec, config=label)})
        path = candidate_path(folder, case, label)
        CompiledModel.from_compilation(other).save(str(path))
        yield label, path, ""


def _specs(fused: Any, made: Any, arch: str, limit: int) -> Iterator[tuple[str, KernelSpec | None, str]]:
    from redfuser.codegen import tilelang
    from redfuser.codegen.build import Request, build_many
    from redfuser.codegen.pool import BuildFailure
    from redfuser.strategies import realise
    from redfuser.target import target
    from redfuser.tensorize import configs, spec_skeleton, tensorize

    machine = target(arch)
    splits = sorted({max(2, round(made.splits * f)) for f in SPLIT_FACTORS}) if made.strategy == "multi" else [1]
    labels, requests = [], []
    for parts in splits:
        program = realise(fused, made.strategy, parts)
        for config in configs(program, machine)[:limit]:
            label = re.sub(r"[^A-Za-z0-9]+", "-", f"{made.strategy} {parts} {config}").strip("-")
            try:
                tiles = tensorize(program, config, machine)
            except LoweringError as e:
                yield label, None, e.what
                continue
            labels.append(label)
            requests.append(Request(tilelang.print_program(tiles), spec_skeleton(tiles), made.name, arch,
                                    tilelang.build_config(tiles, config)))
    for label, built in zip(labels, build_many(requests), strict=True):
        if isinstance(built, BuildFailure):
            yield label, None, f"{built.code} {built.message}"
        else:
            yield label, built, ""
