"""All problems of a folder, each in a process of its own with a limit, and the table of them."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from multiprocessing.connection import Connection
from pathlib import Path

from redfuser.bench import provenance
from redfuser.bench.rows import Row, grid, lines
from redfuser.errors import InputError

LOADED = ["redfuser.bench.suite.problem", "redfuser.pipeline", "redfuser.runtime.model", "redfuser.frontend.torch_export"]
"""Imported once; every problem's process is a copy of one that has them."""


def problems(folder: Path, only: str) -> list[Path]:
    """Files of the folder and of its folders that define a ``Model``, by folder and number. only: patterns of
    ``level1/23_*``, comma-separated. Raises InputError RF196 where there are none."""
    patterns = [p.strip() for p in only.split(",") if p.strip()] or ["*"]
    found = [p for p in sorted(folder.rglob("*.py"), key=_order)
             if any(fnmatch(f"{p.parent.name}/{p.stem}", f"{pattern}") for pattern in patterns)
             and re.search(r"^class Model\b", p.read_text(encoding="utf-8"), re.MULTILINE)]
    if not found:
        raise InputError("RF196", f"no problem in {folder}", why="no file there defines a class Model" + (
            f" and is of {only}" if only else ""), help="the folder of KernelBench, or one of its levels")
    return found


def _order(path: Path) -> tuple[str, int, str]:
    number = re.match(r"\d+", path.stem)
    return path.parent.name, int(number[0]) if number else 0, path.stem


def run(paths: Sequence[Path], target: str, planned: str, jobs: int, limit_s: float, output: Path | None,
        tell: Callable[[str], None]) -> list[Row]:
    """A row for each problem, in their order; those that stand in ``output`` are kept, new ones appended to it."""
    rows = {(r["level"], r["problem"]): r for r in lines(output)} if output else {}
    waiting = [p for p in paths if (p.parent.name, p.stem) not in rows]
    here = {"commit": provenance.commit(), "suite": commit(paths[0].parent) if paths else ""}
    with ThreadPoolExecutor(jobs) as pool:
        asked = {pool.submit(alone, p, target, planned, limit_s): p for p in waiting}
        for n, done in enumerate(as_completed(asked), 1):
            path = asked[done]
            row = {"problem": path.stem, "level": path.parent.name, "target": target, **done.result(), **here}
            rows[row["level"], row["problem"]] = row
            tell(f"[{n}/{len(waiting)}] {row['level']}/{row['problem']}: {row['status']} {row.get('code', '')} "
                 f"{row.get('why', '')}".rstrip()[:300])
            if output is not None:
                with output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, sort_keys=True) + "\n")
    return [rows[p.parent.name, p.stem] for p in paths]


def alone(path: Path, target: str, planned: str, limit_s: float) -> Row:
    """The row of a problem, from a process of its own. ``lost``: the process ended or was silent for too long."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    answers, channel = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(channel, os.getpid(), path, target, planned))
    process.start()
    channel.close()
    try:
        if not answers.poll(limit_s):
            return {"status": "lost", "why": f"no answer within {limit_s:g} s"}
        row: Row = json.loads(answers.recv())
        return row
    except (EOFError, OSError):
        process.join(5)
        return {"status": "lost", "why": f"the process ended with status {process.exitcode}"}
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # the first of its own group: nothing else is in it
        process.join()


def _answer(channel: Connection, asker: int, path: Path, target: str, planned: str) -> None:
    os.setsid()
    os.dup2(2, 1)  # what libraries print is no answer
    threading.Thread(target=_watch, args=(asker,), daemon=True).start()
    from redfuser.bench.suite.problem import one

    channel.send(json.dumps(one(path, target, planned)))


def _watch(asker: int) -> None:
    """End this process, and the compilers it started, where nobody is left who waits."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(asker, 0)
            time.sleep(1.0)
    os.killpg(os.getpid(), signal.SIGKILL)


def commit(folder: Path) -> str:
    """The commit of the folder's checkout; empty where it is none."""
    asked = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else ""


COLUMNS = ["problem", "limit", "found", "fused", "sm_90a", "equal", "err", "s", "note"]


def table(rows: Sequence[Row], planned: str) -> tuple[list[str], list[list[str]]]:
    columns = [planned if c == "sm_90a" else c for c in COLUMNS]
    return columns, [_cells(r, planned) for r in rows]


def _cells(r: Row, planned: str) -> list[str]:
    name = f"{r['level']}/{r['problem']}"
    if r["status"] not in ("ok", "wrong"):
        return [name, str(r.get("limit") or ""), "", "", _plan(r, planned), r["status"], "", "",
                f"{r.get('code', '')} {r.get('why', '')}".strip().splitlines()[0][:120]]
    return [name, str(r["limit"] or "as is"), str(r["found"]), str(r["fused"]), _plan(r, planned),
            "yes" if r["status"] == "ok" else "NO", f"{r['ratio']:.2f}", f"{r['seconds']:.1f}", "; ".join(_remarks(r, planned))]


def _plan(r: Row, planned: str) -> str:
    p = r.get(planned)
    if not p:
        return ""
    return f"{p['fused']} of {p['found']}, {p['maps']} maps" if p["status"] == "ok" else f"{p['status']} {p.get('code', '')}"


def _remarks(r: Row, planned: str) -> Iterator[str]:
    yield from (f"UNTRUE: {u}" for u in r["untrue"])
    if r["opaque"]:
        yield "opaque " + ", ".join(f"{n} {op.removeprefix('aten.').removesuffix('.default')}" for op, n in r["opaque"].items())
    for where, said in (("", r), (f"{planned}: ", r.get(planned, {}))):
        kept = Counter(k.split(" ")[1] for k in said.get("kept", ()))
        if kept and not (where and said["kept"] == r["kept"]):
            yield f"{where}kept " + ", ".join(f"{n} {code}" for code, n in kept.items())


def summary(rows: Sequence[Row], planned: str) -> list[str]:
    """A line for each folder of problems, and one for all."""
    lines = []
    for level in [*dict.fromkeys(r["level"] for r in rows), ""]:
        of = [r for r in rows if r["level"] == level or not level]
        states = Counter(r["status"] for r in of)
        plans = [r[planned] for r in of if planned in r]
        (fused, found), (there, sought) = ([sum(r.get(k, 0) for r in rs) for k in ("fused", "found")] for rs in (of, plans))
        lines.append(f"{level or 'all'}: {len(of)} problems, " + ", ".join(f"{n} {s}" for s, n in states.most_common())
                     + f"; cascades {fused} of {found} fused, planned for {planned} {there} of {sought}; "
                     f"{sum(bool(r.get('untrue')) for r in of)} reports contradicted")
    return lines


def markdown(rows: Sequence[Row], planned: str) -> str:
    return "\n".join([*(f"* {line}" for line in summary(rows, planned)), "", grid(*table(rows, planned))])
