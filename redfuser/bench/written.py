"""Measurements as Markdown, for docs/results: a table for each family with the bars that its cases hold or miss, geometric
means, and what must be read with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from redfuser.bench import rows
from redfuser.bench.rows import OURS, Row, best_ms
from workloads.bars import BARS, BEST, PEAK, RATE, ROOF, Bar

Cases = Mapping[str, Mapping[str, Row]]
TORCH_COMPILE = "inductor"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was asked, what it is (None where something was not measured), and whether that is enough."""

    case: str
    asked: str
    least: float
    found: float | None

    @property
    def held(self) -> bool:
        return self.found is not None and self.found >= self.least

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.asked}: not measured"
        return f"{self.asked}: {self.found:.3g} {'held' if self.held else 'MISSED'}"


def verdicts(bars: Sequence[Bar], cases: Cases) -> list[Verdict]:
    """Of every bar and every measured case that it speaks of, in the order of the cases."""
    return [v for case, group in cases.items() for bar in bars if bar.each is not None and speaks(bar, case)
            for v in [_verdict(bar, bar.each, case, group)]]


def means(bars: Sequence[Bar], cases: Cases) -> list[Verdict]:
    """Geometric means, of the bars that ask for one, over the cases that were measured."""
    out = []
    for bar in bars:
        found = [x for case, group in cases.items() if speaks(bar, case) and (x := factor(bar.against, group)) is not None]
        if bar.mean is not None and found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            who = f"{', '.join(bar.cases)} ({len(found)} cases)"
            out.append(Verdict(who, f"geomean {_asked(bar.against, bar.mean)}", bar.mean, mean))
    return out


def speaks(bar: Bar, case: str) -> bool:
    return any(fnmatchcase(case, pattern) for pattern in bar.cases)


def factor(against: str, group: Mapping[str, Row]) -> float | None:
    """The figure that a bar compares, of the rows of one case by variant; None where it was not measured, or ours is not right.
    (A baseline outside the numerics rule is told in the remarks, and compared with.)"""
    ours = group.get(OURS)
    mine = best_ms(ours) if ours is not None and ours["passed"] else None
    if ours is None or mine is None:
        return None
    if against == RATE:
        return float(ours["flops"]) / mine / 1e9
    if against == ROOF:
        return ours["floor_ms"] / mine if ours["floor_ms"] else None
    if against == PEAK:
        theirs = group.get(TORCH_COMPILE) or {}
        return theirs["peak_bytes"] / ours["peak_bytes"] if theirs.get("peak_bytes") and ours.get("peak_bytes") else None
    others = [t for name, row in group.items() if name != OURS and against in (BEST, name) and (t := best_ms(row)) is not None]
    return min(others) / mine if others else None


def _verdict(bar: Bar, least: float, case: str, group: Mapping[str, Row]) -> Verdict:
    first = Verdict(case, _asked(bar.against, least), least, factor(bar.against, group))
    if bar.or_best and not first.held:
        second = Verdict(case, f"{first.asked} ({first.found or 0:.3g}) or {_asked(BEST, 1.0)}", 1.0, factor(BEST, group))
        return second if second.found is not None else first
    return first


def _asked(against: str, least: float) -> str:
    return f"{least:g} {RATE}" if against == RATE else f"{least:g} of the roof" if against == ROOF else f"{least:g}x {against}"


def markdown(measured: Sequence[Row]) -> str:
    """The last row of each case and variant."""
    last = rows.latest(measured)
    families = list(dict.fromkeys(str(r["case"]).split("/")[0] for r in last))
    lines = []
    for family in families:
        part = [r for r in last if r["case"].startswith(f"{family}/")]
        lines += ([f"## {family}", ""] if len(families) > 1 else []) + _table(part)
    found = verdicts(BARS, rows.fold(last))
    if found:
        held = sum(v.held for v in found)
        lines += [f"{held} of {len(found)} bars are held; missed: "
                  + ("; ".join(f"{v.case} {v}".removesuffix(" MISSED") for v in found if not v.held) or "none") + ".", ""]
    lines += [*(f"Measured on {m}." for m in dict.fromkeys(rows.machine(r) for r in last)), ""]
    return "\n".join([*lines, *(f"* {n}" for n in rows.remarks(last))])


def _launches(row: Row | None) -> str:
    """How many kernels one call of ours starts, and how many of them are not ours."""
    seen = row.get("launches") if row else None
    if not seen:
        return "-"
    others = seen["count"] - seen["made"]
    return f"{seen['count']}" + (f", {others} of them torch's" if others else "")


def _table(part: Sequence[Row]) -> list[str]:
    """The table of one family, without the columns of what none of its cases can be compared with; its means and speed-ups."""
    somewhere = {r["variant"].split(":")[0] for r in part if r["status"] != "missing"} | {OURS}
    part = [r for r in part if r["variant"].split(":")[0] in somewhere]
    cases = rows.fold(part)
    columns, cells = rows.table(part)
    columns = [*columns, "launches"]
    cells = [[*row, _launches(cases[row[0]].get(OURS))] for row in cells]
    asked: dict[str, list[str]] = {}
    for v in verdicts(BARS, cases):
        asked.setdefault(v.case, []).append(str(v))
    if asked:
        columns = [*columns, "bars"]
        cells = [[*row, "; ".join(asked.get(row[0], []))] for row in cells]
    notes = [*(f"{v.case}: {v}" for v in means(BARS, cases)), *rows.speedups(cases)]
    return [rows.grid(columns, cells), "", *(f"* {n}" for n in notes), ""]
