"""Rows for measuring rounding: many distributions at once, in plain floats, along an axis of their own.

Every trial draws all tensors anew, so that one pass of a :class:`Machine` measures all of them. A trial's *strain* names the
distribution of each tensor; several trials share a strain, since an error of rounding is itself random. An element is a
function of its trial and its place alone, whichever segment reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations

import ml_dtypes
import numpy as np

from redfuser.acrf import functions
from redfuser.acrf.cascade import Cascade, Reduce
from redfuser.acrf.check.domains import NUMPY, Array, Domain
from redfuser.acrf.check.machine import Machine, Source
from redfuser.acrf.check.powers import adds_up
from redfuser.acrf.check.samples import Sample
from redfuser.acrf.expr import COMPARISONS, FLOATS, Expr, Load, Op, Ref, children, indices_of, walk

TRIAL = "@trial"
"""The axis along which trials stand. No cascade has an axis of that name."""
PLAIN = ("positive", "normal", "wide", "shifted", "spike", "scores", "gaps", "hidden", "buried", "faint", "deep", "bottom")
"""Distributions of elements: see :func:`_elements`."""
BOUNDED = COMPARISONS | {"isnan"} | {n for n, f in functions.TABLE.items() if f.bounded}
"""Operations that make numbers of moderate size of any."""
DEEP = -(2.0**66)
"""A number whose square is out of range of float32, while that of its last place, by which a weighted mean of such a row may be
off, is not."""
PARAMETER = ("scores", "gaps")
"""Those of a tensor that does not run along the r-axis, where nothing is masked."""
SCALES = (-0.8, -0.45, -0.3, 0.3, 0.52, 0.8)
"""Magnitudes, as powers of the dtype's largest value: 1e-30, 5e-18, 3e-12 ... 1e20, 1e30 in float32, 1e-4 to 7e3 in float16.
None has its square just where digits are lost one by one."""
TOGETHER = (-0.1, 0.1)
"""Magnitudes of all tensors at once: few enough decades that a product of three stays in range."""
SQUARED = (0.52, 0.26)
"""Magnitudes of one tensor and of another, its root: quotients by the other's square are of order 1, and squares of the one are
out of range. Products of both with any number of ordinary tensors, as a deferred scale leaves them, are not."""


@dataclass(frozen=True)
class Strain:
    """The distribution of each tensor: of all (``default``), or of one apart from the rest."""

    name: str
    default: str
    kinds: tuple[tuple[str, str], ...] = ()

    def of(self, tensor: str) -> str:
        return dict(self.kinds).get(tensor, self.default)


def strains(cascade: Cascade, length: int) -> Iterator[Strain]:
    """Every tensor alike, then one tensor at a time odd, then all masked or scaled together, for rows of ``length``."""
    kinds = [k for k in PLAIN[2:] if k != "buried" or length >= 16]  # nothing but masks in a row is ``bottom``
    floats = [t.name for t in cascade.inputs if t.dtype in FLOATS]
    along = {x.tensor for s in cascade.stmts for x in walk(s.expr) if isinstance(x, Load)
             and any(cascade.raxis in indices_of(i) for i in x.indices)}
    for kind in ("positive", "normal"):
        yield Strain(kind, kind)
    summed, met = _summed(cascade), _met(cascade)
    for t in floats:
        mine = [k for k in kinds if k != "bottom" or t not in summed]
        scales = [s for s in SCALES if t not in met or abs(s) < 0.5]
        for kind in (*mine, *(f"scale {s}" for s in scales)) if t in along else PARAMETER:
            yield Strain(f"{t} {kind}", "positive", ((t, kind),))
    joint = [t for t in floats if t in along]
    if len(joint) > 1:
        for kind in ("hidden", "faint", *(f"scale {s}" for s in TOGETHER)):
            yield Strain(f"all {kind}", "positive", tuple((t, kind) for t in joint))
    whole = [t.name for t in cascade.inputs if t.name in joint and t.dtype == "f32"]  # halves are summed in float32's range
    for t, root in permutations(whole, 2):
        if not adds_up(cascade, t, root):
            yield Strain(f"{t} as {root} squared", "positive", ((t, f"scale {SQUARED[0]}"), (root, f"scale {SQUARED[1]}")))


def _met(cascade: Cascade) -> set[str]:
    """Tensors whose rows are multiplied with others of their own, as two tensors would be: what one magnitude of both does to
    their products, and to no norm of either, is no matter of the fusion."""
    def rows(e: Expr) -> set[Load]:
        return {x for x in walk(e) if isinstance(x, Load) and any(cascade.raxis in indices_of(i) for i in x.indices)}

    terms = [x for s in cascade.stmts if isinstance(s, Reduce) for x in walk(s.expr)]
    products = [x.args for x in terms if isinstance(x, Op) and x.name == "mul"]
    return {x.tensor for a, b in products for x in rows(a) for y in rows(b) if x.tensor == y.tensor and x != y}


def _summed(cascade: Cascade) -> set[str]:
    """Tensors of which a sum may read elements of any size: not only an exponential of them, or a comparison. A sum kept before
    its normalisation overflows where the lowest numbers are added up."""
    known: dict[str, set[str]] = {}

    def read(e: Expr) -> set[str]:
        if isinstance(e, Op) and e.name in BOUNDED:
            return set()
        if isinstance(e, Ref) and e.name in known:
            return known[e.name]
        return {e.tensor} if isinstance(e, Load) else set().union(*map(read, children(e)))

    summed: set[str] = set()
    for s in cascade.stmts:
        found = read(s.expr)
        known |= dict.fromkeys(s.names, found)
        if isinstance(s, Reduce) and s.reducer.kind in ("sum", "prod"):
            summed |= found
    return summed


@dataclass
class Strained(Source):
    """A tensor drawn once per trial: elements have the trial's axis in front."""

    shape: tuple[int, ...]
    dtype: str
    kinds: tuple[str, ...]
    salts: Array
    read: dict[object, Array] = field(default_factory=dict)
    axis = TRIAL

    def only(self, trials: slice) -> Strained:
        """The same elements in some of the trials."""
        return Strained(self.shape, self.dtype, self.kinds[trials], self.salts[trials])

    def at(self, places: tuple[Array, ...], numbers: Domain, own: bool = False) -> Array:
        how = type(numbers), getattr(numbers, "program", None), own
        key = (places[0].shape if places else (), *(p.tobytes() for p in places), how)
        if key not in self.read:
            self.read[key] = self._draw(places, numbers, own)
            self.read[key].flags.writeable = False
        return self.read[key]

    def _draw(self, places: tuple[Array, ...], numbers: Domain, own: bool) -> Array:
        at: Array = np.zeros(places[0].shape if places else (), np.uint64)
        with np.errstate(over="ignore"):
            for i, extent in zip(places, self.shape, strict=True):
                at = at * np.uint64(max(extent, 1)) + i.astype(np.uint64)
            salts = self.salts.reshape(-1, *[1] * (at.ndim - own))
            first, second, third = (_unit(at * np.uint64(3) + np.uint64(i), salts) for i in range(3))
        if self.dtype == "bool":
            return first < 0.6
        if self.dtype not in FLOATS:
            return np.asarray(np.floor(first * 4), NUMPY[self.dtype])
        out = np.empty(first.shape)
        for kind in dict.fromkeys(self.kinds):
            these = np.array([k == kind for k in self.kinds])
            out[these] = _elements(kind, self.dtype, first[these], second[these], third[these])
        return numbers.enter(out.astype(NUMPY[self.dtype]), self.dtype)


