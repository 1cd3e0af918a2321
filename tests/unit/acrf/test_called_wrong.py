"""Right fusions that the checker called wrong: what it compared was free, or out of its digits, or the state was put together
in the wrong order, or moved by something else than it was made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade

RIGHT = {
    "a sum that follows another under a mask, whose count it reads": """
        cascade c(x: f32[2, 48], k: bool[2, 48], v: bf16[2, 48, 8]) over l
          m[b] = max[l] x[b, l]
          t[b] = sum[l] exp(x[b, l] - m)
          t1[b] = sum[l] select(k[b, l], exp(x[b, l] - m - log(t)), 0.0)
          o[b, e] = sum[l] f32(bf16(select(k[b, l], exp(x[b, l] - m - log(t)), 0.0) / max(t1, 1e-06))) * f32(v[b, l, e])
          y[b, e] = bf16(o)
          return y""",
    "a late sum made of parts that are made of parts": """
        cascade c(x: f32[1, 64], y: f32[1, 64]) over l
          v[i, k], j[i, k] = topk(2)[l] x[i, l]
          s[i, l] = sum[k] select(j == l, 1.0, 0.0)
          t[i] = sum[l] s * sigmoid(y[i, l])
          return j, t""",
    "places in another integer type, and numbers made of them": """
        cascade c(x: f32[3, 8]) over l
          m[i] = max[l] x[i, l]
          t[i] = sum[l] exp(x[i, l] - m)
          v[i, k], j[i, k] = topk(2)[l] exp(x[i, l] - m) / t
          n[i, k] = i32(j)
          g[i, k] = n // i32(4)
          return v, n, g""",
    "the lowest number of float32 for a mask, in a logarithm of sums": """
        cascade c(x: f32[2, 4, 5], a: i64[2, 4], b: i64[2, 5], v: f32[2, 5, 8]) over l
          p[h, i, l] = select(a[h, i] == b[h, l], x[h, i, l], -3.4028234663852886e+38)
          m[h, i] = max[l] p
          t[h, i] = sum[l] exp(p - m)
          o[h, i, e] = sum[l] exp(p - (log(t) + m)) * select(l <= i, 1.0, 0.0) * v[h, l, e]
          return o""",
    "weights of a rounded logarithm of sums, added up again: what it was rounded to moves with it": """
        cascade c(x: f32[3, 200], v: f32[200, 8]) over l
          m[i] = max[l] x[i, l]
          t[i] = sum[l] exp(x[i, l] - m)
          u[i] = log(t) + m
          w[i] = sum[l] exp(x[i, l] - u)
          o[i, e] = sum[l] exp(x[i, l] - u) / (w + 1e-06) * v[l, e]
          return o""",
    "more places than the mask leaves elements (an indexer's): those of hidden ones are in any order, the others are not": """
        cascade c(x: f32[24, 12]) over l
          v[i, k], j[i, k] = topk(8)[l] select(l * 4 + 3 <= i, x[i, l], -inf)
          return j""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_holds(name: str) -> None:
    fused = fuse(parse_cascade("\n".join(line[8:] for line in RIGHT[name].splitlines()[1:]) + "\n"), row="held")
    assert isinstance(fused, Fused)
    assert check(fused) == []


@pytest.mark.parametrize("kind", ["topk(8)", "topk(1)"])
def test_places_of_numbers_beside_hidden_ones_are_compared(kind: str) -> None:
    """A state that ranks the visible elements the other way round is found, though no row's places are all decided."""
    lines = ["cascade c(x: f32[24, 12]) over l", f"  v[i, k], j[i, k] = {kind}[l] select(l * 4 + 3 <= i, x[i, l], -inf)",
             "  return j"]
    fused = fuse(parse_cascade("\n".join(lines) + "\n"))
    assert isinstance(fused, Fused)
    (ranked,) = fused.state.accumulators
    turned = parse_cascade("\n".join(lines).replace("x[i, l], -inf", "-x[i, l], -inf") + "\n").stmts[0].expr
    wrong = replace(fused, state=replace(fused.state, accumulators=(replace(ranked, contribution=turned),)))
    assert any(line.startswith("result: j") for line in check(wrong))
