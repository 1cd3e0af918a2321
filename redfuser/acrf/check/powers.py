"""Which products a matrix product adds up, as powers of tensors: what is deferred from it is in front of those."""

from __future__ import annotations

from redfuser.acrf.cascade import Cascade, Reduce
from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, Ref, children

Monomial = frozenset[tuple[str, int]]
"""The tensors that a product reads, each with its power, 2 at most."""
NOTHING: frozenset[Monomial] = frozenset({frozenset()})
LINEAR = frozenset({"add", "sub", "neg", "abs", "max", "min", "select"})


def adds_up(cascade: Cascade, t: str, root: str) -> bool:
    """Does a product with columns of its own, of which no held row is reduced once more, add up ``t`` times two elements of
    ``root``? A result that divides these is deferred, so that they must themselves be in range, as docs/algebra.md has it:
    squares over their sum, times values (``(w * w / (w * w).sum()) @ v``)."""
    known: dict[str, frozenset[Monomial]] = {}
    rows = [s for s in cascade.stmts if isinstance(s, Reduce) and s.over == cascade.raxis]
    for s in cascade.stmts:
        found = _read(s.expr, known)
        if s in rows:
            columns = not any(set(s.axes) <= set(other.axes) for other in rows if other is not s)
            if columns and s.reducer.kind == "sum" and any(dict(m).get(t, 0) and dict(m).get(root, 0) == 2 for m in found):
                return True
            found = NOTHING
        known |= dict.fromkeys(s.names, found)
    return False


def _read(e: Expr, known: dict[str, frozenset[Monomial]]) -> frozenset[Monomial]:
    match e:
        case Load(tensor=name):
            return frozenset({frozenset({(name, 1)})})
        case Ref(name=name):
            return known.get(name, NOTHING)
        case Op(name="mul", args=(x, y)):
            return _products(_read(x, known), _read(y, known))
        case Op(name="pow", args=(x, Const(value=2))):
            return _products(_read(x, known), _read(x, known))
        case Op(name="div", args=(x, _)):
            return _read(x, known)
    if isinstance(e, Cast) or (isinstance(e, Op) and e.name in LINEAR):
        return frozenset[Monomial]().union(*(_read(k, known) for k in children(e)))
    return NOTHING


def _products(left: frozenset[Monomial], right: frozenset[Monomial]) -> frozenset[Monomial]:
    return frozenset(_times(a, b) for a in left for b in right)


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for name, q in b:
        powers[name] = min(powers.get(name, 0) + q, 2)
    return frozenset(powers.items())
