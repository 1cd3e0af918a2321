"""Hyperbolic tangents that are one instruction: where the hardware's own is near enough."""

from __future__ import annotations

import math

from redfuser.acrf.expr import Cast, Const, Expr, Load, Op, children
from redfuser.dtypes import UNIT
from redfuser.tensorize.ir.effects import every, reads, writes
from redfuser.tensorize.ir.nodes import Copy, For, If, Parallel, ReduceTile, Roles, TileKernel
from redfuser.tensorize.ir.parts import Slice

HALF = frozenset({"f16", "bf16"})
ERROR = 8e-6
"""What the instruction is off by, at most, on Hopper: measured on an H200 over every float32 from 2^-12 to 12; below, it is the
number itself to 2^-16 of it, and beyond, 1."""


def near(exact: bool, stored: set[str]) -> bool:
    """May a tangent be the hardware's? Where exponentials may be and all results are of half precision: scores that half
    precision happens to hold have no error of their own, and a total in single precision would show that of the tangent."""
    return not exact and stored <= HALF


def tangent(e: Expr, any_number: bool = False) -> tuple[Expr, float] | None:
    """``(x, k)`` of ``1 - 2 / (1 + exp2(...))`` that is ``tanh(x * k)``, of an ``x`` that was rounded to half precision here or
    of ``any_number``."""
    match e:
        case Op(name="sub", dtype="f32", args=(Const(value=1), Op(name="div", args=(Const(value=2), Op(name="add", args=(
                Const(value=1), Op(name="exp2", args=(Op(name="mul", args=(x, Const(value=k))),)))))))) if (
                any_number or computed_half(x)):
            return x, float(k) * math.log(2.0) / 2
    return None


def computed_half(e: Expr) -> bool:
    """A number of half precision that was computed, as single precision has it."""
    return isinstance(e, Cast) and e.dtype == "f32" and e.arg.dtype in HALF and not isinstance(e.arg, (Load, Const))


def flat(kernel: TileKernel) -> bool:
    """Are all tangents of a kernel with roles (which Hopper alone has) near enough, whatever they are of? They are where all
    that becomes of them are exponents of weights, so that an error is one of a weight, relative to it, as many times as large
    as the exponent is steep, and no more than a result of half precision keeps::

        s = 1 - 2 / (1 + exp2(s * 0.005));  s = select(.., s, -inf);  reduce max s -> m;  s = exp2((s - m) * 72.1)

    4.0e-4 of a weight for that cap of 50; float16 keeps 4.9e-4."""
    roles = kernel.body[-1]
    stored = [UNIT[p.dtype] for p in kernel.params if p.out and p.dtype in HALF]
    fragments = {b.name for b in kernel.buffers if b.scope == "fragment"}
    held: set[str] = set()
    body = [*every(roles.roles[0].body)] if isinstance(roles, Roles) and stored else []
    for s in (*body, *body):  # what one turn of a loop leaves, the next one finds
        match s:
            case Parallel(body=assigned):
                for a in assigned:
                    if (borne := _borne(a.expr, held, min(stored))) > 1 or (borne and a.target not in fragments):
                        return False
                    held = held | {a.target} if borne else held - {a.target}
            case ReduceTile(op="max" | "min", src=src, dst=dst) | Copy(src=Slice(buffer=src), dst=Slice(buffer=dst)) if (
                    src in held and dst in fragments):
                held = held | {dst}
            case _ if reads(s) & held and not isinstance(s, (For, If)):
                return False
            case _ if not isinstance(s, (For, If)):
                held = held - writes(s)
    return bool(body)


def _borne(e: Expr, held: set[str], least: float) -> float:
    """The error of a tangent in a value: 0, 1 where it is that of the tangent, infinity where it may be anything. least: what a
    weight may be off by."""
    match e:
        case Load(tensor=n):
            return float(n in held)
        case Op(name="select", args=(c, x, y)):
            return math.inf if _borne(c, held, least) else max(_borne(x, held, least), _borne(y, held, least))
        case Op(name="eq", args=(x, Const(value=v))) if math.isinf(v):
            return 0.0 if _borne(x, held, least) <= 1 else math.inf
        case Op(name="exp2", args=(Op(name="mul", args=(Op(name="sub", args=(x, y)), Const(value=k))),)) if (
                abs(k) * math.log(2.0) * ERROR <= least):
            return 0.0 if max(_borne(x, held, least), _borne(y, held, least)) <= 1 else math.inf
    inner = max((_borne(x, held, least) for x in children(e)), default=0.0)
    return math.inf if inner else float(tangent(e, True) is not None)
