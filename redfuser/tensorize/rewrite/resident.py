"""A row that is one segment."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize.rewrite.facts import Setting


@dataclass(frozen=True, slots=True)
class DropNeutral:
    """Of a row held on chip as one segment, what only a second segment needs goes: the old state is neutral, rebasing it does
    nothing, and what the tail would compute again is still there::

        store m@old = m; correct t = t * exp(m@old - m); reduce t = t sum sum[l] w    -->    reduce t = t sum sum[l] w

    Adds no rounding."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        if not at.resident:
            return kernel
        body = tuple(b for b in kernel.body if b.role not in ("store", "correct"))
        here = {n for b in body for n in b.names}
        return replace(kernel, body=body, tail=tuple(b for b in kernel.tail if not _again(b, here)))


def _again(b: Block, here: set[str]) -> bool:
    return b.role == "producer" and b.name in here
