"""A row that a result of its own moves, and other data join: (x - logsumexp x) + s, the components of a mixture."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused, NotFusable

ROW = """cascade c(x: f32[65, 5], w: f32[5], y: f32[65, 5], s: f32[65, 5, 3]) over l
  z[i, l] = sum[c] s[i, l, c]
  p[i, l] = x[i, l] + w[l]
  m[i] = max[l] p
  t[i] = sum[l] exp(p - m)
  k[i] = max[l] y[i, l]
  n[i] = max[l] {}
  u[i] = sum[l] exp({} - n)
  r[i] = log(u) + n
  return r"""


def fused(score: str) -> Fused | NotFusable:
    return fuse(parse_cascade(ROW.replace("{}", score)))


@pytest.mark.parametrize("score", ["p - (log(t) + m) + z", "p - m + z", "z + (p - log(t) - m)"])
def test_no_sum_of_what_the_program_takes_apart(score: str) -> None:
    """``max(p + z) - log(t) - m`` has none of the digits of ``p - m`` where rows are far from 0: found by a check, and warned of."""
    found = fused(score)
    assert isinstance(found, NotFusable) and found.code == "RF207", found


@pytest.mark.parametrize("score", ["(p + z) - m", "p - k + z"])
def test_the_programs_own_sum(score: str) -> None:
    found = fused(score)
    assert isinstance(found, Fused), found
    if score != "p - k + z":  # k may be beside x what x is not
        assert not check(found)


def test_the_last_change_of_reference_is_made_where_there_is_one() -> None:
    """Where the maximum is finite it is by 0, and an infinite element made NaN of the sum (``0 * -inf``) for an infinity: a norm
    of it divided finite elements to 0 in the program."""
    found = fuse(parse_cascade("""cascade norm(x: f32[65, 33], s: f32[65, 33]) over l
      m[i] = max[l] x[i, l]
      n[i] = sum[l] (x[i, l] - m - s[i, l]) * (x[i, l] - m - s[i, l])
      return n"""))
    assert isinstance(found, Fused)
    value = next(f.expr for f in found.state.finalize if f.name == "n")
    assert str(value).startswith("select(m == -inf, ") and str(value).endswith(", n_acc)"), value
    assert not check(found)
