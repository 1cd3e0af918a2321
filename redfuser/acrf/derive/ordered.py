"""Ordered reducers (max, min, any, all, argmax, argmin, topk): the reducer moves inside a monotone map of data.

    max phi(G(x)) = phi(max G(x))      both extrema where phi turns; argmax and topk choose the same elements before phi
"""

from __future__ import annotations

from redfuser.acrf.cascade import Reduce, Reducer
from redfuser.acrf.derive.bounds import follows_maximum
from redfuser.acrf.derive.cases import Case, split_cases
from redfuser.acrf.derive.decomposition import Decomposition, where
from redfuser.acrf.derive.derivation import F1, Derivation, Value, explain, own_name, spell_decomposition
from redfuser.acrf.derive.indicator import data_only, kept, moving, needs_opposite, placed
from redfuser.acrf.derive.monotone import HOLE, Monotonic, monotonic
from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Load, Op, Ref, op, refs_of, walk
from redfuser.acrf.facts.algebra import INF, PAYLOAD, accumulator_dtype, neutral
from redfuser.acrf.facts.normal import from_poly, product, to_poly
from redfuser.acrf.state import Refuse


def derive_ordered(work: Derivation, r: Reduce) -> None:
    """Accumulators and value of an ordered reducer whose map reads results. Raises Refuse."""
    d = work.decomposer()
    cases = split_cases(d, r.expr)
    kind = r.reducer.kind
    if kind in PAYLOAD and any(ds for _, ds, _ in cases):
        raise Refuse("RF204", f"{r.expr} has no condition on results",
                     "which arm counts is decided by a result of the whole row",
                     "apply the condition to the result of the reduction")
    scaled = _scaled_extremum(work, r, d) if kind in ("max", "min") and len(cases) == 1 else None
    if scaled is not None:
        return
    if kind in PAYLOAD:
        _payload(work, r, d, cases)
        return
    nothing = neutral(r.reducer, r.expr.dtype)[0]
    cases = [c for c in cases if c[2] != nothing] or cases[:1]
    parts = [_case_extremum(work, r, d, case, work.fresh(f"{r.name}_{i}") if len(cases) > 1 else own_name(r.name))
             for i, case in enumerate(cases)]
    join = {"any": "or", "all": "and"}.get(kind, kind)
    value = parts[0]
    for p in parts[1:]:
        value = Op(join, (value, p), value.dtype)
    if value.dtype != r.dtype:
        value = Cast(value, r.dtype)
    work.decomposition.append(f"{r.name} = {r.reducer}[{r.over}] {r.expr}")
    work.set_value(r.name, Value(value, value), value)
    if len(cases) == 1 and cases[0][:2] == ((), ()) and kind in ("max", "min") and r.dtype == r.expr.dtype:
        _moved(work, r, monotonic(d, r.expr))


def _moved(work: Derivation, r: Reduce, m: Monotonic) -> None:
    """``max(x - u)`` is ``max x`` moved by u: where an accumulator follows both, as that of ``exp(x - u - max(x - u))`` does,
    how far u moves cancels."""
    held = [n for n in refs_of(work.values[r.name].plain) if n in work.refs.accumulators
            and work.refs.accumulators[n].reducer == r.reducer and work.refs.accumulators[n].contribution == m.inner]
    if m.shape.direction == 1 and m.steps and held and all(
            isinstance(s, Op) and (s.name in ("add", "sub") or (s.name in ("mul", "div") and any(
                isinstance(x, Const) and x != HOLE for x in s.args))) for s in m.steps):
        own = Ref(held[0], m.inner.dtype)
        work.scope.kinds.setdefault(own.name, "D")
        work.refs.values.setdefault(own.name, own)
        work.refs.moved[r.name] = from_poly(to_poly(m.outer(own)), r.dtype)


