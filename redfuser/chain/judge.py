"""How a result is judged, the same for every kernel: class by class first, then by size.

``digits``: everything was computed in float64 and no rounding was taken, so nothing may differ but the order of sums.
``rule``: everything was computed in its own dtype; NaN, +inf, -inf and finite stand where the program, or the exact values
rounded to the result's dtype, put them, and the error is within :mod:`redfuser.rule` of the unfused program's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from redfuser.acrf.check.domains import NUMPY, Array
from redfuser.chain.losses import UNDECIDED
from redfuser.rule import UNIT, limit, tiny

SPREAD = 1.25
"""A twin is one small sample: what its limit of error is multiplied by."""
DIGITS = 1e-9
"""The relative difference that float64 may show, of the largest result in its row."""


USUAL = 64
"""Units of error beyond which a band says nothing of the others."""
LOST = 0.5
"""The relative error beyond which a result of extreme inputs is lost."""


@dataclass(frozen=True, slots=True)
class Bands:
    """Results of one output that are judged among themselves: the band of every point of one of its dimensions."""

    dim: int
    count: int

    def split(self, *arrays: Array) -> list[tuple[Array, ...]]:
        n = arrays[0].shape[self.dim]
        groups = [np.arange(n) % self.count == k for k in range(min(self.count, n))]
        return [tuple(np.compress(g, a, axis=self.dim) for a in arrays) for g in groups]


def digits(got: Array, want: Array, bands: Bands | None = None, ranked: Array | None = None, lost: Array | float = 0.0) -> str:
    """Empty when ``got`` has the digits of ``want`` (both float64, or integers), else what differs. The inputs being finite,
    NaN and the infinities are one class (docs/algebra.md). lost: what ``want`` itself may be off by."""
    if got.dtype.kind == "V":  # few values: those, and NaN for NaN
        got, want = got.astype(np.float64), np.asarray(want).astype(np.float64)
        differ = ~((got == want) | (np.isnan(got) & np.isnan(want)))
        return _first(got, want, differ) if differ.any() else ""
    if got.dtype.kind != "f":
        if ranked is None or np.array_equal(got, want):
            return "" if np.array_equal(got, want) else _first(got, want, got != want)
        got, want = _at(ranked, np.clip(got, 0, ranked.shape[-1] - 1)), _at(ranked, want)
    finite = np.isfinite(want)
    if (wrong := (finite != np.isfinite(got)) | _opposite(got, want)).any():
        return "class: " + _first(got, want, wrong)
    size, undecided = np.where(finite, np.abs(want), 0.0), np.asarray(lost) > UNDECIDED**0.5
    lost = np.where(undecided, 0.0, lost)
    if want.ndim and want.shape[-1] > 1 and (bands is None or bands.dim != want.ndim - 1):
        size, lost = (np.max(x, -1, keepdims=True) if np.ndim(x) else x for x in (size, lost))
    with np.errstate(all="ignore"):
        bad = finite & ~undecided & ~(np.abs(got - want) <= DIGITS * size + lost + 1e-290)
    return _first(got, want, bad) if bad.any() else ""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Where results see none of one tensor's NaN and infinities, and the program's and the exact results without them
    (:mod:`redfuser.unseen`)."""

    where: Array
    program: Array
    exact: Array


@dataclass(frozen=True, slots=True)
class Want:
    """What an output should be: the unfused program's results, the exact ones, and what else the table of edge values
    (docs/algebra.md) lets it be.

    hidden: what a mask hides may be as if it were not there. top: exact results beyond it may have overflowed on the way.
    extreme: the inputs are so large that their squares overflow; where that cost the unfused program its result, nothing is
    asked of ours. overflown: where it cost the program a reduction, so that what is made of it is near the exact result by
    chance. ranked: of an index, the values that it chooses among, along the last dimension (exact, and as the program has
    them): equal ones are as good. has_nan: of the inputs; without one, NaN and the infinities are one class. bands:
    results judged among themselves. more: error relative to their size that listed roundings may add. unbounded: where an
    infinite element makes a result infinite, so that NaN may stand for a finite one."""

    program: Array
    exact: Array
    dtype: str
    hidden: Callable[[], list[Hidden]]
    top: float
    extreme: bool = False
    overflown: Array | bool = False
    has_nan: bool = False
    ranked: tuple[Array, Array] | None = None
    bands: Bands | None = None
    more: float = 0.0
    unbounded: Array | bool = False


