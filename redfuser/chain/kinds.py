"""The kinds of values that a :class:`~redfuser.chain.draws.Draw` names, for one tensor at a time.

What happens at the end of a segment, or where a whole segment is hidden, happens in few rows of a row of random numbers. So
it is not left to chance: a row's *turn*, which goes on with every row and every draw, says where its largest element stands,
which part of it is hidden, and whether and where it has a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from redfuser.acrf.check.domains import NUMPY, Array

_WIDE = (-18, -9, -3, 0, 2, 6, 12, 20)
BANDS = {"f64": _WIDE, "f32": _WIDE, "bf16": _WIDE, "f16": (-4, -3, -2, -1, 0, 1, 2, 3),
         "e4m3": (-1, 0, 1, 2, -1, 0, 1, 2), "e5m2": (-3, -2, -1, 0, 1, 2, 3, 4)}
"""Decimal exponents of the bands, by dtype; as many for each."""
PEAKS, PARTS = 16, 4
"""Turns after which peaks, and what is hidden of a row, are the same again."""
SINGLE = (1, 2, 4, 7)
"""Turns at which a row has a NaN, at each of its ends."""


CHOOSING = frozenset({"positive", "decades", "ties", "outlier", "hidden", "least", "nan", "inf", "half"})
"""Kinds for which more is drawn than numbers near zero."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which tensor of the program it is, and what its dimensions are: the one that is the banded axis, the one that is the
    r-axis; turn: of its first row. least: the finite number that hides an element, in units of the dtype's largest."""

    number: int
    band: int | None
    along: int | None
    turn: int = 0
    least: float = -1.0

    def turns(self, shape: tuple[int, ...]) -> Array:
        """The turn of each row."""
        row = len(shape) - 1 if self.along is None else self.along
        steps = [np.arange(n if d != row else 1).reshape([-1 if d == at else 1 for at in range(len(shape))])
                 for d, n in enumerate(shape)]
        return np.asarray(sum(steps, np.zeros([1] * len(shape), np.int64)) + self.turn)


def rows(shape: tuple[int, ...], along: int | None) -> int:
    """Of different turns."""
    row = len(shape) - 1 if along is None else along
    return sum(n - 1 for d, n in enumerate(shape) if d != row) + 1


def mask(rng: np.random.Generator, shape: tuple[int, ...], ends: bool, whole: bool, place: Place) -> Array:
    """Mostly true; first and last elements false unless they are kept (``ends``), and unless rows are ``whole``, parts of them
    and all of some."""
    x = rng.random(shape) < 0.75
    if not shape:
        return x
    if not ends:
        x[..., :1] = False
        x[..., -1:] = False
    return x if whole else x & ~_part(shape, place, 2 * PARTS)


def places(rng: np.random.Generator, shape: tuple[int, ...], limit: int, plain: bool) -> Array:
    """Numbers below ``limit``; unless ``plain``, every other one beside a power of two, where a segment begins or ends."""
    x = rng.integers(0, max(1, limit), shape)
    if plain:
        return x
    beside = [n for k in range(4, max(5, limit.bit_length())) for n in (2**k - 1, 2**k) if n < limit]
    ends = np.asarray([0, max(0, limit - 1), *beside])
    return np.where(rng.random(shape) < 0.5, ends[rng.integers(0, len(ends), shape)], x)


