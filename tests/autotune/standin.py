"""Stands for the measuring process: answers as the names of the candidates say (``dies``, ``hangs``, ``silent``, ``wrong`` or
anything else, which is timed), with times that depend on nothing. ``python -m tests.autotune.standin``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def times(ms: float) -> dict[str, Any]:
    found = {"p50": ms, "p20": ms, "p80": ms, "samples": 9}
    return {"graph": found, "events": found}


def main() -> None:
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        samples, wrong = {"unfused": times(1.0)}, {}
        for i, name in enumerate(request["candidates"]):
            say({"begin": name})
            if name == "dies":
                os._exit(3)
            if name == "hangs":
                say({"lost": "it did not end within 20 s"})
                os._exit(86)
            if name == "silent":
                time.sleep(60)
            if name == "wrong":
                wrong[name] = "normal inputs: FAILED"
            else:
                samples[name] = times(0.5 - 0.1 * i)
        say({"done": {"samples": samples, "wrong": wrong, "why": ""}})


if __name__ == "__main__":
    main()
