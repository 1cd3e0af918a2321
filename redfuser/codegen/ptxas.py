"""What ``ptxas -v`` reports: registers, spills, stack and static shared memory per entry."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_resources(log: str) -> dict[str, dict[str, int]]:
    """Per entry: ``registers`` per thread; ``spill_bytes`` (the larger of stores and loads), ``stack_bytes`` and
    ``static_shared_bytes`` in bytes. With warp specialisation ptxas reports the launch value of the registers, not what
    the consumer warps ask for later: judge by the spills."""
    found: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            current = found.setdefault(match.group(1), {"registers": 0, "spill_bytes": 0, "stack_bytes": 0,
                                                        "static_shared_bytes": 0})
        elif match := _PROPERTIES.search(line):
            stack, stores, loads = map(int, match.groups())
            # Called functions report too: the entry's figure is the worst of them.
            current["stack_bytes"] = max(current.get("stack_bytes", 0), stack)
            current["spill_bytes"] = max(current.get("spill_bytes", 0), stores, loads)
        elif match := _USED.search(line):
            current["registers"] = int(match.group(1))
            shared = _SHARED.search(line)
            current["static_shared_bytes"] = int(shared.group(1)) if shared else 0
    return found
