"""Differences that no compiler may contract to a multiply-add.

A GPU's compilers make one operation of a product and the sum or difference that takes it, and leave out the product's rounding.
That is no gain where a step follows or a statistic is taken (:mod:`redfuser.acrf.steps`), none in half precision, where the
program's own rounding, and the infinity that it may be, is what the next operation has to see, and none in what is computed of
rows alone to be a result: two results of a row may be one and the same, rounded alike. Interpreters cannot see it: what is
said here is not in the tile program but in its text::

    exp2((x * c - m) * 1.44)                -->    exp2(sub_rn(x * c, m) * 1.44)
    y = log(t) + m + b * s    of rows       -->    y = sub_rn(log(t) + m, -(b * s))
    a * b + c            in half precision  -->    half(float(a * b) + float(c))

CUDA's ``__fsub_rn`` is never contracted (CUDA Math API, single precision intrinsics); two halves add in single precision,
rounded once, as they add by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op
from redfuser.acrf.steps import COARSE, STEPS, SUMS, a_statistic
from redfuser.tensorize.ir.effects import bodies, every, writes
from redfuser.tensorize.ir.nodes import Copy, Gemm, Parallel, ReduceTile, TileKernel

_HALVES = ("f16", "bf16")


@dataclass(frozen=True, slots=True)
class Contractions:
    """Of one kernel. products: register tiles that hold a product somewhere; always: of these, those that hold nothing else;
    steps: those that a step is of, scaled or chosen from but not summed with anything: a sum's own rounding is the same
    wherever its result is read; results: what leaves the kernel, of a kernel that reduces rows."""

    products: frozenset[str]
    always: frozenset[str]
    steps: frozenset[str]
    results: frozenset[str]

    @classmethod
    def of(cls, kernel: TileKernel) -> Contractions:
        own = {b.name: b.dtype for b in kernel.buffers if b.scope == "fragment"}
        assigned = [a for s in every(kernel.body) if isinstance(s, Parallel) for a in s.body]
        as_is = [a for a in assigned if own.get(a.target) == a.expr.dtype]
        products = frozenset(a.target for a in as_is if _is_product(a.expr, frozenset()))
        others = {a.target for a in assigned if not _is_product(a.expr, frozenset())} | {
            n for s in every(kernel.body) if not isinstance(s, Parallel) and not bodies(s) for n in writes(s)}
        steps: frozenset[str] = frozenset()
        while more := {n for a in assigned for n in _reached(a.expr, a.target in steps)} & set(own) - steps:
            steps |= more
        reduces = any(isinstance(s, (Gemm, ReduceTile)) for s in every(kernel.body))
        out = {p.name for p in kernel.params if p.out and reduces}
        copied = {s.src.buffer for s in every(kernel.body) if isinstance(s, Copy) and s.dst.buffer in out}
        return cls(products, products - others, steps, frozenset(out | copied))

    def settled(self, target: str, e: Expr, row: bool) -> Expr:
        """``e`` as it is assigned to ``target``, with what must not be contracted said. row: is it of rows alone?"""
        return self._settled(e, target in self.steps, row and target in self.results)

    def _settled(self, e: Expr, step: bool, result: bool) -> Expr:
        match e:
            case Cast(arg=arg, dtype=d):
                inner = self._settled(arg, step or d in COARSE, result)
                return e if inner is arg else Cast(inner, d)
            case Op(name=n, args=args, dtype=d):
                inside = tuple(self._settled(a, (step and n not in SUMS) or n in STEPS, result) for a in args)
                if n in SUMS and any(_is_product(a, self.products) for a in args):
                    if d in _HALVES:
                        return Cast(Op(n, tuple(map(_wide, inside)), "f32"), d)
                    whole = result and not any(isinstance(a, Const) for a in args)
                    if d == "f32" and (whole or (n == "sub" and (step or self._a_statistic(*args)))):
                        return Op("sub_rn", inside if n == "sub" else (inside[0], Op("neg", inside[1:], d)), d)
                return e if all(x is y for x, y in zip(inside, args, strict=True)) else Op(n, inside, d)
        return e

    def _a_statistic(self, x: Expr, y: Expr) -> bool:
        return any(_is_product(p, self.always) and a_statistic(s, p) for p, s in ((x, y), (y, x)))


def _reached(e: Expr, step: bool) -> Iterator[str]:
    """The tiles that steps in ``e`` (or ``e`` itself) are of."""
    match e:
        case Load(tensor=n) if step:
            yield n
        case Cast(arg=arg, dtype=d):
            yield from _reached(arg, step or d in COARSE)
        case Op(name=n, args=args):
            for a in args:
                yield from _reached(a, (step and n not in SUMS) or n in STEPS)


def _is_product(e: Expr, products: frozenset[str]) -> bool:
    match e:
        case Op(name="mul"):
            return True
        case Op(name="neg", args=(x,)):
            return _is_product(x, products)
        case Load(tensor=n):
            return n in products
    return False


def _wide(e: Expr) -> Expr:
    return Const(e.value, "f32") if isinstance(e, Const) else Cast(e, "f32")