def _case_extremum(work: Derivation, r: Reduce, d: Decomposition, case: Case, name: str) -> Expr:
    """The extremum of one case: phi of the extremum (or extrema) of its data."""
    xs, ds, leaf = case
    kind = r.reducer.kind
    largest = kind in ("max", "any")
    m = monotonic(d, leaf)
    _keeps_its_digits(work, leaf, m)
    if kind in ("any", "all") and not m.steps:
        return _best(work, r, name, Reducer(kind), m.inner, xs, r.axes)
    dtype = m.inner.dtype
    lost: list[tuple[Op, Expr]] = []
    if m.shape.direction:
        which = "max" if (m.shape.direction > 0) == largest else "min"
        lost = _lost_scales(work, m, which)
        ends = [which]
        if any(not _read(work, h) <= _read(work, m.inner) for _, h in lost):  # the infinity may be another's
            ends, lost = [*ends, "min" if which == "max" else "max"], []
    else:
        if not (m.shape.convex if largest else m.shape.concave):
            raise Refuse("RF209", f"{leaf} has its {kind} at an end of the range of {m.inner}",
                         f"it is {'quasi-concave' if largest else 'quasi-convex'} in the data, so its {kind} lies inside "
                         "the range, at an element that moves with the results",
                         "compute the results in an earlier pass, so that they are inputs of the cascade")
        ends = ["max", "min"]
    single = len(ends) == 1
    values = []
    truth = kind in ("any", "all") and dtype in FLOATS
    nan = Op("isnan", (m.inner,), "bool")
    for end in ends:
        label = name if single else work.fresh(f"{r.name}_{end}")
        acc = _best(work, r, label, Reducer(end), m.inner, ((nan, False), *xs) if truth else xs, r.axes)
        value = _available(work, m.outer(acc))
        for cond, _ in lost if value.dtype in FLOATS else ():
            value = Op("select", (cond, Const(float("nan"), value.dtype), value), value.dtype)
        if xs:
            edge = neutral(Reducer(end), dtype)[0]
            empty = Op("eq", (acc, edge), "bool")
            value = Op("select", (empty, neutral(Reducer(kind), value.dtype)[0], value), value.dtype)
        values.append(value)
    if m.steps:
        what = {1: "rises", -1: "falls"}.get(m.shape.direction, "takes its extremum at an end")
        work.choices.append(f"{r.name}: the map of {m.inner} {what}, so it is applied once to the reduced data")
    if truth and not _neutral_at_nan(m.steps, largest):
        seen = _best(work, r, work.fresh(f"{r.name}_nan"), Reducer("any"), nan, xs, r.axes)
        there = _available(work, m.outer(Const(float("nan"), dtype)))
        values.append(Op("and", (seen, there), "bool") if largest else
                      Op("or", (Op("not", (seen,), "bool"), there), "bool"))
    join = {"any": "or", "all": "and"}.get(kind, kind)
    out = values[0]
    for v in values[1:]:
        out = Op(join, (out, v), out.dtype)
    return where([(_available(work, c), side) for c, side in ds][::-1], out, neutral(r.reducer, out.dtype)[0])


def _keeps_its_digits(work: Derivation, leaf: Expr, m: Monotonic) -> None:
    """``(x - u) + s`` is not ``(x + s) - u`` where u follows x (its maximum, mean, logsumexp): the program's difference has the
    digits of what the row is beside u, the sum those of x alone. Raises Refuse."""
    if not (isinstance(m.inner, Op) and m.inner.name in ("add", "sub") and m.inner.dtype in FLOATS):
        return
    if m.inner in walk(work.scope.inline(leaf)):  # the program's own sum
        return
    for step in m.steps:
        for u in step.args if isinstance(step, Op) and step.name in ("add", "sub") else ():
            if u != HOLE and refs_of(u) and _below(work, u) & _below(work, m.inner):
                raise Refuse("RF207", f"{leaf} keeps its digits as ({m.inner}) moved by {u}",
                             "the result follows a part of the data, and their difference, which the program takes first, has "
                             "digits that the sum of all data has lost where that part is large beside it",
                             "reduce the data before it is moved, or compute the results in an earlier pass")


def _below(work: Derivation, e: Expr) -> frozenset[str]:
    """The tensors that an expression and all statements below it read."""
    stmts = {n: s for s in work.scope.cascade.stmts for n in s.names}
    found, seen, ahead = set[str](), set[str](), [e]
    while ahead:
        for x in walk(ahead.pop()):
            if isinstance(x, Load):
                found.add(x.tensor)
            elif isinstance(x, Ref) and x.name in stmts and x.name not in seen:
                seen.add(x.name)
                ahead.append(stmts[x.name].expr)
    return frozenset(found)


