"""Refusal inside the deriver: raised where a condition fails, turned into a NotFusable value at the door (fuse.py)."""

from __future__ import annotations


class Refuse(Exception):
    """A condition failed. ``expression`` is the smallest sub-expression at fault."""

    def __init__(self, code: str, condition: str, why: str, help: str) -> None:
        self.code, self.condition, self.why, self.help = code, condition, why, help
        super().__init__(f"{code}: {condition}: {why}")
