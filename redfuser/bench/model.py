"""The model of resources against what was built and measured: what ptxas said of the kernels in a folder of artifacts or in a
file of such, and the times in a file of measurements."""

from __future__ import annotations

import gzip
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from redfuser.bench import rows as results
from redfuser.errors import InputError, RedFuserError
from redfuser.runtime import archive
from redfuser.runtime.parts import Parts
from redfuser.target import Target, target
from redfuser.tensorize.ir.nodes import Roles, TileKernel
from redfuser.tensorize.ir.parse import parse
from redfuser.tensorize.model import fits, predicted, registers, shared_bytes
from redfuser.tensorize.model.registers import kind
from redfuser.tensorize.model.steps import specialised

KINDS = {"row": "rows, whole", "walk": "rows, in steps", "scan": "rows so far", "map": "maps",
         "warp": "products of warps", "group": "reductions and products of warp groups",
         "product": "products of warp groups", "producer": "with a producer warp group"}


@dataclass(frozen=True, slots=True)
class Built:
    """One kernel as it was built, beside the model of it: bytes and registers, what was modelled first."""

    name: str
    kind: str
    shared: tuple[int, int]
    registers: tuple[int, int]
    spilled: int
    fits: bool

    @property
    def error(self) -> float:
        return self.registers[0] / self.registers[1] - 1


def built(where: Path, arch: str) -> Iterator[Built]:
    """The kernels of :func:`said`, beside the model of them."""
    at = target(arch)
    for row in said(where, arch):
        kernel = parse(f"tile program said\n{row['tiles']}").kernels[0]
        yield Built(row["name"], _kind(kernel, at), (shared_bytes(kernel, at), row["shared"]),
                    (registers(kernel, at), row["registers"]), row["spilled"], fits(kernel, at))


def said(where: Path, arch: str) -> Iterator[dict[str, Any]]:
    """What was said of kernels that were built, each once: their tile programs, bytes of shared memory, registers and bytes
    spilled. Of a file of such rows, or of every ``.rf`` and ``.rf.gz`` of a folder that says of which tile program its kernels
    are. Raises ArtifactError for one without kernels for ``arch``."""
    if where.is_file():
        yield from rows(where)
        return
    seen: set[str] = set()
    for path in sorted((*where.glob("*.rf"), *where.glob("*.rf.gz"))):
        parts = _read(path, arch)
        for name, spec in parts.kernels.items():
            text = parts.stages.get(name, {}).get("tiles", "")
            if spec.kind != "cuda" or not text:
                continue
            for kernel, launch, found in zip(parse(text).kernels, spec.launches, spec.resources, strict=True):
                if (tiles := str(kernel)) not in seen:
                    seen.add(tiles)
                    yield {"name": f"{path.name.split('.rf')[0]} {kernel.name}", "tiles": tiles,
                           "shared": launch.shared_bytes + found["static_shared_bytes"], "registers": found["registers"],
                           "spilled": found["spill_bytes"]}