def _lost_scales(work: Derivation, m: Monotonic, end: str) -> list[tuple[Op, Expr]]:
    """Where a scale that is never 0 over the reals is lost to an infinity (``rsqrt(inf)``, ``1 / inf``), ``h * max x`` is 0,
    and in the program an infinite element at the other end makes ``0 * inf``, and the extremum NaN. With each the scale."""
    data = work.ranges.of(m.inner)
    if m.inner.dtype not in FLOATS or (data.lo > -INF if end == "max" else data.hi < INF):
        return []
    out: list[tuple[Op, Expr]] = []
    for step in m.steps:
        if isinstance(step, Op) and step.name in ("mul", "div") and step.args.count(HOLE) == 1:
            h = step.args[1 - step.args.index(HOLE)]
            near = _available(work, h)
            if work.scope.kind(h) == "D" and step.name == "div" and step.args[0] == HOLE:
                out.append((Op("eq", (Op("abs", (near,), h.dtype), Const(INF, h.dtype)), "bool"), h))
            elif work.scope.kind(h) == "D" and step.name == "mul" and work.ranges.of(work.scope.resolve(h)).nonzero:
                out.append((Op("eq", (near, Const(0.0, h.dtype)), "bool"), h))
    return out


def _read(work: Derivation, e: Expr) -> frozenset[str]:
    """The tensors that an expression, and the reductions in it, read."""
    e = work.scope.inline(e)
    below = [work.ranges.reductions[n].expr for n in refs_of(work.scope.resolve(e)) if n in work.ranges.reductions]
    return frozenset(x.tensor for x in walk(e) if isinstance(x, Load)).union(*(_read(work, x) for x in below))


def _neutral_at_nan(steps: tuple[Expr, ...], some: bool) -> bool:
    """Does an element that is NaN leave ``any`` (``some``) or ``all`` as it is? A comparison with NaN is false."""
    last = steps[-1]
    return some and isinstance(last, Op) and last.name in COMPARISONS


def _available(work: Derivation, e: Expr) -> Expr:
    e = work.scope.resolve(e)
    late = refs_of(e) & (work.scope.late | work.late.keys())
    if late:
        raise Refuse("RF214", f"{sorted(late)[0]} is available while the row is being reduced",
                     "it is a contraction of results over another axis", "split the program after that contraction")
    return e


def _best(work: Derivation, r: Reduce, name: str, reducer: Reducer, inner: Expr, xs: tuple[tuple[Expr, bool], ...],
          axes: tuple[str, ...]) -> Ref:
    """An extremum of data, where the case applies."""
    edge = neutral(reducer, inner.dtype)[0]
    reverse = needs_opposite(work, xs)
    opposite = None if reverse is None else _best(work, r, work.fresh(f"{r.name}_at"), reducer, inner, reverse, axes)
    body = where([(placed(work, c), side) for c, side in reversed(xs)][::-1], inner, edge)
    join = {"any": "or", "all": "and"}.get(reducer.kind, reducer.kind)

    def rebase(own: Ref) -> Expr:
        before = opposite and Ref(f"{opposite.name}@old", opposite.dtype)
        return kept(work, xs, Ref(f"{own.name}@old", own.dtype), before, edge, join)

    return work.accumulate((name,), axes, reducer, inner.dtype, body, rebase if moving(work, xs) else None)[0]


