"""Beside the values of a result: is it the same every time, and does a memory checker see nothing?

A race need not show in one run. What was built is run many times, one run started behind another, and every result has to
have the bits of the first; and once under each tool of NVIDIA's compute-sanitizer, which watches our kernels only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from redfuser import numerics
from redfuser.bench.correctness.supervise import CHILD, ROOT

REPEATS = 50
TOOLS = ("memcheck", "synccheck", "racecheck")
OURS = "kns=redfuser_"
"""Kernels of RedFuser, as the sanitizer's filter has them: torch's are not watched."""
LIMIT_S = 240.0


def repeated(ours: Callable[..., Any], args: Sequence[torch.Tensor]) -> str:
    """What differs from the first of REPEATS runs of the same call; empty: nothing."""
    first, *others = [numerics.tensors(ours(*args)) for _ in range(REPEATS)]
    differing = sum(any(not torch.equal(_bits(x), _bits(y)) for x, y in zip(first, other, strict=True)) for other in others)
    return f"{differing} of {len(others)} further runs gave other bits" if differing else ""


def unsteady(ours: Callable[..., Any], eager: Callable[..., Any], args: Sequence[torch.Tensor]) -> tuple[str, bool]:
    """What differs from run to run, and whether it is excused: eager's own results do too, as torch adds atomically in a call
    (``index_add`` and others) that is ours as it is."""
    why = repeated(ours, args)
    return why, bool(why) and bool(repeated(eager, args))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def sanitized(names: Iterable[str], tools: Sequence[str], folder: Path, jobs: int) -> Iterator[tuple[str, str, str]]:
    """(program, tool, what it found; empty: nothing) of one run of each program under each tool."""
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        yield from pool.map(lambda pair: (*pair, _under(pair[0], pair[1], folder)),
                            [(name, tool) for name in names for tool in tools])


def _under(name: str, tool: str, folder: Path) -> str:
    options = json.dumps({"folder": str(folder), "device": "cuda"})
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        command = ["compute-sanitizer", "--tool", tool, "--kernel-regex", OURS, "--log-file", str(log), sys.executable, "-m",
                   CHILD, "once", options]
        try:
            done = subprocess.run(command, input=name.encode(), capture_output=True, timeout=LIMIT_S,
                                  env={**os.environ, "PYTHONPATH": path, "REDFUSER_VERIFY": "0"})
        except FileNotFoundError:
            return "no compute-sanitizer here"
        except subprocess.TimeoutExpired:
            return f"no end within {LIMIT_S:g} s"
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        return _found(answers, log.read_text(errors="replace") if log.exists() else "", done.returncode)


def _found(answers: list[dict[str, Any]], log: str, status: int) -> str:
    """Of a run's answer and the tool's log: what is wrong; empty when the program ran and the tool counted no error."""
    summary = [line.removeprefix("=========").strip() for line in log.splitlines() if " SUMMARY: " in line]
    if not answers or "lost" in answers[0]:
        return (answers[0]["lost"] if answers else f"the process ended with status {status}") + "; " + "; ".join(summary)
    if not summary:
        return "the tool gave no summary"
    if all(": 0 errors" in s or ": 0 hazards" in s for s in summary):
        return ""
    first = next((line.removeprefix("=========").strip() for line in log.splitlines()
                  if line.startswith("=========") and any(w in line for w in ("Error", "Invalid", "Race", "hazard", "Barrier"))
                  and "SUMMARY" not in line), "")
    return "; ".join([*summary, first])[:300]
