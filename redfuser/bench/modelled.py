"""What the kernels of a workload would take on a part that is not here, as the model of resources has it: never a measurement,
and marked so wherever it is shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from redfuser.bench.roof import Roof
from redfuser.errors import RedFuserError
from redfuser.target import Target
from workloads.case import Case


@dataclass(frozen=True, slots=True)
class Modelled:
    """Milliseconds of the kernels of one case together, and how many they are; what torch runs beside them is not in it."""

    case: Case
    kernels: int
    ms: float
    floor_ms: float


def planned(case: Case, at: Target) -> list[float | None]:
    """Modelled seconds of each kernel of a case on ``at``, in order; None where the model does not know. The kernels are
    planned and not built, as for any part of that architecture. Raises RedFuserError where the case does not compile."""
    from redfuser import pipeline
    from redfuser.tensorize.ir.parse import parse
    from redfuser.tensorize.model import predicted

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = pipeline.run(case.build(), case.inputs("cpu", 0), arch=at.arch, casts=case.casts, build=False, verify="0",
                            name=str(case))
    texts = [done.produced[r.name].stages.get("tiles") for r in done.partition.regions]
    return [predicted(parse(text), at) if text else None for text in texts]


def modelled(cases: Sequence[Case], at: Target, tell: Callable[[str], None]) -> Iterator[Modelled]:
    """Of every case whose kernels the model knows, in order; of the others ``tell`` is told why not."""
    limit = Roof(at.bandwidth, at.rates, "data sheet")
    for case in cases:
        try:
            times = planned(case, at)
        except RedFuserError as e:
            tell(f"{case}: {e.code}")
            continue
        known = [t for t in times if t is not None]
        if len(known) < len(times) or not times:
            tell(f"{case}: " + ("no kernel" if not times else "the model does not know all of its kernels"))
            continue
        yield Modelled(case, len(known), 1e3 * sum(known), limit.floor_ms(case.flops, case.bytes, case.dtype))


__all__ = ["Modelled", "modelled", "planned"]
