"""Rows of measurement: one JSON object per case and variant, appended; views and comparisons of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from redfuser.errors import InputError

SCHEMA = 1
Row = dict[str, Any]


def key(case: str, variant: str, params: dict[str, Any], machine: dict[str, Any], artifact: str) -> str:
    """Same key, same measurement: what was run, on what, with which versions and which built kernels."""
    text = json.dumps([SCHEMA, case, variant, params, machine, artifact], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lines(path: Path) -> list[Row]:
    """What was written there so far."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def read(path: Path) -> list[Row]:
    """The rows of a file. A last line cut off by a crash is left out; any other damaged line raises InputError RF196."""
    if not path.exists():
        return []
    rows = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            if number == len(lines):
                break
            raise InputError("RF196", f"{path.name}: line {number} is not a measurement", why=str(e)) from e
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            raise InputError("RF196", f"{path.name}: line {number} is not a measurement of schema {SCHEMA}")
        rows.append(row)
    return rows


def append(path: Path, rows: Iterable[Row]) -> None:
    """Append rows, each whole; a cut-off last line is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a") as f:
        f.write(("\n" if cut else "") + "".join(json.dumps(r) + "\n" for r in rows))


def best_ms(row: Row) -> float | None:
    """The figure a table shows: the smaller of the event and the graph median."""
    times = [row[k]["p50"] for k in ("events", "graph") if row.get(k)]
    return min(times) if row["status"] == "ok" and times else None


def latest(rows: Sequence[Row]) -> list[Row]:
    """The last row of each case and variant on each device, in order of first appearance."""
    kept: dict[tuple[str, str, str], Row] = {}
    for r in rows:
        kept[r["case"], r["variant"], r["machine"]["device"]] = r
    return list(kept.values())


# -- views -------------------------------------------------------------------------------------------------------------

OURS = "redfuser"


def fold(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Case -> variant -> row; of variants ``name:configuration`` the fastest right one stands for the name."""
    cases: dict[str, dict[str, Row]] = {}
    for r in latest(rows):
        group = cases.setdefault(r["case"], {})
        name = r["variant"].split(":")[0]
        old = group.get(name)
        if old is None or (best_ms(r) or math.inf) < (best_ms(old) or math.inf):
            group[name] = r
    return cases


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: per case the floor, our time, its share of the roof and its error ratio, then each baseline's time
    and how much slower it is. All times in milliseconds, the smaller of events and graph."""
    cases = fold(rows)
    names = list(dict.fromkeys(v for group in cases.values() for v in group if v != OURS))
    columns = ["case", "floor", OURS, "% roof", "err x", *names]
    out = []
    for case, group in cases.items():
        mine = group.get(OURS)
        ours = best_ms(mine) if mine else None
        any_row = next(iter(group.values()))
        cells = [case, _ms(any_row["floor_ms"]), _cell(mine), _percent(mine), _ratio(mine)]
        for name in names:
            row = group.get(name)
            time = best_ms(row) if row else None
            cells.append(f"{_ms(time)} ({time / ours:.2f}x)" if time and ours else _cell(row))
        out.append(cells)
    return columns, out


def footnotes(rows: Sequence[Row]) -> list[str]:
    """What must be read with the table: speed-ups with their losses, missing and failed variants, flags."""
    cases = fold(rows)
    return [*speedups(cases), *launched(cases), *remarks(rows)]


def speedups(cases: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Over each baseline, the geometric mean of all cases, and where ours is slower."""
    notes = []
    names = dict.fromkeys(v for group in cases.values() for v in group if v != OURS)
    for name in names:
        ratios = {}
        for case, group in cases.items():
            ours, theirs = (best_ms(group[v]) if v in group else None for v in (OURS, name))
            if ours and theirs:
                ratios[case] = theirs / ours
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            lost = [c for c, x in ratios.items() if x < 1]
            losses = f", slower on {len(lost)}: {', '.join(lost)}" if lost else ", slower on none"
            notes.append(f"{mean:.2f}x over {name}, geometric mean of {len(ratios)}{losses}")
    return notes


def remarks(rows: Sequence[Row]) -> list[str]:
    """What is missing, failed or flagged."""
    alike: dict[tuple[str, str], list[str]] = {}
    for r in latest(rows):
        for remark in [*r.get("flags", ())] if r["status"] == "ok" else [f"{r['status']}: {r['why']}"]:
            alike.setdefault((r["variant"], remark), []).append(r["case"])
    return [f"{variant}: {remark}  ({', '.join(where)})" for (variant, remark), where in alike.items()]


def launched(cases: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Launches of one call by case and variant, and which of ours are torch's own."""
    notes = []
    for case, group in cases.items():
        counts = {v: r["launches"] for v, r in group.items() if r.get("launches")}
        if OURS in counts:
            mine = counts[OURS]
            rest = ", ".join(f"{n} {name}" for name, n in mine["rest"].items())
            others = ", ".join(f"{v} {c['count']}" for v, c in counts.items() if v != OURS)
            notes.append(f"{case}: launches {mine['count']}, of them {mine['made']} ours, {mine['library']} a library's"
                         + (f", {rest}" if rest else "") + (f"; {others}" if others else ""))
    return notes


def grid(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


def compare(old: Sequence[Row], new: Sequence[Row], tolerance: float = 0.03) -> list[tuple[str, str, float, float, str]]:
    """Case, variant, old and new milliseconds and a verdict. ``slower`` and ``faster`` are beyond ``tolerance`` and outside
    both rows' 20th to 80th percentiles; ``unclear`` is beyond the one but not the other."""
    before = {(r["case"], r["variant"]): r for r in latest(old)}
    out = []
    for r in latest(new):
        o = before.get((r["case"], r["variant"]))
        a, b = (best_ms(x) if x else None for x in (o, r))
        if o is None or a is None or b is None:
            continue
        verdict = "same"
        if abs(b / a - 1) > tolerance:
            (a20, a80), (b20, b80) = _interval(o), _interval(r)
            apart = b20 > a80 or b80 < a20
            verdict = ("slower" if b > a else "faster") if apart else "unclear"
        out.append((r["case"], r["variant"], a, b, verdict))
    return out


def _interval(row: Row) -> tuple[float, float]:
    times = min((row[k] for k in ("events", "graph") if row.get(k)), key=lambda t: t["p50"])
    return times["p20"], times["p80"]


def machine(r: Row) -> str:
    m = r["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in m["versions"].items())
    return ", ".join(filter(None, (m["device"], f"driver {m['driver']}" if m["driver"] else "", versions,
                                   f"commit {m['commit']}" if m["commit"] else "")))


def _ms(t: float | None) -> str:
    return "-" if t is None else f"{t:.4f}" if t < 10 else f"{t:.2f}"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return row["status"] if row["status"] != "ok" else _ms(best_ms(row)) + ("" if row["passed"] else " WRONG")


def _percent(row: Row | None) -> str:
    time = best_ms(row) if row else None
    return f"{100 * row['floor_ms'] / time:.0f}" if row and time and row["floor_ms"] else "-"


def _ratio(row: Row | None) -> str:
    return f"{row['error']['ratio']:.2f}" if row and row.get("error") else "-"
