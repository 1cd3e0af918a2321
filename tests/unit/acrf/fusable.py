"""Random cascades that look like programs: reductions in dependency order over loads and earlier results."""

from __future__ import annotations

import random

from redfuser.acrf.cascade import Cascade
from redfuser.acrf.text import parse_cascade

_DATA = ["x[l]", "y[l]", "x[l] * y[l]", "abs(x[l])", "x[l] - y[l]", "2.0 * x[l]", "x[l] * x[l]", "w[l, n]", "tanh(x[l])",
         "select(b[l], x[l], 0)", "select(b[l], x[l], -inf)", "select(l < 40, y[l], 1)", "1.0"]


def _result(rng: random.Random, names: list[str]) -> str:
    d = rng.choice(names)
    return rng.choice([d, d, d, f"{d} / 4.0", f"sqrt(abs({d}) + 1.0)", f"max({d}, 1.0)", f"rsqrt({d} * {d} + 0.5)",
                       f"({d} + 1.0)", f"tanh({d})"])


def _body(rng: random.Random, names: list[str]) -> str:
    a, b = rng.choice(_DATA), rng.choice(_DATA)
    if not names:
        return rng.choice([a, f"exp({a})" if "inf" in a else a, f"{a} + {b}"])
    d, e = _result(rng, names), _result(rng, names)
    return rng.choice([
        f"exp({a} - {d})", f"exp({a} - {d}) * {b}", f"exp({a} - {d}) / {e} * {b}", f"({a}) * {d}", f"({a}) / {d}",
        f"({a} - {d}) * ({b} - {e})", f"pow({a} - {d}, 2)", f"({a}) - {d}", f"{d} - ({a})", f"({a}) * {d} * {e} + {b}",
        f"exp(({a} - {d}) / 2.0) * ({b} - {e})", f"pow({a} / {d}, 2)", f"select(b[l], ({a}) * {d}, {b})",
        f"({a} - {d}) * rsqrt({e} * {e} + 0.1)", f"exp({a} - {d}) * ({a} - {d})", f"min({a}, {d})", f"exp({a} * {d})",
        f"log(abs({a}) * max({d}, 1.0) + 1.0)", f"abs(({a}) * {d})", f"max({a}, {b}) * {d}", f"{d} * {e}", a])


def program(seed: int) -> Cascade:
    """Two to four statements; the last may be a map over the results, and everything reduced is an output."""
    rng = random.Random(seed)
    names: list[str] = []
    vectors: set[str] = set()
    lines = []
    for i in range(rng.randint(2, 4)):
        body = _body(rng, names)
        kind = rng.choice(["sum", "sum", "sum", "max", "max", "min", "argmax", "topk(2)", "prod"][: 9 if i else 6])
        if kind == "topk(2)":
            lines.append(f"d{i}, e{i} = topk(2)[l] {body}")
            continue
        lines.append(f"d{i} = {kind}[l] {body}")
        if kind != "argmax":
            names.append(f"d{i}")
            if "w[l, n]" in body or any(v in body for v in vectors):
                vectors.add(f"d{i}")
    if rng.random() < 0.5 and names:
        lines.append(f"r = {_result(rng, names)} * {_result(rng, names)}")
    outputs = [n for line in lines for n in line.split(" = ")[0].split(", ")]
    text = "cascade random(x: f32[L], y: f32[L], w: f32[L, N], b: bool[L]) over l\n  "
    return parse_cascade(text + "\n  ".join(lines) + f"\n  return {', '.join(outputs)}")
