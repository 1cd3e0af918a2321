"""What each pass made of a kernel, as a person reads it: its mathematics whole and a diff a pass, then its tiles likewise."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import unified_diff

from redfuser.strategies.program import Kernel
from redfuser.tensorize.ir.nodes import TileKernel


@dataclass
class History:
    """A watcher of :func:`redfuser.tensorize.tensorize` that keeps what it is told."""

    steps: list[tuple[str, Kernel | TileKernel]] = field(default_factory=list)

    def __call__(self, after: str, kernel: Kernel | TileKernel) -> None:
        self.steps.append((after, kernel))

    def __str__(self) -> str:
        lines: list[str] = []
        before: Kernel | TileKernel | None = None
        for after, kernel in self.steps:
            text = str(kernel).splitlines()
            lines.append(f"# {kernel.name}, {after}")
            if before is None or type(before) is not type(kernel) or before.name != kernel.name:
                lines += text
            else:
                lines += list(unified_diff(str(before).splitlines(), text, lineterm="", n=1))[2:]
            before = kernel
        return "\n".join(lines)
