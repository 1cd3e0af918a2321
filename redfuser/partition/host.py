"""What the products of a region take on a CPU, as ours and as a library's.

    n[i, k] = (x[i, k] - mean[i]) * rstd[i]        a function of ours either way
    y[i, j] = sum[k] n[i, k] * w[k, j]             inside of it, or a library's, which reads n

Asked of a region that has its state and that nothing joins any more: while regions grow, a norm's product may be attention's.
There is no model of resources of a CPU; what is not a product is computed in either case. A product inside needs nothing
written, and no call. How much slower it is depends on its rows (:func:`redfuser.untuned.abreast`): they lie side by side, as
lanes, or are taken one after the other, where the product waits for the whole row and where something is picked.

All numbers are of one core (AMD EPYC, AVX2 code, torch 2.13): what functions take with their product and without, 66 of
float32, 16 to 2048 rows, 16 to 1024 deep, 8 to 256 columns (docs/decisions/0039). Threads share out the rows of both.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import ceil, prod

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import BYTES, Load, Op
from redfuser.acrf.state import Fused, NotFusable
from redfuser.partition.cost import elements, operand_bytes
from redfuser.partition.drafted import Draft, R
from redfuser.partition.evaluate import shared_walk
from redfuser.partition.positions import axes_in
from redfuser.partition.values import Instance

ABREAST = 115e9
"""Operations per second of a product whose rows are lanes, beside what its rows cost: 512 deep, 256 columns 104 in all."""
DTYPES = {"f64": 2.0, "bf16": 2.2}
"""How much longer those of other types take: half as many in a vector; a conversion for each number of the matrix."""
ALONE = 19e9
"""The same of rows one after the other: the geometric mean of 22 layer norms' products, which have 4 to 66 (512 deep with 16
columns 5 or 66, as the matrix lies) where a library has 21 to 103. Products whose largest is picked have 1 to 18."""
LANES, FEW = 16, 4
"""Rows of a tile: of fewer the rest idles (of 4 and 8 a product took 4 and 2 times as long). And rows too few to be lanes,
which take what reading the matrix takes, as a library's do: nothing is decided of them."""
PAGE = 4096
"""Bytes that rows lie apart, or a multiple, where sixteen of them meet in one set of the cache: 64 x 1024 with 16 columns took
64 us, 64 x 1040 48."""
GATHERED, LEFT, MADE = 0.25e-9, 0.55e-9, 0.1e-9
"""Seconds for an element of a row that comes into lanes, of a result that leaves them, and of a row that a product makes."""
LIBRARY = {"f32": 105e9, "f64": 52e9, "bf16": 250e9, "f16": 5e9}
"""Operations per second of torch's products, columns counted in whole vectors (512 x 128 x 128: 102, 50, 280 and 2.5 to 7). Of
bf16 and f16 that is what the CPU has instructions for; a product that is given back takes what torch takes, whatever it is."""
CALL, MATRIX, ROW, BANDWIDTH = 1.5e-6, 0.15e-6, 5e-9, 70e9
"""Seconds for a call of it, for each matrix of a batch and each row of a result; bytes per second of a matrix in the cache."""
WRITTEN, EXPONENTIAL, ROUNDED = 0.1e-9, 0.3e-9, 0.4e-9
"""Seconds for an element of a row that is written and read for it, and what is added where it is an exponential (a softmax by
itself takes .7 an element, in front of a product .35) and where it is bf16."""

MARGIN = 1.1
"""How far behind what has products on both sides is given back: apart it is three calls, each of which shares its rows out
among threads (attention of 12 x 32 x 64 takes 59 us as one function and 61 apart, on two threads 40 and 50)."""


