"""Correctness programs: small torch functions in the spellings people use, over all families. One file per
subject; ``redfuser bench correctness`` builds them on one machine and judges them on another."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from workloads.correctness.drawn import named
from workloads.correctness.program import In, Program, draw, draws

MODULES = ("attention", "grouped", "rows", "losses", "routing", "statistics", "products", "scheduled", "maps", "geometry",
           "elsewhere", "further", "abroad", "pointwise", "structure", "cached", "drawn", "reduced", "held", "merged", "pooled",
           "scans", "listed", "filled", "guarded", "walked", "shifted", "taken", "meeting", "equal", "onesided", "asked",
           "positions", "mixing", "decays", "packed", "trained", "measured", "scaled", "gradients", "optimisers", "clusters",
           "decoding", "signals", "energies", "integers", "shared", "rays", "points", "pictures", "detections",
           "segmentation", "features", "depths", "recommenders", "rankings", "series", "finance", "beliefs", "tables",
           "survival", "information", "speech", "codecs", "graphs", "voices", "neighbours", "control", "preferences", "science",
           "biology", "fresh", "short", "uneven", "planes", "once", "states", "behind", "factors", "lines",
           "alongside", "bounds", "moved", "wide", "special", "octets", "turned", "halves")


def all_programs() -> list[Program]:
    """Every program, in order, with names that are all different."""
    found = [p for m in MODULES for p in importlib.import_module(f"workloads.correctness.{m}").programs()]
    unique = {p.name: p for p in found}
    if len(unique) != len(found):
        raise ValueError(f"two programs of one name: {sorted({p.name for p in found if unique[p.name] is not p})}")
    return found


def find(names: Iterable[str]) -> dict[str, Program]:
    """The programs of these names: of the list, or drawn from a seed that the name says. Raises KeyError for others."""
    listed = {p.name: p for p in all_programs()}
    return {n: listed[n] if n in listed or (p := named(n)) is None else p for n in names}


__all__ = ["In", "Program", "all_programs", "draw", "draws", "find", "named"]
