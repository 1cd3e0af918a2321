"""A process that makes one case after the other ready, says so, and takes times when it is told to
(:mod:`redfuser.bench.together`).

    {"case": ..., "source": ..., "options": {...}}  -->  {"ready": true}      {"go": true}  -->  {"rows": [...]}

One without anything to time answers with its rows at once. A process that has lost its device ends behind them.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redfuser.bench import runner
from redfuser.child import private_stdout
from redfuser.errors import RedFuserError


def main() -> None:
    """Answers go to what was standard output; whatever else is printed goes to standard error."""
    answers = private_stdout()

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        tell({"ready": True})
        if not sys.stdin.readline():
            raise SystemExit(1)
        yield

    from redfuser.bench.suite.cases import case as problem
    from workloads import all_cases

    cases = {str(c): c for c in all_cases()}
    while line := sys.stdin.readline():
        asked = json.loads(line)
        given = asked["options"]
        case = (problem(Path(asked["source"])) if asked["source"] else None) or cases[asked["case"]]
        folder = Path(given["artifacts"]) if given["artifacts"] else None
        options = runner.Options(tuple(given["variants"]), given["device"], folder, given["budget_s"], frozenset(given["done"]))
        found: list[Any] = []
        try:
            for block in runner.run([case], options, say, turn):
                found += block
        except RedFuserError:  # the device is lost: what was measured is there, and this process goes
            tell({"rows": found})
            return
        tell({"rows": found})


if __name__ == "__main__":
    main()