def slower(d: Draft, fused: Fused, abreast: Callable[[Fused], bool]) -> NotFusable | None:
    """Why a product of the region goes back to the library, if these rates say so. abreast: are its rows lanes?"""
    products = [i for i in chain(d.inner, d.rows) if i.contraction]
    shared = [_shared(d, i) for i in products if not set(i.axes) <= set(d.p_axes)]
    if not shared or ((rows := min(shared)) < FEW and not _waits(fused)):
        return None
    lanes = abreast(fused)
    inside = sum(_inside(d, i, lanes, rows) for i in products) + (_gathered(d, products) if lanes else 0.0)
    apart = sum(_apart(d, i, rows) for i in products) + _between(d, products)
    both = len({i.over == R for i in products}) > 1
    if inside <= apart * (MARGIN if both else 1.0):
        return None
    return NotFusable("RF305", "", "a product inside of a function is as fast as a library's",
                      f"estimated {inside * 1e6:.1f} us of a core, a library's and what it reads {apart * 1e6:.1f} us",
                      "nothing to change: the product is the library's")


def _waits(fused: Fused) -> bool:
    """Are rows taken one after the other, however many there are: is something picked, or multiplied once a row is known?"""
    return any(a.reducer.kind not in ("sum", "prod", "max", "min") for a in fused.state.accumulators) or any(
        isinstance(s, Reduce) and s.over == fused.cascade.raxis for s in fused.post)


def _inside(d: Draft, i: Instance, lanes: bool, rows: int) -> float:
    """Seconds of a product in a function of ours. rows: that share its matrix, or vector."""
    flops = 2.0 * elements(d, i.axes) * d.extents[i.over] * DTYPES.get(_dtype(i), 1.0)
    if not lanes:
        return flops / ALONE
    return flops / ABREAST * max(1.0, LANES / rows) + (LEFT if i.over == R else MADE) * elements(d, i.axes)


def _gathered(d: Draft, products: list[Instance]) -> float:
    """Seconds until lanes have their rows, or what products make those from."""
    found = {i.over: d.extents[i.over] * BYTES[_dtype(i)] for i in products if not d.inner or i.over != R}
    return elements(d, d.p_axes) * sum(
        GATHERED * d.extents[over] * (2 if length % PAGE == 0 else 1) for over, length in found.items())


def _apart(d: Draft, i: Instance, rows: int) -> float:
    """Seconds of it as a library's."""
    points = elements(d, d.p_axes)
    columns = elements(d, i.axes) // points
    columns = LANES * ceil(columns / LANES) if columns > 1 else 1
    moved = operand_bytes(d, i) + elements(d, i.axes) * BYTES[i.node.dtype]
    took = max(2.0 * points * columns * d.extents[i.over] / LIBRARY[_dtype(i)], moved / BANDWIDTH)
    return CALL + MATRIX * ceil(points / rows) + ROW * points + took


def _between(d: Draft, products: list[Instance]) -> float:
    """Seconds of the rows that products write, and of that which is written for those that sum it."""
    made = sum(_element(i) for i in products if i.over != R)
    return elements(d, d.p_axes) * d.extents[R] * (made + max((_element(i) for i in products if i.over == R), default=0.0))


def _element(i: Instance) -> float:
    power = i.over == R and any(isinstance(e, Op) and e.name in ("exp", "exp2") for e in shared_walk(i.body.expr))
    return WRITTEN + EXPONENTIAL * power + ROUNDED * (_dtype(i) == "bf16")


def _dtype(i: Instance) -> str:
    """What the program multiplies."""
    return next((n.dtype for n in (i.node.unit.args if i.node.unit is not None else ()) if n.dtype in LIBRARY), "f32")


def _shared(d: Draft, i: Instance) -> int:
    """Rows that share the product's matrix: what it reads along the row and along what it sums, or its columns."""
    other = {i.over} if i.over != R else set(i.axes) - set(d.p_axes)
    read = [axes_in(x.indices) for x in shared_walk(i.body.expr) if isinstance(x, Load)]
    wide = [axes for axes in read if R in axes and axes & other]
    return max((prod(d.extents[a] for a in d.p_axes if a not in axes) for axes in wide), default=1)
