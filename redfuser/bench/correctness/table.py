"""The table of a run: JSON lines under a heading line with commit, machine and versions; and the same as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from redfuser.bench.correctness.run import FAILED, INTERPRETED, NOT_RUN, REFUSED, RIGHT, WRONG

VERDICTS = (RIGHT, INTERPRETED, WRONG, REFUSED, FAILED, NOT_RUN)
IN_PART = "of them in part"
COLUMNS = (RIGHT, IN_PART, *VERDICTS[1:])
JSONL, MARKDOWN = "correctness.jsonl", "README.md"


def heading(device: str, rows: list[dict[str, Any]], since: str = "") -> dict[str, Any]:
    """What the table is of: the code that built it (as the builds recorded it), the machine, the time; ``since`` when rows
    are of this run."""
    from redfuser.bench import provenance

    return {"table": "correctness", "schema": 1, **{k: _common(rows, k) for k in ("lowering", "commit", "target")},
            "machine": provenance.machine(device), "time": provenance.now(), "since": since}


def _common(rows: list[dict[str, Any]], key: str) -> str:
    """What all programs that were tried say, or all that they say."""
    return " ".join(sorted({r.get(key) or "unknown" for r in rows if r["verdict"] != NOT_RUN}))


def write(folder: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """``correctness.jsonl`` and ``README.md`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [head, *rows]
    (folder / JSONL).write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    (folder / MARKDOWN).write_text(markdown(head, rows))


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(heading, rows) of a written table."""
    head, *rows = (json.loads(line) for line in path.read_text().splitlines())
    return head, rows


def counts(rows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Verdicts per family, families in order; of those that are right, how many run fused in part only."""
    found: dict[str, Counter[str]] = {}
    for r in rows:
        found.setdefault(r["family"], Counter())[r["verdict"]] += 1
        found[r["family"]][IN_PART] += r["verdict"] == RIGHT and bool(r["partly"])
    return found


def summary(rows: list[dict[str, Any]]) -> str:
    total = Counter(r["verdict"] for r in rows)
    codes = Counter(r["code"] for r in rows if r["verdict"] in (REFUSED, FAILED))
    named = ", ".join(f"{code} {n}" for code, n in codes.most_common())
    part = sum(c[IN_PART] for c in counts(rows).values())
    beside = {RIGHT: f" ({part} fused in part)" if part else ""}
    text = ", ".join(f"{total[v]} {v}{beside.get(v, '')}" for v in VERDICTS if total[v])
    return f"{len(rows)} programs: {text}" + (f" ({named})" if named else "")


def markdown(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    machine = head["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in sorted(machine["versions"].items()) if v != "absent")
    checked, thought = (sum(r["draws"] for r in rows if (r["verdict"] == INTERPRETED) == here) for here in (False, True))
    lines = ["# Correctness", "", f"{summary(rows)}; {checked} runs on as many draws of inputs"
             f"{f', {thought} in the interpreter' if thought else ''}.", "",
             f"Commit {head['commit'] or '-'}, built for {head['target']}, run on {machine['device']}"
             f"{' (driver ' + machine['driver'] + ')' if machine['driver'] else ''}, {head['time']}. {versions}.",
             *_earlier(head, rows),
             f"Lowering {head['lowering']}. `redfuser bench correctness` (docs/cli.md) made this; judged against float64 from "
             "the same inputs and eager torch on that machine, class by class and by the numerics rule.", "",
             "| family | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    lines += [f"| {family} | " + " | ".join(str(c[v] or "") for v in COLUMNS) + " |" for family, c in counts(rows).items()]
    lines += _watched(rows)
    for title, verdict in (("Wrong", WRONG), ("Refused", REFUSED), ("Failed to build", FAILED), ("Not run", NOT_RUN)):
        chosen = [r for r in rows if r["verdict"] == verdict]
        if chosen:
            lines += ["", f"## {title}", "", "| program | code | why |", "|---|---|---|"]
            lines += [f"| {r['program']} | {r['code']} | {_cell(r['why'])} |" for r in chosen]
    partly = [r for r in rows if r["verdict"] in (RIGHT, WRONG) and r.get("partly")]
    if partly:
        lines += ["", "## Fused in part", "", "| program | kept, or not joined |", "|---|---|"]
        lines += [f"| {r['program']} | {_cell('; '.join(r['partly']))} |" for r in partly]
    excused: Counter[str] = Counter()
    for r in rows:
        excused.update(r.get("exceptions") or {})
    if excused:
        lines += ["", "Excused elements: " + ", ".join(f"{name} {n}" for name, n in sorted(excused.items())) +
                  " (redfuser/bench/correctness/judge.py says what they are)."]
    for verdict, title in ((INTERPRETED, "Right in the interpreter: the device ran other texts of them"), (RIGHT, "Right")):
        if chosen := [r for r in rows if r["verdict"] == verdict]:
            lines += ["", f"## {title}", "", "| program | strategy | draws | worst error, x eager's |", "|---|---|---|---|"]
            lines += [f"| {r['program']} | {' '.join(r['strategies'])} | {r['draws']} | {r['ratio']:.2f} |" for r in chosen]
    return "\n".join(lines) + "\n"


def _earlier(head: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """What is said of rows that stand since an earlier run."""
    since = head.get("since", "")
    new = {r.get("runtime") for r in rows if r.get("time", "") >= since}
    found = [r for r in rows if r.get("time") and r["time"] < since]
    other = sum(r.get("runtime") not in new for r in found)
    return [f"{len(found)} rows stand since an earlier run of the same bytes, {other} of them under an earlier runtime; each "
            "has its time."] if found else []


def _watched(rows: list[dict[str, Any]]) -> list[str]:
    """How often the programs gave the same bits, and what the sanitizer saw of those with roles."""
    steady = Counter(r["repeats"] for r in rows if r["verdict"] == RIGHT and r.get("repeats"))
    roles = [r for r in rows if set(r.get("schedules") or ()) - {"auto"}]
    seen = [r for r in roles if "sanitized" in r]
    lines = ["", *(f"{n} of the right ones gave the same bits {times} times." for times, n in steady.items())] if steady else []
    if seen:
        clean: Counter[str] = Counter()
        for r in seen:
            clean.update(tool for tool, what in r["sanitized"].items() if not what)
        tools = ", ".join(f"{tool} {clean[tool]}" for tool in seen[0]["sanitized"])
        lines += ["", f"Under compute-sanitizer, {len(seen)} of {len(roles)} programs with roles; nothing found in: {tools}."]
        lines += [f"* {r['program']}: {tool}: {_cell(what)}" for r in seen for tool, what in r["sanitized"].items() if what]
    return lines


def _cell(text: str) -> str:
    line = " ".join(text.split())
    return line[:240].replace("|", "\\|") + ("..." if len(line) > 240 else "")
