"""Is a result right? Held to eager torch and to float64 from the same inputs, class by class and by the numerics rule.

* Every run gives the bits of the first, but where eager's own runs do not either (``as unsteady``: torch adds atomically).
* NaN, +inf, -inf and finite elements stand where eager torch has them. Three exceptions, counted by name: ``as float64`` (ours
  is what float64 has there and eager is not: it overflowed or lost a NaN), ``undefined`` (NaN and the infinities are one class
  where eager's own result is not finite and no input holds a NaN), and ``hidden`` (ours is what the program gives without a NaN
  or an infinity that a mask hides there, :mod:`redfuser.unseen`); docs/algebra.md has all three.
* Finite elements: error within the numerics rule (:mod:`redfuser.numerics`). Where one or two roundings decide (one weight
  that carries all), either side may be lucky: a draw outside the rule is drawn again from other seeds, and the rule is held on
  all of them together, each relative to its size. Where the program's own digits cancel (the logarithm of a sum that is nearly
  1), as much is allowed as results differ by from inputs moved by a rounding, as before a kernel's first use; counted as
  ``cancelled``.
* 8-bit results have no rounding of their own: elements that differ from float64 are at most twice eager's, and one; those
  at a tie, which float64 puts elsewhere from inputs moved by a rounding, are right on both sides of it.
* Places (argmax, topk): equal to eager's, or the float64 score there is no smaller than eager's, as :mod:`redfuser.places` has
  it, or what is ranked is equal at both (in eager, or in float64 as far as float32 can say).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from redfuser import numerics, perturbed
from redfuser.places import astray, defined, ranking

Ranked = Callable[..., tuple[torch.Tensor, torch.Tensor]]
LOOSE = 0.05
"""Elements that are finite where eager is not have no error of eager's to be compared with: of their largest."""
UNDEFINED, AS_FLOAT64, HIDDEN, CANCELLED = "undefined", "as float64", "hidden", "cancelled"


@dataclass(frozen=True)
class Verdict:
    """One output on one draw. ``why`` is empty when it is right; ``ratio``: its error over eager's; ``exceptions``: how many
    elements were excused, by name; ``check``: of finite floats, the numerics rule on them."""

    output: int
    why: str
    ratio: float
    exceptions: dict[str, int]
    check: numerics.Check | None = None


def judge(ours: Any, eager: Any, truth: Any, args: tuple[Any, ...], ranked: Ranked | None,
          moved: Callable[[], Iterable[list[torch.Tensor]]] = tuple) -> list[Verdict]:
    """A verdict per tensor of the result; a result of another structure is one wrong verdict. moved: the float64 results from
    inputs moved by a rounding (:func:`redfuser.perturbed.moved`)."""
    a, b, r = (numerics.tensors(t) for t in (ours, eager, truth))
    if [(tuple(x.shape), x.dtype) for x in a] != [(tuple(x.shape), x.dtype) for x in b]:
        found = [f"{x.dtype} {list(x.shape)}" for x in a]
        return [Verdict(0, f"other shapes or dtypes: {found} for {[f'{x.dtype} {list(x.shape)}' for x in b]}", math.inf, {})]
    has_nan = any(bool(torch.isnan(x.float()).any()) for x in args if x.is_floating_point())
    return [_places(i, x, y, args, ranked) if not x.dtype.is_floating_point and x.dtype.itemsize > 1
            else _values(i, x, y, z, has_nan, moved) for i, (x, y, z) in enumerate(zip(a, b, r, strict=True))]


def classes(x: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    x = x.double()
    return torch.where(x.isnan(), 1, torch.where(x == math.inf, 2, torch.where(x == -math.inf, 3, 0)))


def _values(i: int, ours: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, has_nan: bool,
            moved: Callable[[], Iterable[list[torch.Tensor]]]) -> Verdict:
    c, e, t = classes(ours), classes(eager), classes(truth.to(ours.device))
    other = c != e
    exceptions = {}
    as_float64 = other & (c == t)
    undefined = other & ~as_float64 & (c > 0) & (e > 0) if not has_nan else torch.zeros_like(other)
    for name, where in ((AS_FLOAT64, as_float64), (UNDEFINED, undefined)):
        if n := int(where.sum()):
            exceptions[name] = n
    wrong = other & ~as_float64 & ~undefined
    if bool(wrong.any()):
        at = int(wrong.flatten().nonzero()[0])
        a, b, r = (float(x.flatten()[at]) for x in (ours.double(), eager.double(), truth.double()))
        return Verdict(i, f"class of {int(wrong.sum())} of {wrong.numel()} elements: {a:g} for {b:g} (float64 {r:g}) at {at}",
                       math.inf, exceptions)
    comparable = (c == 0) & (e == 0) & (t == 0)
    a, b, r = (x.double()[comparable] for x in (ours, eager, truth.to(ours.device)))
    if ours.dtype.itemsize == 1:
        mine, theirs = int((a != r).sum()), int((b != r).sum())
        if mine > 2 * theirs + 1:
            near = [other[i].to(ours.device)[comparable] for other in moved()]
            mine, theirs = (int(perturbed.astep(x, r, near).sum()) for x in (a, b))
        why = f"{mine} of {a.numel()} elements differ from float64, {theirs} of eager's" if mine > 2 * theirs + 1 else ""
        return Verdict(i, why, mine / max(theirs, 1), exceptions)
    check = numerics.compare(a.to(ours.dtype), b.to(ours.dtype), r)
    excused = as_float64 & (c == 0)
    if not check.passed:  # what the program itself loses, where its digits cancel, is no kernel's: as before a first use
        allowed = perturbed.as_moved(check, r, [other[i].to(ours.device)[comparable] for other in moved()])
        if allowed.passed:
            check = allowed
            exceptions[CANCELLED] = a.numel()
    if not check.passed:
        return Verdict(i, words(check), check.ratio, exceptions, check)
    mine, exact = ours.double()[excused], truth.to(ours.device)[excused].double()
    if exact.numel() and bool((mine - exact).abs().max() > LOOSE * exact.abs().max()):
        return Verdict(i, "finite where eager is not, and not what float64 has", math.inf, exceptions)
    return Verdict(i, "", check.ratio, exceptions, check)


def words(check: numerics.Check) -> str:
    return f"max {check.ours.maximum:.3g} against {check.unfused.maximum:.3g} eager, rms {check.ours.rms:.3g} against " \
           f"{check.unfused.rms:.3g}, limit {check.limit}"


def _places(i: int, ours: torch.Tensor, eager: torch.Tensor, args: tuple[Any, ...], ranked: Ranked | None) -> Verdict:
    if ranked is None or torch.equal(ours, eager):
        n = int((ours != eager).sum())
        return Verdict(i, f"{n} of {ours.numel()} integers differ" if n else "", math.inf if n else 0.0, {})
    scores, values = ranked(*args)
    own, left = ranking(scores, -1, eager), ranking(values, -1, eager)
    exact, chosen = (ranking(t, -1, eager) for t in numerics.tensors(numerics.reference(ranked, args)))
    theirs = eager
    if eager.dim() == scores.dim():  # eager's own order may be luck
        theirs = eager.gather(-1, exact.at(eager.long()).nan_to_num().argsort(-1, descending=True))
    n = int(astray(ours, theirs, own, exact, (left, chosen)).sum())
    excused = int(((ours != eager) & ~defined(own, exact)).sum())
    why = f"{n} of {ours.numel()} places: a smaller element than eager's, one twice or none of the row" if n else ""
    return Verdict(i, why, math.inf if n else 0.0, {UNDEFINED: excused} if excused else {})
