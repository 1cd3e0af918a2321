"""The child process of the lane: reads names of programs, answers each with one line of JSON. Standard output is the channel;
whatever libraries print goes to standard error. A child whose parent is gone ends, with the compilers it started."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redfuser.child import private_stdout


def main() -> None:
    options = json.loads(sys.argv[2])
    channel = private_stdout()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    names = sys.stdin.read().splitlines()
    from workloads.correctness import find

    programs = find(names)
    do = step(sys.argv[1], options)
    for name in names:
        channel.write(f"begin {name}\n")
        try:
            answer = do(programs[name])
        except Exception as e:
            traceback.print_exc()
            answer = {"lost": f"{type(e).__name__}: {str(e)[:300]}", "poisoned": "CUDA error" in str(e)}
        channel.write(json.dumps({"program": name, **answer}) + "\n")
        if answer.get("poisoned"):  # a GPU context that a kernel broke serves nobody any more
            channel.flush()
            os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpid(), signal.SIGKILL)  # the supervisor made this process the first of its own group


def step(name: str, options: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """What the child does with a program: ``build``, ``run``, ``once`` or ``interpret``."""
    if name == "build":
        from redfuser.bench.correctness.build import one as build

        earlier = _right(Path(options["since"])) if options["since"] else {}
        return lambda program: build(program, options["target"], Path(options["folder"]), earlier.get(program.name))
    if name == "run":
        from redfuser.bench.correctness.run import one as run
        from redfuser.bench.correctness.run import warm

        warm(options["device"])
        return lambda program: run(program, Path(options["folder"]), options["device"])
    if name == "once":
        from redfuser.bench.correctness.run import once

        return lambda program: once(program, Path(options["folder"]), options["device"])
    if name == "interpret":
        from redfuser.bench.correctness.build import standing
        from redfuser.bench.correctness.interpret import one as interpret

        ran = _right(Path(options["since"])) if options["since"] else {}

        def judged(program: Any) -> dict[str, Any]:
            same = standing(program, options["target"], ran[program.name]) if program.name in ran else None
            return same or interpret(program, options["target"], options["draws"])

        return judged
    raise ValueError(name)


def _right(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a table that were right, by program."""
    from redfuser.bench.correctness.table import RIGHT, read

    return {r["program"]: r for r in read(path)[1] if r["verdict"] == RIGHT}


if __name__ == "__main__":
    main()
