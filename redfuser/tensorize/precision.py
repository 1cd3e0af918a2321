"""How precise a value must be: the precision in which the program keeps what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.acrf.cascade import Cascade, Let, Reduce, Stmt, stmt_dtype
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Op, Ref, indices_of, refs_of, walk
from redfuser.acrf.state import Fused
from redfuser.dtypes import UNIT

SINGLE = 2.0**-24
SUMMED = 2.0**-16
"""What a matrix unit that adds up a row of some thousand weighed values in one go keeps of them: enough where a difference of
such sums is rounded to bfloat16."""


def unit_roundoff(dtype: str) -> float:
    """The relative error of rounding to ``dtype``; that of single precision for what is wider, or no float."""
    return max(float(UNIT.get(dtype, SINGLE)), SINGLE)


def kept(fused: Fused, name: str, product: bool = False) -> float:
    """The smallest unit roundoff in which any result of ``name`` is stored. Scales in between keep a relative error as it is.
    A sum may be smaller than its terms: where it is rounded, they count with as many digits again as that keeps. After any
    other function the program's own float32 counts, but where the program has rounded the value before. product: of two tensors
    in memory. What the program adds to one in the same step as it rounds it (a bias, a residual) its library adds to the sums
    of the same matrix units, so it counts as rounded."""
    found = [unit_roundoff(_dtype(fused, name))] if name in fused.cascade.outputs else []
    for s in (*fused.state.finalize, *fused.post):
        if s.name == name and isinstance(s, Let) and s.expr == Ref(name, s.expr.dtype):
            continue
        for power, cast in _uses(s.expr, name, 1, "", product):
            if not power or not isinstance(s, Let):
                found.append(SINGLE)
            elif cast or s.name != name:
                found.append(max(SINGLE, (unit_roundoff(cast) if cast else kept(fused, s.name, product)) ** power))
    return min(found, default=SINGLE)


def read_in(cascade: Cascade, name: str) -> float:
    """The unit roundoff to which every statement that reads ``name`` rounds it first, or scales it and then rounds: less than
    that nobody sees of it. That of float32 where one does not. A statement that hands it on as it is (scaled, or one of a row
    picked: the largest, the label's) rounds it as its own readers do."""
    found = []
    for s in cascade.stmts:
        for power, cast in _uses(s.expr, name, 1, "", False):
            if power == 1 and (cast or (_hands_on(cascade, s) and s.name not in cascade.outputs)):
                found.append(unit_roundoff(cast) if cast else read_in(cascade, s.name))
            else:
                found.append(SINGLE)
    return min(found, default=SINGLE)


def _hands_on(cascade: Cascade, s: Stmt) -> bool:
    """Is the statement's value one of those it reads, scaled at most? An extremum is, and a sum in which all places but the one
    that equals some number are 0."""
    if isinstance(s, Let):
        return True
    match s.expr:
        case Op(name="select", args=(Op(name="eq", args=(x, y)), _, Const(value=0))) if s.reducer.kind == "sum":
            return any(a == Index(s.over) and s.over not in indices_of(b) and not any(s.over in cascade.stmt(n).axes
                                                                                      for n in refs_of(b))
                       for a, b in ((x, y), (y, x)))
    return s.reducer.kind in ("max", "min")


def kept_whole(fused: Fused, name: str) -> bool:
    """Is the sum of a product in the row kept in float32: read unrounded, on the way to a result that is no half?"""
    finest = min(unit_roundoff(_dtype(fused, o)) for o in fused.cascade.outputs)
    return max(read_in(fused.cascade, name), finest) < unit_roundoff("f16")


def chooses_among_few(cascade: Cascade) -> bool:
    """Does the program round to 8 bits or to integers? Nothing in front of that is approximate: one unit off, and an element at
    an edge is another number. (A quotient by a value of its row keeps edges: :mod:`redfuser.codegen.exchange`.)"""
    return any(_coarse(x) for s in cascade.stmts for x in walk(s.expr))


def _coarse(e: Expr) -> bool:
    match e:
        case Cast(arg=x, dtype=d):
            return x.dtype in FLOATS and (d not in FLOATS or unit_roundoff(d) > unit_roundoff("bf16"))
        case Op(name="floor" | "ceil" | "round"):
            return True
    return False


def divides_by_hidden(cascade: Cascade) -> bool:
    """Does the program divide by a sum of exponentials that something else may hide or weigh, the largest among them? All
    that is left may be below 2^-126 then, where an approximate exponential is 0 and the program's is not."""
    lets = {s.name: s.expr for s in cascade.stmts if isinstance(s, Let)}

    def whole(e: Expr) -> bool:
        """An exponential as it is, or a part of their sum."""
        match e:
            case Cast(arg=x) | Op(name="div", args=(x, _)):
                return whole(x)
            case Ref(name=n) if n in lets:
                return whole(lets[n])
        return isinstance(e, Op) and e.name in ("exp", "exp2")

    def inside(e: Expr) -> bool:
        return any(whole(x) or (isinstance(x, Ref) and x.name in lets and inside(lets[x.name])) for x in walk(e))

    def reads(e: Expr) -> set[str]:
        found: set[str] = set()
        todo = [e]
        while todo:
            new = refs_of(todo.pop()) - found
            found |= new
            todo += [lets[n] for n in new if n in lets]
        return found

    sums = {s.name for s in cascade.stmts if isinstance(s, Reduce) and s.reducer.kind == "sum"
            and not whole(s.expr) and inside(s.expr)}
    below = [x.args[-1] for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Op) and x.name in _STEEP_AT_ZERO]
    return bool(sums) and any(not sums.isdisjoint(reads(e)) for e in below)


