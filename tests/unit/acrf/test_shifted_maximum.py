"""A maximum of what its own maximum was taken off is 0, and what is made of it is bounded as if it were not there."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_scores_that_are_shifted_by_hand_before_their_softmax(dtype: str) -> None:
    """A sink's column, and the row's maximum taken off in half precision before the softmax takes off its own: the bound of
    these exponentials was not seen, the weights were divided at the running results, and a far sink made an empty state NaN."""
    wide = "" if dtype == "f32" else "f32"
    f = fuse(parse_cascade(f"""cascade attention(x: {dtype}[i, L], z: {dtype}[i], v: {dtype}[L, e]) over l
  m[i] = max[l] x[i, l]
  u[i] = max(m, z[i])
  m1[i] = max[l] {wide}(x[i, l] - u)
  u1[i] = {wide}(z[i] - u)
  u2[i] = max(m1, u1)
  t[i] = sum[l] exp({wide}(x[i, l] - u) - u2)
  o[i, e] = sum[l] f32({dtype}(exp({wide}(x[i, l] - u) - u2) / (t + exp(u1 - u2)))) * f32(v[l, e])
  return o
"""))
    assert isinstance(f, Fused)
    assert not any("running results" in r for r in f.certificate.roundings)
    for a in f.state.accumulators:
        assert not any("m1_acc == -inf" in str(e) for e in (a.contribution, *a.rebase) if "max(" in str(e)), "guarded together"
    assert not check(f)
