"""The door of the engine: a cascade in, a proved fusion or a reasoned refusal out."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

from redfuser.acrf.cascade import Cascade, Let, Provenance, Reduce, Stmt
from redfuser.acrf.derive.centred import of_parts
from redfuser.acrf.derive.derivation import Row
from redfuser.acrf.derive.deriver import Deriver
from redfuser.acrf.derive.unread import leave_out
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, refs_of, walk
from redfuser.acrf.facts.classify import Outline, Scope, live, outline, rename, separate_axes
from redfuser.acrf.state import Accumulator, Certificate, Condition, Fused, NotFusable, Refuse, State, defect
from redfuser.errors import InputError

VERSION = "9"
"""Part of every memo key and certificate: raised whenever a derivation may come out differently."""

_MEMO: OrderedDict[str, Fused | NotFusable] = OrderedDict()
_MEMO_SIZE = 512


def key_of(cascade: Cascade, casts: str = "preserve", row: Row = "merged") -> str:
    """A digest of everything a derivation depends on: the canonical text, the extents, the policies, the version."""
    axes = ",".join(f"{a.name}={a.extent}" for a in cascade.axes)
    dtypes = ";".join(",".join(x.dtype for x in walk(s.expr)) for s in cascade.stmts)
    text = f"{VERSION}|{casts}{'' if row == 'merged' else f'|{row}'}|{axes}|{cascade}|{dtypes}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def fuse(cascade: Cascade, casts: str = "preserve", row: Row = "merged") -> Fused | NotFusable:
    """Derive one mergeable state for a cascade, with its certificate, or say why there is none.

    casts: ``preserve`` (roundings move only where they commute with a scale) or ``elide`` (roundings may be taken at
    running results; each is listed with a bound). row: for who holds a row on chip and merges no parts of it, a reduction may
    be taken of the whole row once the results that it reads are final (:data:`redfuser.acrf.derive.derivation.Row`). Raises
    InputError RF200 for a cascade that is not well formed and for an unknown policy, nothing else: an error of our own is a
    refusal too (RF902).
    """
    if casts not in ("preserve", "elide"):
        raise InputError("RF200", f"unknown cast policy {casts!r}", help="use casts=\"preserve\" or casts=\"elide\"")
    key = key_of(cascade, casts, row)
    found = _MEMO.get(key)
    if found is not None and (not isinstance(found, Fused) or found.cascade == cascade):
        _MEMO.move_to_end(key)
        return _with_provenance(found, cascade)
    out = _fuse(cascade, casts, key, row)
    _MEMO[key] = out
    while len(_MEMO) > _MEMO_SIZE:
        _MEMO.popitem(last=False)
    return out


def _with_provenance(found: Fused | NotFusable, cascade: Cascade) -> Fused | NotFusable:
    """The memoised derivation, with this cascade's own source lines."""
    if isinstance(found, NotFusable):
        stmt = next((s for s in cascade.stmts if found.statement in s.names), None)
        return replace(found, provenance=stmt.provenance if stmt else Provenance())
    lines = {s.names: s.provenance for s in cascade.stmts}

    def own(s: Stmt) -> Stmt:
        return replace(s, provenance=lines.get(s.names, s.provenance))

    return replace(found, cascade=cascade, producers=tuple(map(own, found.producers)), post=tuple(map(own, found.post)))


def _fuse(cascade: Cascade, casts: str, key: str, row: Row) -> Fused | NotFusable:
    check_form(cascade)
    extent = cascade.extent(cascade.raxis)
    done: list[str] = []
    statement = cascade.stmts[0].name if cascade.stmts else ""
    try:
        plain = separate_axes(cascade)
        o = outline(plain)
        d = Deriver(o, casts, row)
        reductions = {r.name: r for r in o.reductions}
        if not reductions:
            raise Refuse("RF211", f"{cascade.name} reduces over {cascade.raxis}", "there is no reduction over the r-axis",
                         "name the axis that the reductions share in 'over'")
        d.conditions.append(Condition(f"{cascade.raxis} has at least one element", "table" if isinstance(extent, int)
                                      else "guard", "segments may be empty, the whole row may not"))
        if extent == 0:
            raise Refuse("RF213", f"{cascade.raxis} has at least one element", "the r-axis is empty",
                         "leave empty reductions to the framework")
        for s in plain.stmts:
            statement = s.name
            if s.name in reductions:
                d.reduce(reductions[s.name])
                r = d.late.get(s.name)
                if r is not None or s.name in d.scope.late:
                    d.scope.late.update(s.names)
            d.ranges.declare(replace(s, expr=d.scope.inline(s.expr)) if isinstance(s, (Let, Reduce)) else s)
            done.append(s.name)
        statement = ""
        return _assemble(cascade, plain, o, d, casts, key)
    except Exception as error:
        e = error if isinstance(error, Refuse) else defect(f"the derivation of {cascade.name}", error)
        stmt = next((s for s in cascade.stmts if s.name == statement), None)
        prefix = tuple(done) if any(isinstance(s, Reduce) and s.over == cascade.raxis and s.name in done
                                    for s in cascade.stmts) else ()
        return NotFusable(e.code, statement or cascade.name, e.condition.replace("#", ""), e.why.replace("#", ""),
                          e.help, stmt.provenance if stmt else Provenance(), prefix)


