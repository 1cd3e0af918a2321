"""In whose memory a program's results lie: of the model as torch runs it, before anything is simplified."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx


def roots(results: Sequence[fx.Node]) -> tuple[str, ...]:
    """For each result the node that made its memory: an input, a weight, or what computes it. Of operators that may give a view
    or a copy (``reshape``, ``to``) it is the operand's."""
    found = []
    for node in results:
        while (source := _viewed(node)) is not None:
            node = source
        found.append(node.name)
    return tuple(found)


def _viewed(node: Any) -> fx.Node | None:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.target is operator.getitem:  # one of split's
        return node.args[0] if node.args[0].op == "call_function" and _viewed(node.args[0]) is not None else None
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    return node.args[0] if any(r.alias_info is not None for r in node.target._schema.returns) else None
