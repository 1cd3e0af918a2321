"""What float64 itself may lose of a result, as the program computes it.

A difference of nearly equal numbers, or a logarithm of a sum of a thousand ones, has fewer right digits than float64 carries;
how many is a property of the terms, not of the result. Each value is held with a bound of its error, as the real and the
imaginary part of a complex number, and each operation carries the bounds on to first order and adds its own rounding. Products
and powers carry them on whole: the square of a difference that is 0 but for rounding is the square of that. So no comparison,
maximum or place ever comes out otherwise than in float64. A whole number does, where what is rounded to it lies so near the
middle of two (half of a row's maximum, in units of a 127th of it) that its own error decides: that is any number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.check.domains import Array
from redfuser.chain.truth import Wide, evaluate

UNIT = 2.0**-53
_BOOLEAN = frozenset({"isnan", "lt", "le", "gt", "ge", "eq", "ne"})
_WHOLE = frozenset({"round", "floor", "ceil"})
UNDECIDED = 1e250
"""The bound where rounding to a whole number may go either way; whatever is made of it is as large."""
_CHOICE = frozenset({"neg", "abs", "max", "min", "floor", "ceil", "round"})
"""Operations that round nothing."""


def losses(cascade: Cascade, inputs: Mapping[str, Array], steps: bool, unit: float = UNIT) -> dict[str, tuple[Array, Array]]:
    """Each result with a bound of its error where every operation rounds by ``unit``; of integers and bools, 0."""
    found = evaluate(cascade, inputs, Bounded(steps, unit)).outputs()
    return {n: (x.real, np.abs(x.imag)) if x.dtype.kind == "c" else (x, np.zeros(x.shape)) for n, x in found.items()}


class Bounded(Wide):
    """Complex numbers: a value in float64 and a bound of its error."""

    def __init__(self, steps: bool, unit: float = UNIT) -> None:
        super().__init__(steps)
        self.unit = unit

    def enter(self, x: Array, dtype: str) -> Array:
        value = super().enter(x, dtype)
        return _pair(value, self.unit * np.abs(value))

    def const(self, value: float, dtype: str) -> Array:
        return _pair(super().const(value, dtype), np.asarray(0.0))

    def op(self, name: str, args: list[Array], dtype: str) -> Array:
        values = [a.real for a in args]
        out = super().op(name, values, dtype)
        if name in _BOOLEAN:
            return out
        with np.errstate(all="ignore"):
            slopes = _SLOPES[name](out, *values)
            error = sum((_times(np.abs(s), np.abs(a.imag)) for s, a in zip(slopes, args, strict=True)), np.asarray(0.0))
            if name == "mul":
                error = error + np.prod([np.abs(a.imag) for a in np.broadcast_arrays(*args)], 0)
            elif name == "pow" and np.all(values[1] >= 1):
                base = np.abs(values[0])
                error = (base + np.abs(args[0].imag)) ** values[1] - base ** values[1]
            elif name in _WHOLE:
                ends = [super(Bounded, self).op(name, [values[0] + s * np.abs(args[0].imag)], dtype) for s in (-1, 1)]
                error = np.where(np.isfinite(args[0].imag) & (ends[0] != ends[1]), UNDECIDED, error)
            return _pair(out, error + (0.0 if name in _CHOICE else self.unit) * np.abs(out))

    def round(self, x: Array, source: str, target: str) -> Array:
        return _pair(super().round(x.real, source, target), np.abs(x.imag))

    def truncate(self, x: Array, dtype: str) -> Array:
        return super().truncate(x.real, dtype)

    def total(self, kind: str, x: Array, dtype: str) -> Array:
        value, error = super().total(kind, x.real, dtype), np.abs(x.imag)
        with np.errstate(all="ignore"):
            match kind:
                case "sum":
                    bound = np.sum(error + self.unit * np.abs(x.real), -1)
                case "prod":
                    bound = np.abs(value) * np.sum(error / np.abs(x.real) + self.unit, -1)
                case _:
                    bound = np.max(error, -1, initial=0.0)
        return _pair(value, bound)


def _pair(value: Array, error: Array) -> Array:
    out = np.empty(np.broadcast_shapes(value.shape, error.shape), np.complex128)
    out.real, out.imag = value, np.where(np.isnan(error), np.inf, error)
    return out


def _times(slope: Array, error: Array) -> Array:
    """What does not depend on an argument keeps nothing of its error, however large that is."""
    return np.where((slope == 0) | (error == 0), 0.0, slope * error)


_ONE = np.asarray(1.0)
_SLOPES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "add": lambda y, a, b: (_ONE, _ONE), "sub": lambda y, a, b: (_ONE, _ONE), "mul": lambda y, a, b: (b, a),
    "div": lambda y, a, b: (1 / b, y / b), "floordiv": lambda y, a, b: (0 * y, 0 * y), "mod": lambda y, a, b: (_ONE, a / b),
    "pow": lambda y, a, b: (b * y / a, y * np.log(np.abs(a))), "neg": lambda y, a: (_ONE,), "abs": lambda y, a: (_ONE,),
    "max": lambda y, a, b: ((y == a) * 1.0, (y == b) * 1.0), "min": lambda y, a, b: ((y == a) * 1.0, (y == b) * 1.0),
    "sqrt": lambda y, a: (0.5 / y,), "rsqrt": lambda y, a: (0.5 * y / a,), "exp": lambda y, a: (y,),
    "exp2": lambda y, a: (np.log(2.0) * y,), "log": lambda y, a: (1 / a,), "log2": lambda y, a: (1 / (np.log(2.0) * a),),
    "tanh": lambda y, a: (1 - y * y,), "sigmoid": lambda y, a: (y * (1 - y),),
    **dict.fromkeys(("erf", "erfc"), lambda y, a: (1.13 * np.exp(-a * a),)),
    "lgamma": lambda y, a: (np.log(np.abs(a) + 1) + 1 / np.abs(a) + 4 / np.abs(np.sin(np.pi * np.minimum(a, 0.5))),),
    "atan2": lambda y, b, a: (a / (a * a + b * b), b / (a * a + b * b)),
    "floor": lambda y, a: (0 * y,), "ceil": lambda y, a: (0 * y,),
    "round": lambda y, a: (0 * y,), "sin": lambda y, a: (np.cos(a),), "cos": lambda y, a: (np.sin(a),)}
"""Derivatives of an operation by its arguments, of any sign, from its result and them."""
