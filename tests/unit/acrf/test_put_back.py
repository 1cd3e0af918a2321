"""States that were wrong once and had a certificate (A2, A6, A7 of the findings), put back by hand: the checker stops each.

Beside each stands the state that is right, so that it is the defect that is stopped and not the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redfuser.acrf.state import Fused
from redfuser.acrf.verify import check
from tests.unit.acrf.handmade import NEG, fused

TWO = """cascade two(a: f32[I, L], b: f32[I, L]) over l
  m = max[l] a[i, l]
  n = max[l] b[i, l]
  t = sum[l] exp(a[i, l] - max(m, n))
  return t"""


def two_extrema(lost: bool) -> Fused:
    """A2: the old sum dropped where either maximum is still -inf, not both."""
    reference = "select(max(m, n) == -inf, 0, max(m, n))"
    kept = f"t@old * exp(max(m@old, n@old) - {reference})"
    if lost:
        kept = f"select(m@old == -inf, 0, select(n@old == -inf, 0, {kept}))"
    return fused(TWO, [("m", "i", "max", "a[i, l]", {"neutral": (NEG,)}), ("n", "i", "max", "b[i, l]", {"neutral": (NEG,)}),
                       ("t", "i", "sum", f"exp(a[i, l] - {reference})", kept)],
                 {"m": "m", "n": "n", "t": f"t * exp({reference} - max(m, n))"})


BOUNDED = """cascade bounded(x: f32[I, L]) over l
  m = max[l] abs(x[i, l])
  t = sum[l] (x[i, l] / m) * (x[i, l] / m) * (x[i, l] / m)
  return t"""


def deferred(whole: bool) -> Fused:
    """A6: the factor that bounds the data applied after the sum: cubes of 1e-15 are no numbers."""
    if whole:
        state = ("q", "i", "sum", "x[i, l] * x[i, l] * x[i, l]")
        last = "q / m / m / m"
    else:
        near, old = "select(m == -inf, 1, select(m == 0, 1, m))", "select(m@old == -inf, 0, m@old)"
        state = ("q", "i", "sum", f"x[i, l] / {near} * (x[i, l] / {near}) * (x[i, l] / {near})",
                 f"q@old * ({old} / {near} * ({old} / {near}) * ({old} / {near}))")
        last = f"q * ({near} / m) * ({near} / m) * ({near} / m)"
    return fused(BOUNDED, [("m", "i", "max", "abs(x[i, l])", {"neutral": (NEG,)}), state], {"m": "m", "t": last})


SECOND = """cascade second(x: f32[I, L]) over l
  m = max[l] x[i, l]
  s = sum[l] exp(x[i, l] - m)
  t = sum[l] exp(x[i, l] - m) * (x[i, l] - m) * (x[i, l] - m)
  y = t / s
  return y"""


def hidden_logits(square_first: bool) -> Fused:
    """A7: the square of a finite mask formed before the weight of 0 that hides it."""
    ref, old = "select(m == -inf, 0, m)", "select(m@old == -inf, 0, m@old)"
    w, c, u, d = f"exp(x[i, l] - {ref})", f"exp(m@old - {ref})", f"(x[i, l] - {ref})", f"({old} - {ref})"
    second = f"{w} * ({u} * {u})" if square_first else f"{w} * {u} * {u}"
    return fused(SECOND, [
        ("m", "i", "max", "x[i, l]", {"neutral": (NEG,)}), ("s", "i", "sum", w, f"s@old * {c}"),
        ("t_1", "i", "sum", f"{w} * {u}", f"t_1@old * {c} + s@old * {c} * {d}"),
        ("t", "i", "sum", second, f"t@old * {c} + t_1@old * {c} * {d} * 2 + s@old * {c} * {d} * {d}")],
        {"m": "m", "s": "s", "t": "t"}, {"y": "t / s"})


@pytest.mark.parametrize("state", [two_extrema, deferred, hidden_logits])
def test_put_back_it_is_stopped(state: Callable[[bool], Fused]) -> None:
    assert check(state(False)) == []
    assert check(state(True))