def _text(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def rows(path: Path) -> list[dict[str, Any]]:
    """Raises InputError RF196."""
    try:
        return [json.loads(line) for line in _text(path).splitlines()]
    except (OSError, ValueError) as error:
        raise InputError("RF196", f"{path} is no file of such rows", why=str(error)) from error


def _read(path: Path, arch: str) -> Parts:
    if path.suffix != ".gz":
        return archive.read(path, arch=arch, device="cpu")
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "model.rf"
        whole.write_bytes(gzip.decompress(path.read_bytes()))
        return archive.read(whole, arch=arch, device="cpu")


def _kind(kernel: TileKernel, at: Target) -> str:
    copies = specialised(kernel, at) or isinstance(kernel.body[-1], Roles)
    return "producer" if copies else kind(kernel, at)


def table(found: Sequence[Built]) -> tuple[list[str], list[list[str]]]:
    """A line for every kind of kernel, and one for all."""
    head = ["kernels", "count", "shared exact", "fits", "registers within 10 %", "20 %", "median error", "95th", "worst"]
    lines = [_line(text, [b for b in found if b.kind == k]) for k, text in KINDS.items() if any(b.kind == k for b in found)]
    return head, [*lines, _line("all", found)]


def _line(text: str, some: Sequence[Built]) -> list[str]:
    errors = [abs(b.error) for b in some]
    high = quantiles(errors, n=20)[-1] if len(errors) > 1 else errors[0]
    return [text, str(len(some)), _share([b.shared[0] == b.shared[1] for b in some]), _share([b.fits for b in some]),
            _share([e <= 0.1 for e in errors]), _share([e <= 0.2 for e in errors]),
            f"{median(errors):.1%}", f"{high:.0%}", f"{max(some, key=lambda b: abs(b.error)).error:+.0%}"]


def _share(yes: Sequence[bool]) -> str:
    return f"{sum(yes)}/{len(yes)}"


def worst(found: Sequence[Built], count: int) -> list[list[str]]:
    """The kernels whose registers are missed by most."""
    order = sorted(found, key=lambda b: -abs(b.error))[:count]
    return [[b.name, KINDS[b.kind], str(b.registers[0]), str(b.registers[1]), f"{b.error:+.0%}"] for b in order]


def times(path: Path, at: Target, tell: Callable[[str], None]) -> list[tuple[str, float, float]]:
    """(case, predicted ms, measured ms) of every measured case that is one region: the kernels are planned, not built."""
    from redfuser import pipeline
    from workloads import all_cases

    cases = {str(c): c for c in all_cases()}
    found = []
    for row in results.latest(results.read(path)):
        case, took = cases.get(str(row["case"])), results.best_ms(row)
        if row["variant"] != "redfuser" or case is None or took is None:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                done = pipeline.run(case.build(), case.inputs("cpu", 0), arch=at.arch, build=False, verify="0", name=str(case))
        except RedFuserError as e:
            tell(f"{case}: {e.code}")
            continue
        made = [done.produced[r.name] for r in done.partition.regions]
        if len(made) == 1 and (text := made[0].stages.get("tiles")) and (time := predicted(parse(text), at)) is not None:
            found.append((str(case), 1e3 * time, took))
    return found


def candidates(path: Path, at: Target) -> list[list[str]]:
    """A line for each kernel of a file of candidates: rank correlation of predicted and measured times; of the pairs whose
    times differ by more than :data:`TOLD`, those that the model has in order; how much longer than the best the present choice
    takes and the model's first. A row of the file: name, tiles, ms and, where it is known, back_ms (back to back, without what
    a call alone waits for its host), chosen (its place in the present order; None where another strategy is chosen), rest
    (predicted ms of the call's other kernels)."""
    families: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows(path):
        time = predicted(parse(row["tiles"]), at)
        place = float("inf") if row["chosen"] is None else row["chosen"]
        whole = float("inf") if time is None else 1e3 * time + row["rest"]
        families.setdefault(row["name"], []).append((whole, row.get("back_ms") or row["ms"], place))
    found = []
    for name, family in families.items():
        best, first = min(m for _, m, _ in family), min(family)
        now = min(family, key=lambda f: f[2])
        pairs = [(p, q) for p, q in product(family, family) if q[1] > TOLD * p[1]]
        found.append([name, str(len(family)), f"{rank([(p, m) for p, m, _ in family]):+.2f}",
                      f"{sum(p[0] < q[0] for p, q in pairs)}/{len(pairs)}", f"{now[1] / best:.3f}",
                      f"{first[1] / best:.3f}", f"{first[0]:.4f}", f"{first[1]:.4f}", f"{best:.4f}"])
    return found


TOLD = 1.02
"""Measured times that differ by less are the same."""
CANDIDATES = ["kernel", "candidates", "rank correlation", "pairs in order", "first built / best", "model's first / best",
              "its model", "its time", "best"]


def rank(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's rank correlation; ties share their rank."""
    def places(values: Sequence[float]) -> list[float]:
        return [sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]

    first, second = places([p for p, _ in pairs]), places([q for _, q in pairs])
    mean = (len(pairs) - 1) / 2
    over = sum((p - mean) * (q - mean) for p, q in zip(first, second, strict=True))
    under = (sum((p - mean) ** 2 for p in first) * sum((q - mean) ** 2 for q in second)) ** 0.5
    return over / under if under else 0.0
