"""The change of reference: how accumulators follow the running results that they are kept relative to.

An accumulator of ``W(x) * exp(a + B(D)) * prod_i (a_i(x) + b_i(D)) ** k_i`` is kept at a *reference* R in place of D, a
function of the accumulators themselves that is finite in every state, the empty one included (running.py).

When R moves by ``delta_i = b_i(R new) - b_i(R old)`` the family ``k`` closes under a triangular change of basis::

    A_k(new) = H(new)/H(old) * sum_{j <= k} prod_i binom(k_i, j_i) * delta_i ** (k_i - j_i) * A_j(old)

which for ``(x - mean) ** 2`` is Chan's update (Chan, Golub, LeVeque 1979). The true D is one more such change, from the
last reference to D: it is the identity unless a guard was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from redfuser.acrf.derive.change import Change, Follows
from redfuser.acrf.derive.decomposition import Part, split_linear
from redfuser.acrf.derive.finite import note
from redfuser.acrf.derive.running import Running
from redfuser.acrf.expr import Const, Expr, Op, Ref, children, map_children, op, walk
from redfuser.acrf.facts.algebra import INF
from redfuser.acrf.facts.guards import unclamped
from redfuser.acrf.facts.normal import Mono, Poly, equal, from_poly, number, product, to_poly


@dataclass(slots=True)
class References(Running):
    """Reference values over the accumulators made so far, and how they change."""

    moved: dict[str, Expr] = field(default_factory=dict)
    """Extrema of data that results move, as those of the data alone (an accumulator), moved."""

    def difference(self, b: Expr, new: Callable[[Expr], Expr], old: Callable[[Expr, int], Expr], last: bool = False,
                   sums: Sequence[Expr] = ()) -> Expr:
        """``b(new) - b(old)`` monomial by monomial, so that ``c*m`` gives ``(m' - m) * c``: one rounding of a difference.

        ``old`` is told the sign that its value carries in the result (0 when unknown). last: to the true results, of which
        none may cancel, since it may be NaN. sums: those in b that are taken from data as they are, rounded (:meth:`sums`):
        they move as they are, rounded, too."""
        dtype = b.dtype
        out: Expr | None = None
        left = to_poly(self._opened(b, last))
        for g in sums:
            mine = to_poly(self._opened(g, last))
            k = next((left.get(m, Fraction(0)) / c for m, c in mine.items()), Fraction(0))
            if k and all(left.get(m) == k * c for m, c in mine.items()):
                left = {m: c for m, c in left.items() if m not in mine}
                ends = (new(g), old(g, -1 if k > 0 else 1))
                step: Expr = op("sub", *(ends if k > 0 else ends[::-1]))
                step = step if abs(k) == 1 else product([(step, Fraction(1))], dtype, abs(k))
                out = step if out is None else op("add", out, step)
        for m, c in _ordered(left):
            results = [(base, q) for base, q in m if self.scope.kind(base) == "D"]
            constants = [(base, q) for base, q in m if self.scope.kind(base) != "D"]
            if not results:
                continue
            value = product(results, dtype)
            if abs(c) != 1 and self.estimate(value) != self.running(value):
                value, c = product(results, dtype, abs(c)), Fraction(1 if c > 0 else -1)
            known = all(self.ranges.of(base).nonneg for base, _ in constants)
            sign = (-1 if c > 0 else 1) if known else 0
            after, before = new(value), old(value, sign)
            if isinstance(after, Const) and after == before:
                continue
            step = op("sub", before, after) if c < 0 else op("sub", after, before)
            if constants or abs(c) != 1:
                step = product([(step, Fraction(1)), *constants], dtype, abs(c))
            out = step if out is None else op("add", out, step)
        return out if out is not None else Const(0.0, dtype)

    def sums(self, e: Expr) -> list[Expr]:
        """Sums of results that ``e`` takes from data as one number, rounded to what ``log(t) + m`` keeps of ``log(t)``: of data
        beside ``m``, ``exp(x - (log(t) + m))`` is 1/t only as far as it does, and where m is the lowest float32 it is 1."""
        if self.scope.kind(e) == "D":
            results = [m for m in to_poly(self._opened(e)) if any(self.scope.kind(base) == "D" for base, _ in m)]
            return [e] if len(results) > 1 else []
        return [s for k in children(e) for s in self.sums(k)] if self.scope.kind(e) == "M" else []

    def _opened(self, e: Expr, last: bool = False) -> Expr:
        """Maps that are sums of results, opened: in ``m + log(t)`` each summand follows its own edge."""
        bodies = self.scope.definitions if last else self.scope.definitions | self.moved
        if isinstance(e, Ref) and not e.indices and e.name in bodies:
            body = bodies[e.name]
            if not last and isinstance(inner := unclamped(body), Ref) and inner.name in self.moved:
                return self._opened(inner)  # a guard by hand: the maximum of the data alone has its own
            return self._opened(body, last) if isinstance(body, Op) and body.name in ("add", "sub", "neg") else e
        return map_children(e, lambda k: self._opened(k, last)) if isinstance(e, Op) and e.name in ("add", "sub", "neg") else e

    def level(self, b: Expr, guards: list[Expr]) -> Expr:
        """The reference value of b, spelled as :meth:`difference` takes it: where a denominator is replaced, both say the
        same."""
        out: Expr | None = None
        for m, c in _ordered(to_poly(self._opened(b))):
            results = [(base, q) for base, q in m if self.scope.kind(base) == "D"]
            constants = [(base, q) for base, q in m if self.scope.kind(base) != "D"]
            inside = bool(results) and abs(c) != 1 and self.estimate(product(results, b.dtype)) != self.running(
                product(results, b.dtype))
            value = self.at(product(results, b.dtype, abs(c) if inside else Fraction(1)), guards) if results else None
            sign = Fraction(1 if c > 0 else -1)
            factors = [*([(value, Fraction(1))] if value is not None else []), *constants]
            step = product(factors, b.dtype, sign if inside else c)
            out = step if out is None else op("add", out, step)
        return out if out is not None else Const(0.0, b.dtype)

    def consistent(self, p: Part, guards: list[Expr]) -> Expr:
        """A shifted sum, or an exponential of one, at the reference: as the source spells it, unless a guard in that
        spelling replaces something else than the change of reference does."""
        if p.unit is not None:
            return self._measured(p, guards)
        mine: list[Expr] = []
        e = self.place(p.base, mine)
        other: list[Expr] = []
        want: Expr | None = None
        if p.kind == "shift" and not p.follows and p.a is not None and p.b is not None:
            want = op("add", p.a, self.level(p.b, other))
            same = equal(e, want)
        elif p.kind == "scaled" and isinstance(p.base, Op) and p.base.name in ("exp", "exp2") and len(p.follows) == 1:
            (h, q), = p.follows
            split = split_linear(self.scope, p.base.args[0])
            if q == 1 and isinstance(h, Op) and h.name == p.base.name and split is not None:
                a = from_poly(split[0], p.base.args[0].dtype)
                want = Op(p.base.name, (op("add", a, self.level(h.args[0], other)),), p.base.dtype)
                same = isinstance(e, Op) and any(equal(x, want.args[0]) for x in (e.args[0], unclamped(e.args[0])))
        if want is None or same:
            want, other = e, mine
        for g in other:
            note(guards, g)
        return want

    def _measured(self, p: Part, guards: list[Expr]) -> Expr:
        """A shifted sum in units: ``(a + b) / unit + rest`` at the reference."""
        assert p.a is not None and p.unit is not None
        top = _plus(p.a, self.level(_second(p), guards))
        out: Expr = op("div", top, self.inverse_at(p.unit, guards))
        return out if p.rest is None else _plus(out, self.level(p.rest, guards))

    def scale(self, p: Part) -> Expr | None:
        """``unit(R old) / unit(R new)``: 0 where the old unit is 0, since what it bounds is then 0, or of nothing."""
        return None if p.unit is None else op("div", self.old(self.at(p.unit)), self.inverse_at(p.unit))

    def last_scale(self, p: Part) -> Expr | None:
        """``unit(R) / unit(D)``; None for a unit of the derivation's own, which is what it is: 0 for a row of equal elements,
        whose deviations are then over 1 and times 0."""
        return None if p.unit is None or self._own_unit(p) else op("div", self.inverse_at(p.unit), self.running(p.unit))

    def _own_unit(self, p: Part) -> bool:
        return isinstance(p.unit, Ref) and p.unit.name in self.units

    def old_reference(self, value: Expr, sign: int, taken: list[Expr]) -> Expr:
        """The old reference. Where the empty state gives ``exp(-inf) = 0`` anyway, its guard is left out; guards that stay
        are added to ``taken``."""
        r = self.estimate(value)
        if sign and self.edges(r) in (frozenset(), frozenset({-INF * sign})):
            return self.old(self.clamped(r, r))
        return self.old(self.guarded(r, taken))

    def ratio(self, follows: Follows, vanishes: bool, bounded: Sequence[Expr] = (), sums: Sequence[Expr] = ()) -> Expr | None:
        """H(new) / H(old), simplified before it is spelled: differences inside one exponential, quotients outside. sums: as
        :meth:`difference` takes them.

        ``vanishes``: where the old reference is guarded, what it scales is proved to be 0, so the guard may be left out.
        ``bounded``: results of which the same is proved, each bounding the data in its quotient."""
        taken: list[Expr] = []
        above = {b for b, q in follows if q < 0 and b in bounded}

        def old_inverse(e: Expr) -> Expr:
            if e in above:
                return self.old(self.at(e))  # 0 where the new one is replaced by 1
            r = self.running(e)
            if e in bounded and self.edges(r) == frozenset({INF}):  # of nothing, so the quotient is 0
                zero = Op("eq", (r, Const(0.0, r.dtype)), "bool")
                return self.old(Op("select", (zero, Const(1.0, r.dtype), r), r.dtype))
            return self.old(self.inverse_at(e))

        out = self._changes(follows, lambda e: self.at(e), (lambda e, sign: self.old_reference(e, sign, taken)) if vanishes
                            else lambda e, _: self.old(self.at(e)),
                            lambda e: self.inverse_at(e), old_inverse, sums=sums).product()
        for g in taken:
            empty = isinstance(g, Op) and g.name == "eq" and isinstance(g.args[1], Const) and abs(g.args[1].value) == INF
            if out is not None and empty:
                out = Op("select", (self.old(g), Const(0.0, out.dtype), out), out.dtype)
        return out

    def change(self, follows: Follows) -> Change:
        """H(new) / H(old), factor by factor."""
        return self._changes(follows, self.at, lambda e, _: self.old(self.at(e)), self.inverse_at,
                             lambda e: self.old(self.inverse_at(e)))

    def last_change(self, follows: Follows) -> Change:
        """H(D) / H(reference), the last change of reference, factor by factor."""
        return self._changes(follows, self.running, lambda e, _: self.at(e), self.running, self.inverse_at, last=True)

    def _changes(self, follows: Follows, new: Callable[[Expr], Expr], old: Callable[[Expr, int], Expr],
                 new_inverse: Callable[[Expr], Expr], old_inverse: Callable[[Expr], Expr], last: bool = False,
                 sums: Sequence[Expr] = ()) -> Change:
        exponents: dict[str, Expr] = {}
        quotients: list[tuple[Expr, Expr, Fraction]] = []
        for base, q in follows:
            if isinstance(base, Op) and base.name in ("exp", "exp2"):
                b = base.args[0] if q == 1 else op("mul", base.args[0], number(q, base.dtype))
                exponents[base.name] = op("add", exponents[base.name], b) if base.name in exponents else b
            else:
                ends = (new_inverse(base), old_inverse(base))
                quotients.append((*(ends if q > 0 else ends[::-1]), abs(q)))
        return Change(tuple(quotients), tuple((name, self.difference(b, new, old, last, sums))
                                               for name, b in exponents.items()))

    def drift(self, p: Part) -> Expr:
        """``b(R new) - b(R old)`` for a shifted sum; of a logarithm ``log(H new / H old)``, one logarithm near 1."""
        if p.follows:
            moved = self.change(p.follows).logarithm(_base_of(p), last=False)
            return self._beside(p, moved, lambda e: self.at(e), lambda e, _: self.old(self.at(e)))
        if p.unit is not None:
            return self._moved(p, self.level, lambda e: self.old(self.level(e, [])), self.inverse_at(p.unit),
                               lambda e, _: self.at(e), lambda e, _: self.old(self.at(e)), self.scale(p))
        return self.difference(_second(p), lambda e: self.at(e), lambda e, _: self.old(self.at(e)), sums=self.sums(p.base))

    def last_drift(self, p: Part) -> Expr:
        """``b(D) - b(R)``."""
        if p.unit is not None:
            unit = self.inverse_at(p.unit) if self._own_unit(p) else self.running(p.unit)
            if p.true is not None:
                return op("div", op("sub", self.running(p.true), self.at(_second(p))), unit)
            return self._moved(p, lambda e, _: self.running(e), lambda e: self.level(e, []), unit,
                               lambda e, _: self.running(e), lambda e, _: self.at(e), self.last_scale(p))
        if p.true is not None:
            return op("sub", self.running(p.true), self.at(_second(p)))
        if p.follows:
            moved = self.last_change(p.follows).logarithm(_base_of(p), last=True)
            return self._beside(p, moved, self.running, lambda e, _: self.at(e))
        return self.difference(_second(p), self.running, lambda e, _: self.at(e))

    def _moved(self, p: Part, now: Callable[[Expr, list[Expr]], Expr], before: Callable[[Expr], Expr], unit: Expr,
               new: Callable[[Expr, int], Expr], old: Callable[[Expr, int], Expr], scale: Expr | None) -> Expr:
        """What ``(a + b) / unit + rest`` moves by, beside the change of its units."""
        step: Expr | None = None
        if to_poly(_second(p)):
            step = op("div", self.difference(_second(p), lambda e: new(e, 0), old), unit)
        if p.rest is not None and scale is not None:
            moved = op("sub", now(p.rest, []), op("mul", scale, before(p.rest)))
            step = moved if step is None else op("add", step, moved)
        return step if step is not None else Const(0.0, p.base.dtype)

    def _beside(self, p: Part, moved: Expr, new: Callable[[Expr], Expr], old: Callable[[Expr, int], Expr]) -> Expr:
        """What ``log(a H) + rest`` moves by, H by ``moved``."""
        return moved if p.rest is None else op("add", moved, self.difference(p.rest, new, old))


def _plus(x: Expr, y: Expr) -> Expr:
    """Their sum, a negated or absent summand spelled as such."""
    if isinstance(y, Const) and y.value == 0:
        return x
    return op("sub", x, y.args[0]) if isinstance(y, Op) and y.name == "neg" else op("add", x, y)


def _base_of(p: Part) -> str:
    """Which logarithm a part is."""
    return next(x.name for x in walk(_second(p)) if isinstance(x, Op) and x.name in ("log", "log2"))


def _second(p: Part) -> Expr:
    assert p.b is not None
    return p.b


def _ordered(p: Poly) -> list[tuple[Mono, Fraction]]:
    return sorted(p.items(), key=lambda t: [(str(b), q) for b, q in t[0]])
