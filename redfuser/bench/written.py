"""Measurements as Markdown, for docs/results: a table for each family with the bars that its cases hold or miss, geometric
means, and what must be read with them."""

from __future__ import annotations

from collections.abc import Sequence

from redfuser.bench import bars, rows
from redfuser.bench.rows import OURS, Row
from workloads.bars import BARS


def markdown(measured: Sequence[Row]) -> str:
    """The last row of each case and variant."""
    last = rows.latest(measured)
    families = list(dict.fromkeys(str(r["case"]).split("/")[0] for r in last))
    lines = []
    for family in families:
        part = [r for r in last if r["case"].startswith(f"{family}/")]
        lines += ([f"## {family}", ""] if len(families) > 1 else []) + _table(part)
    found = bars.verdicts(BARS, rows.fold(last))
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
    for v in bars.verdicts(BARS, cases):
        asked.setdefault(v.case, []).append(str(v))
    if asked:
        columns = [*columns, "bars"]
        cells = [[*row, "; ".join(asked.get(row[0], []))] for row in cells]
    means = [f"{v.case}: {v}" for v in bars.means(BARS, cases)]
    notes = [*means, *rows.speedups(cases)]
    return [rows.grid(columns, cells), "", *(f"* {n}" for n in notes), ""]
