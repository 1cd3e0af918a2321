"""Operations that torch runs as one call are not taken apart for a part of them.

Where the kernel of an attention is refused, its softmax alone is still a cascade, and so is its softmax with the product behind
it. A kernel of that would leave torch plain products and the scores in memory, where it has a fused attention of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Op, walk
from redfuser.errors import UnsupportedError
from redfuser.reported import Reason

ONE_CALL = "F.scaled_dot_product_attention("


def parts_of_one_call(imported: Any, regions: Sequence[Any], names: Mapping[str, str],
                      declined: Sequence[Any] = ()) -> dict[str, Reason]:
    """The regions without which the rest has more such calls, by name, with why they are left to torch. declined: what was
    refused before (:class:`redfuser.partition.account.Declined`), of which the first attention with a region's operations was
    all of it."""
    kinds = {r.key: r for r in regions if _part(r.cascade)}
    if not kinds or not _calls(imported, (), names):
        return {}
    now = _calls(imported, regions, names)
    left: dict[str, Reason] = {}
    for key in kinds:
        if _calls(imported, [r for r in regions if r.key != key], names) > now:
            left |= {r.name: _reason(r, declined) for r in regions if r.key == key}
    return left


def _reason(region: Any, declined: Sequence[Any]) -> Reason:
    """Left to torch, with what refused the kernel of all of it."""
    why = "torch runs the attention around it as one call, and no kernel is all of it"
    first = next((d.reason for d in declined if d.stem == "attn" and not set(region.ops).isdisjoint(d.ops)), None)
    if first is None:
        return Reason("RF305", why=why, help="nothing to change")
    told = (first.why or first.condition).strip().splitlines()[0][:200]
    return Reason("RF305", why=f"{why}: {first.code} {told}", help=first.help or "nothing to change")


def _part(cascade: Any) -> bool:
    """Does it take exponentials of a row that is read from memory, or given back to it?"""
    powers = any(isinstance(x, Op) and x.name in ("exp", "exp2") for s in cascade.stmts for x in walk(s.expr))
    back = any(cascade.raxis in s.axes for s in cascade.stmts if set(s.names) & set(cascade.outputs))
    inner = any(isinstance(s, Reduce) and s.over != cascade.raxis and cascade.raxis in s.axes for s in cascade.stmts)
    return powers and (back or not inner)


def _calls(imported: Any, regions: Sequence[Any], names: Mapping[str, str]) -> int:
    """How many there are beside the kernels of ``regions``; none where torch has no spelling for all that is left."""
    from redfuser import outer

    try:
        return str(outer.emit(imported, list(regions), dict(names)).source).count(ONE_CALL)
    except UnsupportedError:
        return 0
