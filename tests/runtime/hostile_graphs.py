"""Hostile graph texts: what the guard lets through computes within its tensors, and nothing else.

``python -m tests.runtime.hostile_graphs 20000 [SEED]`` draws so many graphs from calls of the operators with other numbers,
operands, dtypes and names, beside those written by hand. What is accepted is executed twice, on tame tensors and on ones
full of extreme numbers, in a process whose tensors lie between pages that cannot be touched (``guard_pages.c``) and which
notices any file, process, library or foreign module. It may raise; it may not crash, escape or return another shape.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from redfuser.errors import ArtifactError
from redfuser.runtime.guard import check_graph
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.native import find_cxx
from redfuser.runtime.parts import Graph
from redfuser.runtime.rehearsal import rehearse
from redfuser.runtime.shapes import Shaped
from redfuser.runtime.signature import Signature, TensorSpec
from tests.runtime.operator_examples import EXAMPLES, TENSORS, WRONG
from tests.runtime.test_guard import BAD

CHUNK = 250
SIGNATURE = Signature(tuple(TensorSpec(n, str(d).removeprefix("torch."), s) for n, (d, s) in TENSORS.items()),
                      tuple(range(len(TENSORS))), (0,))
SHAPES = {name: Shaped(*kind) for name, kind in TENSORS.items()}
CALLS = [call for calls in EXAMPLES.values() for call in calls]
NUMBERS = ("0", "1", "-1", "2", "3", "5", "6", "7", "8", "-2", "-3", "9", "16", "255", "65536", "2147483647", "2147483648", "-2147483648",
           "4294967296", "1099511627776", "4611686018427387904", "9223372036854775807", "-9223372036854775808", "0.5", "-0.0", "1e308",
           "-1e-320", 'float("nan")', 'float("inf")', "True", "None", "(1,)", "(0, 0)", "()", "[]", "(2147483647,)", "(-1, -1)", "x", "n")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "float8_e4m3fn", "complex64")
ESCAPES = ("open", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "import", "exec", "pickle.", "code.")
"""Events that Python reports when something leaves the process or reads code."""


def drawn(seed: int) -> str:
    """A graph of a few statements over the tensors of the examples and its own results."""
    rng = random.Random(seed)
    lines, names = [], list(TENSORS)
    for number in range(rng.choice((1, 1, 2, 3, 4))):
        words = re.findall(r"[a-zA-Z_]\w*|-?\d+\.?\d*(?:e[-+]?\d+)?|\s+|.", rng.choice(CALLS))
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5))):
            at = rng.randrange(len(words))
            if re.fullmatch(r"-?\d.*", words[at]):
                words[at] = rng.choice(NUMBERS)
            elif words[at] in names:
                words[at] = rng.choice(names if rng.random() < 0.9 else NUMBERS)
            elif words[at] in DTYPES:
                words[at] = rng.choice(DTYPES)
            elif rng.random() < 0.3:
                words[at] = rng.choice(words)
        result = f"v{number}"
        lines.append(f"    {result} = {''.join(words)}\n")
        names += [result] * 4
    return f"def forward({', '.join(TENSORS)}):\n{''.join(lines)}    return ({result},)\n"


def written() -> list[str]:
    """Those by hand: the guard's refusals, and arguments that no operator gets."""
    head = f"def forward({', '.join(TENSORS)}):\n"
    return [head + re.sub(r"\bk\(", "abs(", body) + "\n" for body in BAD.values()] + \
        [f"{head}    v = {call}\n    return (v,)\n" for call in WRONG]


def tensors(wild: bool) -> list[torch.Tensor]:
    """Tame: indices in bounds. Wild: the extremes of every dtype, NaN and infinities."""
    generator = torch.Generator().manual_seed(int(wild))
    made = []
    for dtype, shape in TENSORS.values():
        whole = torch.randint(0, 4, shape, generator=generator)
        values = torch.rand(shape, generator=generator) if dtype.is_floating_point else whole
        if wild and dtype.is_floating_point:
            finfo = torch.finfo(dtype)
            values = torch.tensor([float("nan"), float("inf"), -float("inf"), finfo.max, finfo.min, finfo.tiny, 0.0, -1e6])[
                torch.randint(0, 8, shape, generator=generator)]
        elif wild and dtype != torch.bool:
            iinfo = torch.iinfo(dtype)
            values = torch.tensor([iinfo.min, iinfo.max, -1, 0, 1, 5, 1 << 20, -7])[torch.randint(0, 8, shape, generator=generator)]
        made.append(values.to(dtype))
    return made