def rule(got: Array, want: Want, noise: Array | float = 0.0) -> str:
    """Empty when ``got`` is right, else what is wrong. noise: what the program itself may be off by in single precision; a
    result that is no more than that has no right digit, and may be any number of that size."""
    if want.dtype not in UNIT:
        return _integers(got, want)
    a: Array = got.astype(np.float64)
    b: Array = want.program.astype(np.float64)
    z = np.asarray(want.exact, np.float64)
    beyond = np.isfinite(z) & (np.abs(z) > want.top)
    if want.extreme:
        with np.errstate(all="ignore"):
            beyond |= np.isfinite(z) & (~(np.abs(b - z) <= LOST * np.abs(z)) | want.overflown)
    wrong = ~(beyond | _same_class(a, b) | _same_class(a, _stored(z, want.dtype)))
    flipped = wrong & _opposite(a, b)  # where rounding decides a weight's sign, on some draws only
    wrong &= ~flipped
    if not want.has_nan:
        wrong &= np.isfinite(a) | np.isfinite(b)
    wrong &= ~(np.isnan(a) & want.unbounded)
    if wrong.any():
        wrong &= ~_at_the_top(a, b, z, want.dtype)
        with np.errstate(all="ignore"):
            wrong &= ~(np.isfinite(z) & (np.abs(z) <= noise) & (np.abs(a - z) <= noise))
    for h in want.hidden() if (wrong & ~np.isnan(a)).any() else ():
        theirs: Array = h.program.astype(np.float64)
        spared = wrong & ~np.isnan(a) & h.where & (_same_class(a, theirs) | _same_class(a, _stored(h.exact, want.dtype)))
        b, z = np.where(spared, theirs, b), np.where(spared, h.exact, z)
        wrong &= ~spared
    if wrong.any():
        return "class: " + _first(a, b, wrong)
    if flipped.any():
        return "one infinity for the other: " + _first(a, b, flipped)
    if want.dtype in ("e4m3", "e5m2") and not want.more:
        return _few_values(a, b, z, want.dtype, beyond & (a == b))
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(z)
        counts, size = finite & (np.abs(z) <= want.top), np.where(finite, np.abs(z), 0.0)
        counts &= ~((np.abs(z) <= noise) & (np.abs(a - z) <= noise))
    parts = want.bands.split(a, b, z, counts, size) if want.bands is not None else [(a, b, z, counts, size)]
    parts = [(x[c], y[c], e[c], s) for x, y, e, c, s in parts if c.any()]
    usual = _usual([(y, e) for _, y, e, _ in parts], UNIT[want.dtype])
    return next((text for part in parts if (text := _within(*part, want.dtype, want.more, usual))), "")


def conditioned(draws: Sequence[tuple[Array, Want, Array, Array]]) -> str:
    """Empty when the errors of all draws together are within the rule in units of what single precision may lose (the last of
    each), else what is wrong. Of ``s / (d - s)`` one result, near the pole, has nearly all of the error, and luck decides what
    the unfused program has of it; in these units every result says as much. The program is free in the order of its sums: the
    third of each is what it has in another. Integers have no such units."""
    parts = []
    for got, want, another, lost in draws:
        if want.dtype not in UNIT:
            return "no units"
        a, b, c, z, unit = (np.asarray(x, np.float64) for x in (got, want.program, another, want.exact, lost))
        with np.errstate(all="ignore"):
            b = np.where(np.abs(c - z) > np.abs(b - z), c, b)
            counts = np.isfinite(a) & np.isfinite(b) & np.isfinite(z) & (np.abs(z) <= want.top)
            if (counts & (unit == 0) & (a != z)).any():
                return "an error where nothing is lost"
            parts.append([(x / unit)[counts & (unit > 0)] for x in (a, b, z)])
    x, y, e = (np.concatenate(p) for p in zip(*parts, strict=True))
    return _within(x, y, e, np.abs(e), draws[0][1].dtype, draws[0][1].more, 0.0) if x.size else ""


def _usual(bands: list[tuple[Array, Array]], unit: float) -> float:
    """The unfused program's largest error relative to its results' size, among bands where it is a few units: the one or two
    results of a band may be lucky ones."""
    errors = [float(np.abs(y - z).max()) / (float(np.abs(z).max()) or 1.0) for y, z in bands]
    return max((e for e in errors if e <= USUAL * max(unit, UNIT["f32"])), default=0.0) if len(bands) > 1 else 0.0


def _at_the_top(a: Array, b: Array, z: Array, dtype: str) -> Array:
    """Where the error that the rule allows decides between the dtype's largest number and an infinity; a hundredth of a result
    where the program has none."""
    with np.errstate(all="ignore"):
        known = np.isfinite(b) & np.isfinite(z)
        worst, size = (float(np.abs(x[known]).max(initial=0.0)) for x in (np.where(known, b - z, 0.0), z))
        allowed = np.where(np.isfinite(b), 0.0, np.abs(z) / 64) + SPREAD * limit(worst, worst, size, size, dtype)[0]
        near = np.abs(np.abs(z) - float(ml_dtypes.finfo(NUMPY[dtype]).max)) <= allowed
    return np.isfinite(z) & near & (np.sign(a) == np.sign(z))