def _payload(work: Derivation, r: Reduce, d: Decomposition, cases: list[Case]) -> None:
    """argmax, argmin, topk: a strictly monotone map keeps the order, so the same elements win."""
    kind = r.reducer.kind
    worst = neutral(r.reducer, r.expr.dtype)[0]
    live = [c for c in cases if c[2] != worst]
    if len(live) != 1:
        raise Refuse("RF209", f"{r.expr} is one map of data", "its arms map data differently, so their order changes with "
                     "the results", "reduce the arms separately")
    xs, _, leaf = live[0]
    data_only(d, xs)
    m = monotonic(d, leaf)
    if not m.shape.strict or not m.shape.direction:
        raise Refuse("RF209", f"{leaf} is strictly monotone in the data",
                     "elements with equal images (all of them, where a factor is 0) tie, and ties go to the lowest index"
                     if m.shape.direction else "the direction of the map depends on the sign of a result",
                     "reduce the data first and map the chosen elements")
    inner, falling = m.inner, m.shape.direction < 0
    if falling:
        inner = Op("neg", (m.inner,), m.inner.dtype)

    edge = neutral(r.reducer, inner.dtype)[0]
    body = where(xs, inner, edge)
    names = tuple(map(own_name, r.names)) if kind == "topk" else (work.fresh(f"{r.name}_value"), own_name(r.name))
    values, places = work.accumulate(names, r.axes, r.reducer, inner.dtype, body, None)
    work.choices.append(f"{r.name}: the map of {inner} is strictly monotone, so the same elements are chosen before it")
    work.decomposition.append(f"{', '.join(r.names)} = {r.reducer}[{r.over}] {r.expr}")
    if kind == "topk":
        chosen = _available(work, m.outer(Op("neg", (values,), values.dtype) if falling else values))
        if xs:
            chosen = Op("select", (Op("eq", (values, edge), "bool"), worst, chosen), chosen.dtype)
        if chosen.dtype != r.expr.dtype:
            chosen = Cast(chosen, r.expr.dtype)
        work.set_value(r.name, Value(chosen, chosen), chosen)
    index = places if places.dtype == "i64" else Cast(places, "i64")
    work.set_value(r.names[-1], Value(index, index), index)


def _scaled_extremum(work: Derivation, r: Reduce, d: Decomposition) -> bool | None:
    """max of non-negative data times an exponential of data and results: rebased, as under a sum."""
    saved = (len(work.conditions), len(work.roundings))
    try:
        monotonic(d, r.expr)
        del work.conditions[saved[0]:]
        del work.roundings[saved[1]:]
        return None
    except Refuse as first:
        del work.conditions[saved[0]:]
        try:
            terms = d.terms(r.expr)
        except Refuse:
            raise first from None
        if len(terms) != 1 or terms[0].of("shift") or not terms[0].of("scaled") or terms[0].conds:
            raise
        t = terms[0]
        if not all(work.ranges.nonneg(b) for p in t.of("scaled") for b, _ in p.follows) or t.coefficient < 0 or not all(
                work.ranges.nonneg(p.base) for p in t.of("d")):
            raise
        if any(refs_of(work.scope.resolve(p.base)) & work.scope.late for p in t.of("d")):
            raise
    dtype = accumulator_dtype(r.expr.dtype)
    guards: list[Expr] = []
    follows = tuple(f for p in t.of("scaled") for f in p.follows)
    sums = [s for p in t.of("scaled") for s in work.refs.sums(p.base)]
    ratio = work.refs.ratio(follows, all(follows_maximum(d, p, t.conds) for p in t.of("scaled")), sums=sums)
    assert ratio is not None
    body = product([(work.refs.place(p.base, guards), p.power) for p in t.parts if p.kind in ("x", "scaled")], dtype)
    edge = neutral(r.reducer, dtype)[0]

    def rebase(own: Ref) -> Expr:
        old = Ref(f"{own.name}@old", own.dtype)
        return Op("select", (Op("eq", (old, edge), "bool"), edge, op("mul", old, ratio)), dtype)

    main = work.share(own_name(r.name), r.axes, dtype, body, rebase, r.reducer)
    back = work.refs.last_change(follows).product()
    results = [(work.scope.resolve(p.base), p.power) for p in t.of("d")]
    plain = product([(main, F1), *results], dtype, t.coefficient)
    rooted = product([(op("mul", main, back), F1), *results], dtype, t.coefficient) if guards and back else plain
    work.decomposition.append(spell_decomposition(r, [t]))
    explain(work, r, follows, ())
    work.set_value(r.name, Value(plain, rooted, tuple(guards)), plain)
    return True