def few_places(rng: np.random.Generator, shape: tuple[int, ...], limit: int) -> Array:
    """Numbers far below ``limit``, in order: most of a row lies beyond them, and more of the first rows."""
    x = rng.integers(0, max(1, limit // 4), shape)
    return np.sort(x, -1) if shape else x


def documents(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers in order: four different ones in a row, and in every other row two."""
    x = labels(rng, shape, dtype, False)
    return x // (1 + np.indices(shape[:-1]).sum(0)[..., None] % 2) if len(shape) > 1 else x


def labels(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, plain: bool) -> Array:
    """A few numbers; unless ``plain``, equal ones side by side, as the documents of a batch are."""
    x = rng.integers(-3 if dtype == "i8" else 0, 4, shape)
    return x if plain or not shape else np.sort(x, -1)


def counts(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: str, place: Place) -> Array:
    """Whole numbers as a float tensor would have numbers, where that kind has some; ``close``: of eight, float32 has one."""
    if kind == "close":
        return (2**26 + rng.integers(0, 8, shape)).astype(NUMPY[dtype])
    kind = kind if kind in ("offset", "balanced", "ends", "peak", "ties", "zeros", "large") else "normal"
    return np.rint(50 * floats(rng, "f32", shape, kind, place)).astype(NUMPY[dtype])


def marked(rng: np.random.Generator, x: Array, marks: tuple[int, ...], plain: bool) -> Array:
    """Unless ``plain``, every eighth is one of ``marks``."""
    if plain or not marks:
        return x
    return np.where(rng.random(x.shape) < 0.125, np.asarray(marks)[rng.integers(0, len(marks), x.shape)], x)


def floats(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: str, place: Place) -> Array:
    """In the tensor's dtype."""
    held = NUMPY[dtype]
    top = float(ml_dtypes.finfo(held).max)
    narrow = dtype in ("f16", "e4m3", "e5m2")
    normal = np.asarray(rng.standard_normal(shape) * 0.83)
    if kind not in CHOOSING:
        return _held(_plain(kind, normal, dtype, top, narrow, shape, place), dtype)
    hidden = rng.random(shape) < 0.4
    few = rng.random(shape) < 0.5 / max(2, shape[-1] if shape else 1)
    sign = np.where(rng.random(shape) < 0.5, 1.0, -1.0)
    match kind:
        case "positive":
            x = rng.uniform(0.3, 1.7, shape)
        case "decades":
            x = sign * 10.0 ** rng.uniform(*((-3.0, 1.5) if narrow else (-8.0, 4.0)), shape)
        case "ties":
            x = rng.integers(-2, 3, shape)
        case "outlier":
            x = np.where(few, sign * min(top / 8, 3e4), normal)
        case "hidden":
            x = np.where(hidden | _part(shape, place, PARTS), -np.inf, normal)
        case "least":
            number = np.where(rng.random(shape) < 0.3, -1e4, top * place.least)
            x = np.where(hidden | _part(shape, place, PARTS), number, normal)
        case "half":
            x = np.where(_half(shape, place.turn), -np.inf, np.abs(normal) + 0.3)
        case "nan" | "inf":
            at, side = _single(rng, shape, place) if place.along in (None, len(shape) - 1) else (few, sign)
            x = np.where(at, np.nan if kind == "nan" else side * np.inf, normal)
    return _held(x, dtype)


def _plain(kind: str, normal: Array, dtype: str, top: float, narrow: bool, shape: tuple[int, ...], place: Place) -> Array:
    """Kinds that nothing but ``normal`` is drawn for."""
    match kind:
        case "bands":
            power = 0.5 if place.band == place.along else 1.0  # rows of one tensor that are multiplied with one another
            return normal if place.band is None else normal * _magnitudes(shape, place.band, BANDS[dtype], power)
        case "small":
            return normal * 0.0037
        case "offset":  # below in one row and above in another, in every place of a tile
            side = np.where(_parity(_sides(shape, place) + place.turn) == 0, -1.0, 1.0)
            return normal + side * (100.0 if narrow or dtype == "bf16" else 3000.0)
        case "balanced":  # a sum much smaller than those of its products with anything else
            return normal if place.along is None else _balanced(normal, place.along)
        case "ends":  # the row's largest is where a segment, of whatever size, begins or ends
            return normal if place.along is None else _ends(normal, place.along)
        case "peak":
            return _peak(normal, shape, place)
        case "zeros":
            return np.where(_part(shape, place, PARTS), 0.0, normal)
        case "ordered":
            return np.sort(normal, -1) if shape else normal
        case "large":
            return normal * min(top / 16, 2e3)
        case _:
            return normal


def _held(x: Array, dtype: str) -> Array:
    """In the tensor's dtype; e4m3 has no infinity."""
    with np.errstate(all="ignore"):
        x = np.asarray(x, np.float64)
        return (np.clip(x, -448.0, 448.0) if dtype == "e4m3" else x).astype(NUMPY[dtype])


def _part(shape: tuple[int, ...], place: Place, every: int) -> Array:
    """What a row's turn hides of it: all of it, its first half, its second half, nothing. Where there is no row along the
    r-axis, all of it or nothing."""
    if not shape:
        return np.zeros((), np.bool_)
    turn: Array = place.turns(shape) % every
    if place.along is None:
        return np.broadcast_to(turn == 0, shape)
    n = shape[place.along]
    at = np.arange(n).reshape([-1 if d == place.along else 1 for d in range(len(shape))])
    return np.broadcast_to((turn == 0) | (turn == 1) & (at < n // 2) | (turn == 2) & (at >= n // 2), shape)


def _single(rng: np.random.Generator, shape: tuple[int, ...], place: Place) -> tuple[Array, Array]:
    """One element of every other row (by the parity of its turn's bits, so that tiles of any number of rows have both kinds
    in every place), at an end of the row, of its longest segment, or anywhere; and a sign of it."""
    if not shape:
        return np.asarray(True), np.asarray(1.0)
    turn = place.turns(shape)
    row = len(shape) - 1 if place.along is None else place.along
    at = np.arange(shape[row]).reshape([-1 if d == row else 1 for d in range(len(shape))])
    which: Array = turn // 2 % 8
    chosen = np.where(which < 4, _ends_of(shape[row])[which % 4], rng.integers(0, max(1, shape[row]), turn.shape))
    return (_parity(turn) == 1) & (at == chosen), np.where(_parity(turn // 2) == 1, -1.0, 1.0)


def _half(shape: tuple[int, ...], turn: int) -> Array:
    """One element of every row from the half of them on, or (turn 1) of the first of those alone."""
    each = np.arange(int(np.prod(shape[:-1]))).reshape((*shape[:-1], 1)) if shape else np.zeros((), np.int64)
    half = each.size // 2
    chosen = each == half if turn else each >= half
    return chosen & (np.arange(shape[-1]) == 0) if shape else chosen


def _parity(x: Array) -> Array:
    for k in (8, 4, 2, 1):
        x = x ^ x >> k
    return x & 1


def _ends_of(n: int) -> Array:
    """Of a row and of its longest segment."""
    longest = 2 ** max(0, (n - 1).bit_length() - 1)
    return np.asarray([0, longest - 1, min(longest, max(0, n - 1)), max(0, n - 1)])


def _peak(normal: Array, shape: tuple[int, ...], place: Place) -> Array:
    """Mostly on one side of zero, and the farthest on that side at an end of the row or of its longest segment; the second at
    another, so that a running maximum is exceeded (or not). Over
    ``PEAKS`` turns every tensor has every place on each side, and with any other tensor on either side."""
    turn = place.turns(shape) if shape else np.asarray(place.turn)
    low: Array = turn % 4
    high: Array = turn // 4 % 4
    sides = high & (place.number % 3 + 1)
    side = np.where(_parity(sides) == 1, -1.0, 1.0)
    x = normal + 0.5 * side
    if place.along is None:
        return x
    n = shape[place.along]
    end, second = (_ends_of(n)[(low + k + place.number * high) % 4] for k in (0, 2))
    at = np.arange(n).reshape([-1 if d == place.along else 1 for d in range(len(shape))])
    return np.where(at == end, 6.0 * side, np.where(at == second, 4.5 * side, x))


def _balanced(x: Array, dim: int) -> Array:
    return x - np.mean(x, dim, keepdims=True) + 1 / (32 * np.sqrt(x.shape[dim]))


def _sides(shape: tuple[int, ...], place: Place) -> Array:
    """The number of a row among those that no other dimension than the r-axis and the last tells apart."""
    each = [np.arange(n if d not in (place.along, len(shape) - 1) else 1).reshape(
        [-1 if d == at else 1 for at in range(len(shape))]) for d, n in enumerate(shape)]
    return np.asarray(sum(each, np.zeros([1] * len(shape), np.int64)))


def _ends(normal: Array, dim: int) -> Array:
    """Large along a dimension at the first and the last of eight, the larger the longer the segments that begin or end
    there, and at both its ends: every other last one, and the firsts of the others, on the side of the maximum."""
    n = normal.shape[dim]
    shape = [n if d == dim else 1 for d in range(normal.ndim)]
    at = np.arange(n)
    power = np.maximum(at & -at, at + 1 & -(at + 1))
    power[:1] = power[-1:] = power.max(initial=16)
    sizes = 300.0 / 16 * np.minimum(power, 1024)
    sides = np.where((at % 8 == 7) == (at // 8 % 2 == 1), 1.0, -1.0)
    return np.where((power >= 8).reshape(shape), (0.5 + np.abs(normal)) * (sides * sizes).reshape(shape), normal)


def _magnitudes(shape: tuple[int, ...], dim: int, exponents: tuple[int, ...], power: float) -> Array:
    sizes = 10.0 ** (power * np.asarray(exponents, np.float64))[np.arange(shape[dim]) % len(exponents)]
    return sizes.reshape([-1 if d == dim else 1 for d in range(len(shape))])