def _integers(got: Array, want: Want) -> str:
    same = (got == want.program) | (got == want.exact)
    if same.all() or want.ranked is None:
        return "" if same.all() else _first(got, want.program, ~same)
    for values, chosen in zip(want.ranked, (want.exact, want.program), strict=True):
        inside = (got >= 0) & (got < values.shape[-1])
        ours = _at(values, np.where(inside, got, 0))
        theirs = _at(values, np.clip(chosen, 0, values.shape[-1] - 1))
        same |= inside & ~np.isfinite(theirs)  # what the place holds is NaN or infinite: any place of the row will do
        same |= inside & ((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        if values.dtype.kind == "f":  # whole numbers are not rounded: one beside the best is another
            same |= inside & (np.abs(ours - theirs) <= 1e-6 * np.maximum(np.abs(ours), np.abs(theirs)))
    return "" if same.all() else _first(got, want.program, ~same)


def _at(values: Array, places: Array) -> Array:
    """Elements along the last dimension: one a row (argmax), or a list a row (topk)."""
    if places.ndim == values.ndim - 1:
        return np.take_along_axis(values, places[..., None], -1)[..., 0]
    return np.take_along_axis(values, places, -1)


def _within(x: Array, y: Array, z: Array, every: Array, dtype: str, more: float, usual: float) -> str:
    """every: sizes of all results, those too that are too large to be compared: of a row that is centred and then multiplied by
    1e38 only the elements next to the mean may be, and they have the mean's error. usual: the error of the unfused program to
    reckon with, relative to the results' size."""
    scale = float(every.max()) or 1.0
    ours, theirs, size = np.abs(x - z) / scale, np.abs(y - z) / scale, every / scale
    worst_rms = (max(float(theirs.max()), usual) * scale, max(_rms(theirs), usual) * scale,
                 float(size.max()) * scale, _rms(size) * scale)
    allowed = [SPREAD * x / scale for x in limit(*worst_rms, dtype)]
    worst, rms = float(ours.max()), _rms(ours)
    if worst <= allowed[0] + more and rms <= allowed[1] + more:
        return ""
    at = int(ours.argmax())
    return (f"error {worst * scale:.3g} (rms {rms * scale:.3g}) where {(allowed[0] + more) * scale:.3g} "
            f"(rms {(allowed[1] + more) * scale:.3g}) is allowed, the unfused program's being {theirs.max() * scale:.3g}: "
            f"{x[at]:.9g} for {z[at]:.9g}")


def _few_values(a: Array, b: Array, z: Array, dtype: str, spared: Array) -> str:
    """Of a dtype with few values: a result is the nearest to the exact one, or its neighbour where the unfused program's is as
    often (a tie, or nearly); or the unfused program's or its neighbour, where a rounding on the way has cost that one more
    (next to a power of two a logarithm's whole part is one more in single precision, and a scale twice as large). spared: where
    it is the program's, which is not asked to be right."""
    both = ~spared & np.isfinite(a) & np.isfinite(b) & np.isfinite(z)
    stored = _stored(z, dtype)
    ours, theirs = both & (a != stored), both & (b != stored)

    def beside(x: Array, y: Array) -> Array:
        return np.abs(x - y) <= 2.1 * tiny(dtype) * 2 * np.maximum(np.abs(x), np.abs(y)) + 2.0**-9

    with np.errstate(all="ignore"):
        steps = beside(a, stored) | (beside(a, b) & ~beside(b, stored))
    if not (steps | ~ours).all():
        return "more than one step: " + _first(a, stored, ours & ~steps)
    if int(ours.sum()) <= 2 * int(theirs.sum()) + 1 + a.size // 2000:
        return ""
    return f"{int(ours.sum())} of {a.size} results are a step off, {int(theirs.sum())} of the unfused program's"


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x * x)))


def _stored(exact: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(exact).astype(NUMPY[dtype]).astype(np.float64)


def _same_class(got: Array, want: Array) -> Array:
    """Where NaN, +inf, -inf and finite values agree."""
    return (np.isfinite(got) & np.isfinite(want)) | (np.isnan(got) & np.isnan(want)) | (got == want)


def _opposite(got: Array, want: Array) -> Array:
    """Where one infinity stands for the other."""
    return np.isinf(got) & np.isinf(want) & (got != want)


def _first(got: Array, want: Array, bad: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} results, first at {list(at)}: {got[at]:.9g} for {want[at]:.9g}"


def first_failure(names: Mapping[str, str]) -> str:
    """The first output that failed, as one line."""
    return next((f"{n}: {text}" for n, text in names.items() if text), "")