def check_form(cascade: Cascade) -> None:
    """Names are defined before use and once; outputs exist. Raises InputError RF200."""
    known = {t.name for t in cascade.inputs}
    axes = {a.name for a in cascade.axes}
    if cascade.raxis not in axes:
        raise InputError("RF200", f"the r-axis {cascade.raxis} is not an axis of cascade {cascade.name}")
    seen: set[str] = set()
    for s in cascade.stmts:
        for n in refs_of(s.expr):
            if n not in seen:
                raise InputError("RF200", f"{s.name} reads {n}, which no earlier statement defines",
                                 where=f"cascade {cascade.name}", help="define it in an earlier statement")
        for n in s.names:
            if n in seen or n in known:
                raise InputError("RF200", f"{n} is defined twice", where=f"cascade {cascade.name}",
                                 help="give each statement its own name")
            seen.add(n)
    for n in cascade.outputs:
        if n not in seen:
            raise InputError("RF200", f"the output {n} is not a statement", where=f"cascade {cascade.name}")


# -- finalize ----------------------------------------------------------------------------------------------------------


def _assemble(cascade: Cascade, plain: Cascade, o: Outline, d: Deriver, casts: str, key: str) -> Fused:
    post = _post(plain, o, d)
    leave_out(d, cascade, post)
    finalize: list[Let] = []
    exposed = {e.name: e for e in d.exposed}
    reductions = {n: r for r in o.reductions for n in r.names}
    observed = _observed(plain, d, post)
    for name, value in d.values.items():
        r = reductions.get(name)
        axes = r.axes if r is not None else d.scope.axes[name]
        expr = value.plain
        if value.guards and not value.covered:
            if observed.get(name, True):
                expr = value.rooted
                d.choices.append(f"{name}: true results applied at the root, so that a row on which "
                                 f"{' or '.join(map(str, value.guards))} ends as in the source program")
            else:
                d.conditions.append(Condition(f"{name} is not observed where {' or '.join(map(str, value.guards))}",
                                              "table", "every reader is NaN there by itself"))
        finalize.append(Let(name, axes, expr, r.provenance if r is not None else Provenance()))
    finalize += exposed.values()
    read = {n for f in finalize for n in refs_of(f.expr)}
    accumulators = d.refs.whole(read)
    names = _final_names(accumulators, finalize, d)
    accumulators = tuple(replace(a, names=tuple(names.get(n, n) for n in a.names), contribution=rename(a.contribution, names),
                                 rebase=tuple(rename(e, names) for e in a.rebase)) for a in accumulators)
    lets = tuple(replace(f, expr=rename(f.expr, names)) for f in finalize)

    def text(s: str) -> str:
        for old, new in names.items():
            s = s.replace(old, new)
        return s

    decomposition, choices, identities, roundings = (
        tuple(dict.fromkeys(map(text, items))) for items in (d.decomposition, d.choices, d.identities, d.roundings))
    conditions = tuple(dict.fromkeys(Condition(text(c.text), c.discharged, text(c.detail)) for c in d.conditions))
    certificate = Certificate(key, decomposition, choices, conditions, identities, roundings, casts, (("version", VERSION),))
    return Fused(cascade, o.producers, State(accumulators, lets), post, certificate)


def _final_names(accumulators: tuple[Accumulator, ...], finalize: list[Let], d: Deriver) -> dict[str, str]:
    """An accumulator keeps its statement's name where ``finalize`` does not change its value."""
    same = {f.name for f in finalize if isinstance(f.expr, Ref) and f.expr.name == f"{f.name}#"}
    out: dict[str, str] = {}
    taken = set(d.taken) | {f.name for f in finalize}
    for a in accumulators:
        for n in a.names:
            if n.endswith("#"):
                base = n[:-1]
                new = base
                if base not in same:
                    new, i = f"{base}_acc", 2
                    while new in taken:
                        new, i = f"{base}_acc{i}", i + 1
                taken.add(new)
                out[n] = new
    return {**out, **{f"{k}@old": f"{v}@old" for k, v in out.items()}}