_events: list[str] = []
_watching = False


def _watch(event: str, args: Any) -> None:
    if _watching and event.startswith(ESCAPES) and not (event == "import" and str(args[0]).split(".")[0] == "torch") and \
            not (event == "exec" and getattr(args[0], "co_filename", "") == "<redfuser graph>"):
        _events.append(f"{event} {str(args)[:60]}")


def trial(source: str) -> str:
    """``refused``, ``ran``, ``raised``, or what must not be: ``UNCODED``, ``SHAPE``, ``ESCAPE``."""
    global _watching
    try:
        out = rehearse(check_graph(source, ()), list(TENSORS), list(SHAPES.values()), {}, {}, 1)[0]
    except ArtifactError:
        return "refused"
    except Exception as error:
        return f"UNCODED {type(error).__name__}: {error}"
    model = CompiledModel(Graph(source, tuple(TENSORS), 1), {}, {}, SIGNATURE)
    outcome = "raised"
    for wild in (False, True):
        given, found = tensors(wild), None
        _events.clear()
        _watching = True
        with contextlib.suppress(Exception):  # torch's own: an index out of bounds, a division by zero
            found = model(*given)
        _watching = False
        if _events:
            return f"ESCAPE {_events[0]}"
        if found is None:
            continue
        outcome = "ran"
        if Shaped(found.dtype, tuple(found.shape)) != out:
            return f"SHAPE {found.dtype}{list(found.shape)}, rehearsed as {out.dtype}{list(out.shape)}"
    return outcome


def _child(sources: list[str], pipe: Any) -> None:
    for source in sources:
        pipe.send(("start", source))
        pipe.send(("end", trial(source)))
    pipe.send(("done", ""))


def run(sources: list[str]) -> collections.Counter[str]:
    """Trials in child processes; the text that ends one is named, and the next goes on behind it."""
    found, context = collections.Counter[str](), multiprocessing.get_context("fork")
    while sources:
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(sources[:CHUNK], theirs))
        child.start()
        theirs.close()
        count, at = 0, ""
        try:
            while (message := mine.recv())[0] != "done":
                if message[0] == "start":
                    at = message[1]
                else:
                    count += 1
                    bad = message[1].split()[0].isupper()
                    found[f"{message[1]}\n{at}" if bad else message[1]] += 1
        except EOFError:
            child.join()
            found[f"CRASH {child.exitcode}\n{at}"] += 1
            count += 1
        child.join()
        sources = sources[count:]
    return found


def main(count: int, first: int = 0) -> int:
    sys.addaudithook(_watch)
    torch.set_num_threads(1)
    rehearse(check_graph("def forward(x):\n    v = torch.ops.aten.expm1.default(x)\n    return (v,)\n", ()), ["x"], [SHAPES["x"]],
             {}, {}, 1)  # torch's shape functions are imported now, not while something is watched
    start, found = time.perf_counter(), run(written() + [drawn(seed) for seed in range(first, first + count)])
    for outcome, n in sorted(found.items()):
        print(f"{n:8d}  {outcome}")
    bad = sum(n for outcome, n in found.items() if outcome.split()[0].isupper())
    print(f"{len(written())} texts by hand and {count} drawn in {time.perf_counter() - start:.0f} s; {bad} crashed, escaped, uncoded or "
          f"of another shape" + ("" if "guard_pages" in os.environ.get("LD_PRELOAD", "") else " (without guard pages)"))
    return 1 if bad else 0


def guarded(count: int, first: int = 0) -> subprocess.CompletedProcess[str]:
    """:func:`main` in a process of its own under ``guard_pages.c``, where a C compiler is at hand."""
    root, cxx = Path(__file__).resolve().parents[2], find_cxx()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        if cxx is not None and sys.platform == "linux":
            library = Path(folder) / "guard_pages.so"
            subprocess.run([cxx, "-x", "c", "-O1", "-shared", "-fPIC", str(Path(__file__).with_name("guard_pages.c")), "-o",
                            str(library)], check=True, capture_output=True)
            environment["LD_PRELOAD"] = str(library)
        command = [sys.executable, "-c", f"import sys; from tests.runtime import hostile_graphs; sys.exit(hostile_graphs.main("
                   f"{count}, {first}))"]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=root)


if __name__ == "__main__":
    done = guarded(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(done.stdout + done.stderr)
    sys.exit(done.returncode)