def _elements(kind: str, dtype: str, first: Array, second: Array, third: Array) -> Array:
    """Elements of a distribution from three uniform numbers each, in fp64."""
    normal = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
    positive = 0.5 + third
    if kind.startswith("scale "):
        return largest(dtype) ** float(kind[6:]) * np.where(first < 0.1, -positive, positive)
    match kind:
        case "positive":
            return positive
        case "normal":
            return normal
        case "shifted":
            return 10000 + normal
        case "wide":
            return 20000 * third - 10000
        case "spike":
            return np.where(third < 0.01, 3e4, 0.5 + second)
        case "scores":
            return 70 * third
        case "gaps":
            return 10 ** (-30 * third)
        case "hidden":
            return np.where(third < 0.5, -np.inf, normal)
        case "buried":
            return np.where(third < 0.5, _mask(dtype), normal)
        case "faint":
            return np.where(third < 0.5, -1e4, normal)
        case "low":  # weights of most are below what half precision has in full, of all rows or of those that a mask leaves
            return np.where(third < 0.03, normal, normal - 14)
        case "bottom":
            return np.full(first.shape, -largest(dtype))
        case "deep":
            return np.full(first.shape, max(_mask(dtype), DEEP))
    raise ValueError(f"no distribution is called {kind!r}")


def largest(dtype: str) -> float:
    """The largest finite value; of fp64 that of fp32, so that fp64 can still be the oracle."""
    return float(ml_dtypes.finfo(NUMPY["f32" if dtype == "f64" else dtype]).max)


def _mask(dtype: str) -> float:
    """What stands for -inf in a mask: near the lowest value, as far as sums of a row stay in range; a power of two, so that
    a row of nothing else is exact."""
    bits = math.log2(largest(dtype))
    return -(2.0 ** math.floor(bits * 0.8 if bits > 100 else bits))


def _unit(x: Array, salt: Array) -> Array:
    """Numbers in (0, 1) from 64-bit counters (SplitMix64's finaliser)."""
    x = x + salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


def strained(cascade: Cascade, s: Sample, trials: list[Strain], seed: int) -> dict[str, Strained]:
    """The cascade's tensors for these trials, at the sample's shapes."""
    rng = np.random.default_rng([seed, len(trials)])
    return {t.name: Strained(s.tensors[t.name].shape, t.dtype, tuple(x.of(t.name) for x in trials),
                             rng.integers(1, 2**63, len(trials), np.uint64)) for t in cascade.inputs}


def machine(cascade: Cascade, s: Sample, tensors: Mapping[str, Source], trials: int, numbers: Domain) -> Machine:
    """A machine that evaluates every trial at the sample's points."""
    m = s.machine(cascade, numbers)
    return Machine(numbers, tensors, m.dtypes, {**m.ranges, TRIAL: np.arange(trials)}, m.stmt_axes)