def _post(cascade: Cascade, o: Outline, d: Deriver) -> tuple[Let | Reduce, ...]:
    """What follows the reductions, in the source's order: late results, and the maps an output needs."""
    ordered: list[Stmt] = []
    extra = dict(d.late)
    written = {s.name for s in cascade.stmts}

    def with_parts(s: Stmt) -> list[Stmt]:
        """A late result behind those that it was made of and that the source has no name for."""
        parts = [x for n, x in extra.items() if n not in written and n in refs_of(s.expr)]
        return [*(y for x in parts for y in with_parts(x)), s]

    for s in cascade.stmts:
        if s.name in extra:
            ordered += with_parts(extra[s.name])
        elif s not in o.producers and not (isinstance(s, Reduce) and s.over == cascade.raxis):
            ordered.append(s)
    for name, parts in d.parts.items():
        ordered = [replace(s, expr=of_parts(d.scope, s.expr, name, parts, Ref(name, parts[0].dtype))) for s in ordered]
    return live(ordered, cascade.outputs)


# -- where a guard can be seen -----------------------------------------------------------------------------------------


def _observed(cascade: Cascade, d: Deriver, post: tuple[Let | Reduce, ...]) -> dict[str, bool]:
    """Per result with a guarded reference: can anyone tell its value where the guard was taken?

    Not when every reader is NaN there by itself: an expression over the row with ``x - m`` at ``m = -inf`` (then every x
    is -inf), a quotient of two such results (0/0), or a result whose own accumulator has the same guard."""
    out: dict[str, bool] = {}
    for name, value in d.values.items():
        if not value.guards:
            continue
        if not value.vanishes:
            out[name] = True
            continue
        facts = _facts(d, value.guards)
        if facts:
            same = set(map(str, value.guards))
            facts |= {n: Const(0.0, "f32") for n, v in d.values.items() if set(map(str, v.guards)) == same}
        seen = name in cascade.outputs
        for s in post:
            if name in _reads(d.scope, s.expr) and not (facts and _poisoned(d.scope.resolve(s.expr), facts)):
                seen = True
        for other, v in d.values.items():
            if other == name or name not in refs_of(v.plain) | refs_of(v.rooted):
                continue
            mine = set(map(str, value.guards))
            if not mine <= set(map(str, v.guards)) and not (facts and _poisoned(d.scope.resolve(v.plain), facts)):
                seen = True
        out[name] = seen
    return out


def _reads(scope: Scope, e: Expr) -> frozenset[str]:
    return refs_of(scope.resolve(scope.inline(e) if refs_of(e) & scope.inlined.keys() else e))


def _facts(d: Deriver, guards: tuple[Expr, ...]) -> dict[str, Expr]:
    """What a taken guard ``m == -inf`` says: m is -inf, and so is every element that m is the maximum of."""
    out: dict[str, Expr] = {}
    for g in guards:
        if not (isinstance(g, Op) and g.name == "eq" and isinstance(g.args[0], Ref) and isinstance(g.args[1], Const)):
            return {}
        name = g.args[0].name.rstrip("#")
        if name not in d.ranges.reductions:
            return {}
        edge = g.args[1]
        out[name] = edge
        body = d.ranges.reductions[name].expr
        out[str(body)] = edge
        out |= {a.name: edge for a in d.refs.accumulators.values()
                if a.contribution == body and a.reducer.kind in ("max", "min", "topk")}
    return out


def _poisoned(e: Expr, facts: dict[str, Expr]) -> bool:
    v = _abstract(e, facts)
    return v is not None and v != v


def _abstract(e: Expr, facts: dict[str, Expr]) -> float | None:
    """The value of an expression under the facts, or None when it is not known. NaN means NaN for certain."""
    known = facts.get(str(e)) if not isinstance(e, Const) else e
    if isinstance(known, Const) and known.dtype in FLOATS:
        return float(known.value)
    if isinstance(e, Cast) and e.dtype in FLOATS and e.arg.dtype in FLOATS:
        return _abstract(e.arg, facts)
    if not isinstance(e, Op) or e.dtype not in FLOATS or e.name in ("select", "min", "max", "pow"):
        return None
    args = [_abstract(a, facts) for a in e.args]
    if any(a is not None and a != a for a in args):
        return float("nan")
    inf = float("inf")
    match e.name, args:
        case "sub", [a, b] if a is not None and b is not None:
            return a - b
        case "add", [a, b] if a is not None and b is not None:
            return a + b
        case "neg", [a] if a is not None:
            return -a
        case "exp", [a] if a in (inf, -inf):
            return inf if a == inf else 0.0
        case "mul", [a, b] if a is not None and b is not None:
            return a * b
        case "div", [a, b] if a is not None and b is not None:
            return a / b if b != 0 else float("nan") if a == 0 else None
    return None
