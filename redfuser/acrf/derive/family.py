"""The powers of a shifted sum: ``S_k = sum w (x - r) ** k``, moved from one reference to another.

By the binomial theorem ``S_k`` about ``r'`` is ``sum_j C(k, j) (r - r') ** (k - j) S_j`` (``S_j`` times ``(u / u') ** j`` where
what is summed is measured in units u): as the row is walked, where
states are merged, and once more at the end for the rounding error that a mean left in its first power.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product as cartesian
from math import comb

from redfuser.acrf.derive.derivation import F1, Derivation
from redfuser.acrf.expr import Const, Expr, Op, Ref, map_children, op, refs_of, walk
from redfuser.acrf.facts.normal import from_poly, product, to_poly


def rebased(own: Ref, k: tuple[int, ...], family: dict[tuple[int, ...], Ref], drifts: list[Expr],
            scales: list[Expr | None], ratio: Expr | None, dtype: str) -> Expr:
    """A member's old value about the new reference and in its units, from the old values of the members below it."""
    terms = []
    for j in cartesian(*(range(n + 1) for n in k)):
        old = own if j == k else family[j]
        factors: list[tuple[Expr, Fraction]] = [(Ref(f"{old.name}@old", dtype), F1)]
        coefficient = 1
        if ratio is not None:  # before a power of how far it moves, which might be infinite where the ratio is 0
            factors.append((ratio, F1))
        for n, i, delta, unit in zip(k, j, drifts, scales, strict=True):
            coefficient *= comb(n, i)
            if n > i:
                factors += [(delta, F1)] * (n - i)  # one by one: a power of it might be infinite where what it moves is 0
            if i and unit is not None:
                factors.append((unit, Fraction(i)))
        terms.append((sum(j), product(factors, dtype, Fraction(coefficient))))
    return sum_up([e for _, e in sorted(terms, key=lambda t: -t[0])], dtype)


def translated(family: dict[tuple[int, ...], Ref], powers: list[int], drifts: Sequence[Expr | None],
               dtype: str, scales: Sequence[Expr | None] = ()) -> Expr:
    """The last member about a reference moved by ``drifts`` (None: not moved), in units changed by ``scales``."""
    terms = []
    scales = scales or [None] * len(powers)
    for j in cartesian(*(range(n + 1) for n in powers)):
        if any(n > i and d is None for n, i, d in zip(powers, j, drifts, strict=True)):
            continue
        factors: list[tuple[Expr, Fraction]] = [(family[j], F1)]
        coefficient = 1
        for n, i, delta, unit in zip(powers, j, drifts, scales, strict=True):
            coefficient *= comb(n, i)
            if n > i and delta is not None:
                factors.append((delta, Fraction(n - i)))
            if i and unit is not None:
                factors.append((unit, Fraction(i)))
        terms.append((sum(j), product(factors, dtype, Fraction(coefficient))))
    out = sum_up([e for _, e in sorted(terms, key=lambda t: -t[0])], dtype)
    plain = all(s is None for s in scales) and all(d is None or refs_of(d) <= {m.name for m in family.values()} for d in drifts)
    return from_poly(to_poly(out), dtype) if plain and len(terms) > 1 else out


def residuals(work: Derivation, family: dict[tuple[int, ...], Ref], powers: list[int], dtype: str) -> list[Expr | None]:
    """Where a first-order member is 0 by definition of its reference (``sum (x - mean)``), what it holds is the
    rounding error of the reference: the way from the reference to the exact value, per shift."""
    out: list[Expr | None] = [None] * len(powers)
    if sum(powers) < 2:
        return out
    weight = family[tuple(0 for _ in powers)]
    for i in range(len(powers)):
        member = family.get(tuple(int(i == j) for j in range(len(powers))))
        if member is not None and _vanishes(work, member):
            safe: Expr = weight
            if not work.refs.is_count(weight.name):
                safe = Op("select", (Op("eq", (weight, Const(0.0, dtype)), "bool"), Const(1.0, dtype), weight), dtype)
            out[i] = Op("neg", (op("div", member, safe),), dtype)
    return out


def _vanishes(work: Derivation, member: Ref) -> bool:
    """Proved: the accumulator's sum is 0, because its reference is the weighted mean of its data."""
    a = work.refs.accumulators[member.name]
    body, masks = a.contribution, []
    while isinstance(body, Op) and body.name == "select" and body.args[2] == Const(0.0, a.dtype):
        masks.append(body.args[0])
        body = body.args[1]
    total: Expr | None = None
    known = {str(from_poly(to_poly(b.contribution), b.dtype)): Ref(b.name, b.dtype)
             for b in work.refs.accumulators.values() if b.reducer.kind == "sum" and b.name != member.name}
    for m, c in to_poly(body).items():
        outside = [(b, q) for b, q in m if not _has_data(work, b)]
        inside = [(b, q) for b, q in m if _has_data(work, b)]
        piece: Expr = product(inside, a.dtype) if inside else Const(1.0, a.dtype)
        for mask in reversed(masks):
            piece = Op("select", (mask, piece, Const(0.0, a.dtype)), a.dtype)
        text = str(from_poly(to_poly(piece), a.dtype))
        if text not in known:
            return False
        step = product([(known[text], F1), *outside], a.dtype, c)
        total = step if total is None else op("add", total, step)
    if total is None:
        return False
    n = [x for x in walk(total) if isinstance(x, Op) and x.name in ("max", "select")]
    # away from the guard, max(n, 1) = n and select(q == 0, 1, q) = q
    plain = total
    for g in n:
        inner = g.args[0] if g.name == "max" else g.args[2]
        plain = _swap(plain, g, inner)
    vanishes = not to_poly(plain)
    if vanishes:
        work.identities.append(f"{member.name} = {plain} = 0")
    return vanishes


def _has_data(work: Derivation, e: Expr) -> bool:
    return work.scope.raxis in work.scope.axes_of(e) or any(
        isinstance(x, Ref) and work.scope.kinds.get(x.name) == "X" for x in walk(e))


def sum_up(terms: list[Expr], dtype: str) -> Expr:
    """One sum of the terms, negated ones subtracted."""
    out: Expr | None = None
    for t in terms:
        if out is None:
            out = t
        elif isinstance(t, Op) and t.name == "neg":
            out = op("sub", out, t.args[0])
        else:
            out = op("add", out, t)
    return out if out is not None else Const(0.0, dtype)


def _swap(e: Expr, old: Expr, new: Expr) -> Expr:
    return new if e == old else map_children(e, lambda k: _swap(k, old, new))
