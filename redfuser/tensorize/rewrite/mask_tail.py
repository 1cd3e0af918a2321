"""The padding of a ragged last segment."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.cascade import Reducer
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Load, Op, Ref
from redfuser.acrf.facts import algebra
from redfuser.strategies.alive import conjuncts
from redfuser.strategies.names import fresh
from redfuser.strategies.program import Kernel
from redfuser.tensorize.algebra import factors, fold, is_positive, product
from redfuser.tensorize.indexing import zero_filled
from redfuser.tensorize.masks import masked_operand
from redfuser.tensorize.rewrite.facts import Facts, Setting, is_value, learn, names_taken
from redfuser.tensorize.rewrite.name_terms import named

HARMLESS = {"max": "lowest", "topk": "lowest", "argmax": "lowest", "sum": "zero"}
"""What padding must be for a reducer not to see it."""
MAX = Reducer("max")


@dataclass(frozen=True, slots=True)
class MaskTail:
    """The padding past the end of a ragged row has the reducer's neutral element, unless it certainly has it already; what is
    maximised is masked once, and later contributions are neutral with it::

        p = f32(x[i, l]); m = m max max[l] p; t = t sum sum[l] exp(p - m)
        -->
        p = select(l < 100, f32(x[i, l]), -inf); m = m max max[l] p; t = t sum sum[l] exp(p - m)

    Adds no rounding."""

    def __call__(self, kernel: Kernel, at: Setting) -> Kernel:
        n = at.roles.segment
        if at.inside is None or n is None:
            return kernel
        facts, taken = learn(kernel, at), names_taken(kernel)
        inside = at.inside
        settled: set[str] = set()
        k = 0
        while k < len(kernel.body):
            b = kernel.body[k]
            k += 1
            kind = b.reducer.kind if b.reducer else ""
            if b.role != "reduce" or b.reducer is None or b.name in settled or (facts.counted(b) and not at.scattered):
                continue
            e, *beside = b.exprs
            padding = _Padding(facts, kernel, inside)
            if padding(e) == HARMLESS.get(kind):
                continue
            settled.add(b.name)
            neutral = algebra.neutral(b.reducer, e.dtype)[0]
            if kind == "sum" and at.roles.column_of(b.axes):  # a product: the factor that is not masked may be NaN there
                masked = product(tuple(p if not facts.along(p) or padding(p) == "zero" else masked_operand(p, inside)
                                       for p in factors(e)))
            else:
                masked = fold(Op("select", (inside, e, neutral), e.dtype))
            if kind != "max" or facts.level(e) - at.row != {n}:
                kernel = replace(kernel, body=(*kernel.body[:k - 1], replace(b, exprs=(masked, *beside)), *kernel.body[k:]))
            elif isinstance(e, Ref) and e.name in facts.lets:
                masked = fold(Op("select", (inside, facts.lets[e.name], neutral), e.dtype))
                kernel = replace(kernel, body=tuple(replace(x, exprs=(masked,)) if is_value(x) and x.name == e.name else x
                                                    for x in kernel.body))
                facts, k = learn(kernel, at), 0  # those before may have counted on what its padding was
            else:
                name = fresh(f"{b.name}_term", taken)
                level = facts.level(e) | (at.row if facts.one_for_all_rows(e) else frozenset())
                kernel = named(kernel, facts, k - 1, e, facts.value(name, masked, level, (*b.axes, n)))
                facts, k = learn(kernel, at), k + 1
        return kernel


@dataclass(frozen=True, slots=True)
class _Padding:
    """What a value certainly is in the padding past the row's end, whatever the data: ``zero``, ``lowest`` (-inf, or the least
    whole number), ``finite``, or nothing known. A weight of 0 does not settle a product: the other factor may be infinite
    there."""

    facts: Facts
    kernel: Kernel
    inside: Expr

    def __call__(self, e: Expr) -> str:
        match e:
            case Const(value=v, dtype=d):
                lowest = v == algebra.neutral(MAX, d)[0].value
                return "zero" if v == 0 else "lowest" if lowest else "finite" if abs(v) < float("inf") else ""
            case Load(tensor=t, indices=indices):
                shape = next(x.shape for x in (*self.kernel.reads, *self.kernel.writes) if x.name == t)
                roles = self.facts.at.roles
                return "zero" if zero_filled(indices, map(int, shape), roles.segment or "", roles.extents) else ""
            case Ref(name=n) if n in self.facts.lets:
                return self(self.facts.lets[n])
            case Cast(arg=x, dtype=d):
                return "finite" if (found := self(x)) == "lowest" and (d not in FLOATS or x.dtype not in FLOATS) else found
            case Op(name="select", args=(c, x, y)):
                first = "zero" if self.inside in conjuncts(c) else self(x)
                return self(y) if self.inside in conjuncts(c) or first == self(y) else ""
            case Op(name="neg" | "abs", args=(x,)):
                return {"lowest": ""}.get(found := self(x), found)
            case Op(name="exp" | "exp2", args=(x,)):
                return {"lowest": "zero", "zero": "finite"}.get(self(x), "")
            case Op(name="mul" | "div", args=(x, k), dtype=d) if is_positive(k) and d in FLOATS:
                return self(x)
            case Op(name="mul", args=(k, x), dtype=d) if is_positive(k) and d in FLOATS:
                return self(x)
            case Op(name="sub", args=(x, y), dtype=d) if d in FLOATS and self(x) == "lowest" and self.facts.per_row(y):
                return "lowest"  # a reference of the row is -inf or NaN only where every element of it is
            case Op(name="add" | "sub" | "mul" as name, args=(x, y)):
                pair = {self(x), self(y)}
                if not pair <= {"zero", "finite"}:
                    return "lowest" if name == "add" and pair == {"lowest", "zero"} else ""
                return "zero" if pair == {"zero"} or (name == "mul" and "zero" in pair) else "finite"
        return ""