def stores_exponentials(cascade: Cascade) -> bool:
    """Is an exponential itself, scaled or not, a result with the exponents of float32? What is below 2^-126 there is a number
    in the program, which whoever reads it may divide by."""
    lets = {s.name: s.expr for s in cascade.stmts if isinstance(s, Let)}

    def inside(e: Expr) -> bool:
        return any((isinstance(x, Op) and x.name in ("exp", "exp2", "sigmoid"))
                   or (isinstance(x, Ref) and x.name in lets and inside(lets[x.name])) for x in walk(e))

    return any(o in lets and lets[o].dtype in ("f32", "bf16") and inside(lets[o]) for o in cascade.outputs)


def stores_single(cascade: Cascade) -> bool:
    """Has a result the digits of float32?"""
    return any(stmt_dtype(cascade.stmt(o), o) == "f32" for o in cascade.outputs)


_STEEP_AT_ZERO = ("div", "log", "log2", "rsqrt")


def _dtype(fused: Fused, name: str) -> str:
    return next((s.expr.dtype for s in (*fused.post, *fused.state.finalize) if s.name == name), "f32")


def _uses(e: Expr, name: str, power: int, cast: str, product: bool) -> Iterator[tuple[int, str]]:
    """Per occurrence of ``name``, what happens to it on its way out, and which rounding it meets: 1 where it is only scaled, 2
    where something is added to it as well, 0 elsewhere."""
    match e:
        case Ref(name=n):
            if n == name:
                yield power, cast
        case Cast(arg=Op(name="add", args=args), dtype=d) if product and d in FLOATS and unit_roundoff(d) > SINGLE:
            for x in args:
                yield from _uses(x, name, 1, d, product)
        case Cast(arg=x, dtype=d) if power != 1 and d in FLOATS and unit_roundoff(d) > SINGLE:
            yield from _uses(x, name, 1, d, product)  # whatever follows sees no more than that
        case Cast(arg=x, dtype=d):
            yield from _uses(x, name, power, d if unit_roundoff(d) > unit_roundoff(cast) else cast, product)
        case Op(name="mul" | "neg", args=args):
            for x in args:
                yield from _uses(x, name, power, cast, product)
        case Op(name="add" | "sub", args=args):
            for x in args:
                yield from _uses(x, name, power and 2, cast, product)
        case Op(name="div", args=(x, y)):
            yield from _uses(x, name, power, cast, product)
            yield from _uses(y, name, 0, cast, product)
        case Op(name="select", args=(c, x, y)):
            for kid, here in ((c, 0), (x, power), (y, power)):
                yield from _uses(kid, name, here, cast, product)
        case Op(args=args):
            for x in args:
                yield from _uses(x, name, 0, cast, product)
