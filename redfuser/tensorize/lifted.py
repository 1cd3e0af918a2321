"""Maxima that start below every finite score instead of at -inf, so that no step has to ask whether one was seen.

Only where the scores' dtypes and constants bound them (:mod:`magnitude`): a row may be hidden by -1e38 as well as by
-inf, and bfloat16 reaches that by itself. Elsewhere a maximum starts at -inf, and one test per row guards its shift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redfuser.acrf.expr import Cast, Const, Expr, Op, Ref, f32, op, refs_of
from redfuser.strategies.program import Block, Kernel
from redfuser.tensorize import rewrite
from redfuser.tensorize.magnitude import LEAST

if TYPE_CHECKING:
    from redfuser.tensorize.prepare import Preparation

def only_shifts(kernel: Kernel, name: str) -> bool:
    """Is the running maximum ``name`` read as a reference of exponentials alone, by itself or through sums, choices and
    constant factors? Elsewhere its start would count: the square of -1e30 times the 0 of an empty row is NaN."""
    names = {name}
    for b in kernel.body:
        if b.role == "store" and b.name.partition("@")[0] in names:
            names.add(b.name)
            continue
        found = [_reads(e, names) for e in b.exprs]
        if "value" in found:
            return False
        if "reference" in found and not set(b.names) <= names:
            if b.role != "producer" or b.reducer is not None:
                return False
            names |= set(b.names)
    return True


def _reads(e: Expr, names: set[str]) -> str:
    """How ``e`` reads one of ``names``: not at all (empty), as part of a ``reference``, or otherwise as a ``value``."""
    match e:
        case Ref(name=n, indices=()):
            return "reference" if n in names else ""
        case Op(name="exp" | "exp2", args=(x,)):
            return "value" if _reads(x, names) == "value" else ""
        case Op(name="select", args=(c, x, y)) if rewrite.guard_of(c):
            kinds = {_reads(x, names), _reads(y, names)}
        case Op(name="add" | "sub" | "max" | "min" | "neg" | "select", args=args):
            kinds = {_reads(x, names) for x in args}
        case Op(name="mul" | "div", args=(x, Const())) | Op(name="mul", args=(Const(), x)) | Cast(arg=x):
            kinds = {_reads(x, names)}
        case _:
            return "value" if refs_of(e) & names else ""
    return "value" if "value" in kinds else "reference" if "reference" in kinds else ""


def unguard(work: Preparation, e: Expr) -> Expr:
    """``select(m == -inf, 0, m) --> m`` for a maximum that is never -inf."""
    match e:
        case Op(name="select", args=(c, _, m)):
            found = rewrite.guard_of(c)
            if found and found[1] and _never_empty(work, found[0]):
                return m
    return e


def _never_empty(work: Preparation, m: Expr) -> bool:
    rest = rewrite.positive_scale(m)[1]
    return isinstance(rest, Ref) and rest.name.partition("@")[0] in work.lifted


def restore_maxima(work: Preparation) -> list[Block]:
    """After the walk a lifted maximum is the real one again: -inf where nothing was seen."""
    out: list[Block] = []
    read = {r for b in work.kernel.tail for e in b.exprs for r in refs_of(e)}
    for name in sorted(work.lifted & read):
        real = work.fresh(f"{name}_seen")
        m = Ref(name, "f32")
        value = Op("select", (op("eq", m, f32(LEAST)), rewrite.NEG_INF, m), "f32")
        work.levels[real] = frozenset({"m"})
        work.lets[real] = value
        work.rename(m, Ref(real, "f32"))
        out.append(Block("finalize", (real,), (), (value,), "f32"))
    work.started_low, work.lifted = frozenset(work.lifted), set()
    return out
