"""A small program of every family for gfx942: cascade, strategy and splits, and the tiles where not those that are listed first."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.strategies import realise
from redfuser.strategies.program import Program
from redfuser.target import target
from redfuser.tensorize import TileConfig, TileProgram, configs, tensorize

AMD = target("gfx942")
ATTENTION = """cascade attention(q: {t}[{g}, {i}, {d}], k: {t}[{h}, {n}, {d}], v: {t}[{h}, {n}, {w}]) over l
  s[b, i, l] = sum[c] f32(q[b, i, c]) * f32(k[b // {r}, l, c])
  p[b, i, l] = {score}
  m[b, i] = max[l] p
  t[b, i] = sum[l] exp(p - m)
  o[b, i, e] = sum[l] exp(p - m) / t * f32(v[b // {r}, l, e])
  y[b, i, e] = {t}(o)
  return y
"""
SCALED, CAUSAL = "s * 0.125", "select(l <= i, s * 0.125, -inf)"
LATENT = """cascade latent(q: bf16[32, 576], x: bf16[100, 576]) over l where e = 512
  s[i, l] = sum[c] f32(q[i, c]) * f32(x[l, c])
  m[i] = max[l] s * 0.0417
  t[i] = sum[l] exp(s * 0.0417 - m)
  o[i, e] = sum[l] exp(s * 0.0417 - m) / t * f32(x[l, e])
  y[i, e] = bf16(o)
  return y
"""
ROUTING = """cascade routing(x: f16[24, 64], w: f16[48, 64]) over l
  s[i, l] = sum[c] f32(x[i, c]) * f32(w[l, c])
  m[i] = max[l] s
  t[i] = sum[l] exp(s - m)
  j[i] = argmax[l] s
  p[i] = 1.0 / t
  return p, j
"""
QUANT = """cascade quant(a: f16[70, 192], w: e4m3[192, 48]) over l
  m[i] = max[l] abs(f32(a[i, l]))
  q[i, l] = e4m3(f32(a[i, l]) * 448.0 / m)
  o[i, n] = sum[l] f32(q) * f32(w[l, n])
  y[i, n] = bf16(o * m / 448.0)
  return y
"""
SCALES = """cascade scales(x: bf16[33, 300]) over l
  m[i] = max[l] abs(f32(x[i, l]))
  y[i, l] = e4m3(f32(x[i, l]) * 448.0 / m)
  return y, m
"""
NORMED = """cascade normed(x: f16[40, 200], w: f16[200, 48]) over l
  t[i] = sum[l] f32(x[i, l]) * f32(x[i, l])
  o[i, d] = sum[l] f32(x[i, l]) * rsqrt(t / 200.0 + 1.0e-5) * f32(w[l, d])
  y[i, d] = f16(o)
  return y
"""
GELU = """cascade gelu(x: bf16[130, 96], w: bf16[72, 96], b: bf16[72]) over k
  o[i, d] = sum[k] f32(x[i, k]) * f32(w[d, k])
  h[i, d] = f32(bf16(o)) + f32(b[d])
  y[i, d] = bf16(h * 0.5 * (1.0 + tanh(0.7978845608028654 * (h + 0.044715 * h * h * h))))
  return y
"""
VARIANCE = """cascade variance(x: f32[4, 3000]) over l
  s[i] = sum[l] x[i, l]
  d[i, l] = x[i, l] - s / 3000.0
  v[i] = sum[l] d * d
  y[i] = v / 2999.0
  return y
"""
INERTIA = """cascade inertia(w: f32[3, 500], x: f32[3, 500, 3]) over l
  t[b] = sum[l] w[b, l]
  c[b, e] = sum[l] w[b, l] * x[b, l, e] / t
  r[b, e] = sum[l] w[b, l] * (x[b, l, e] - c) * (x[b, l, e] - c)
  return r
"""
SOFTMAX = """cascade softmax(x: f16[5, 333]) over l
  m[i] = max[l] f32(x[i, l])
  t[i] = sum[l] exp(f32(x[i, l]) - m)
  y[i, l] = f16(exp(f32(x[i, l]) - m) / t)
  return y
"""
LAYER = """cascade layer(x: f16[6, 768], g: f16[768]) over l
  s[i] = sum[l] f32(x[i, l])
  u[i] = s / 768.0
  v[i] = sum[l] (f32(x[i, l]) - u) * (f32(x[i, l]) - u)
  y[i, l] = f16((f32(x[i, l]) - u) * rsqrt(v / 768.0 + 1.0e-5) * f32(g[l]))
  return y
"""
HALVES = """cascade halves(x: f16[9, 200]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(f32(x[i, l]) - f32(m))
  return m, t
"""


@dataclass(frozen=True)
class Family:
    text: str
    strategy: str = "single"
    splits: int = 1
    config: TileConfig | None = None
    casts: str = "preserve"

    @property
    def fused(self) -> Fused:
        found = fuse(parse_cascade(self.text), casts=self.casts)
        assert isinstance(found, Fused), found
        return found

    @property
    def program(self) -> Program:
        return realise(self.fused, self.strategy, self.splits)

    @property
    def tiles(self) -> TileProgram:
        program = self.program
        return tensorize(program, self.config or configs(program, AMD)[0], AMD)


def attention(score: str, t: str, g: int, h: int, i: int, n: int, d: int, w: int, **how: object) -> Family:
    return Family(ATTENTION.format(score=score, t=t, g=g, h=h, r=g // h, i=i, n=n, d=d, w=w), **how)  # type: ignore[arg-type]


FAMILIES = {
    "attention": attention(CAUSAL, "f16", 2, 2, 100, 100, 64, 64),
    "grouped_decode": attention(SCALED, "bf16", 4, 2, 1, 300, 64, 64, strategy="multi", splits=2),
    "latent": Family(LATENT),
    "singles": attention(CAUSAL, "f32", 2, 2, 100, 100, 64, 64),
    "routing": Family(ROUTING, "resident"),
    "quant": Family(QUANT, casts="elide"),
    "scales": Family(SCALES, "resident"),
    "normed": Family(NORMED),
    "gelu": Family(GELU),
    "variance": Family(VARIANCE, "multi", 2),
    "inertia": Family(INERTIA),
    "softmax": Family(SOFTMAX, "resident"),
    "halves": Family(HALVES),
    "layer": Family(LAYER, "resident"),
}
