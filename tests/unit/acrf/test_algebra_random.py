"""Random cascades: what is accepted equals the program under every segmentation of a short row, in 50 digits; what is
refused says which condition failed and leaves a prefix that fuses."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.cascade import Cascade, Reduce
from redfuser.acrf.state import Fused, NotFusable
from redfuser.codes import CODES
from tests.evaluated import run, run_fused

DATA = ["x[l]", "y[l]", "x[l] * y[l]", "abs(x[l])", "x[l] - y[l]", "w[l, n]", "tanh(x[l])", "(2.0 * x[l] + y[l])", "1.0",
        "select(x[l] > 0, y[l], 0.25)", "f32(l)"]
RESULT = ["{d}", "{d}", "{d} / 4.0", "sqrt(abs({d}) + 1.0)", "max({d}, 1.0)", "({d} + 1.0)", "tanh({d})", "-{d}"]
MIXED = ["exp({a} - {d})", "exp(({a} - {d}) / 2.0) * {b}", "exp({a} - {d}) / ({e} * {e} + 1.0) * {b}", "{a} * {d}",
         "{a} / ({d} * {d} + 1.0)", "({a} - {d}) * ({b} - {e})", "pow({a} - {d}, 2)", "pow({a} - {d}, 3) * {b}", "{a} - {d}",
         "{d} - {a}", "{a} * {d} * {e} + {b}", "exp({a} - {d}) * ({a} - {d})", "select({b} > 0, {a} * {d}, {b})",
         "sin({a} + {d})", "abs({a} * {d})", "max({a} * {d}, {b} * {d})", "min({a} + {d}, {b} + {d})", "min({a}, {d})",
         "exp({a} * {d})", "log(exp({a} - {d}) * (abs({e}) + 1.0))", "tanh({a} - {d})", "select({a} > {d}, {a}, 0)",
         "({a} * {d} - {e} * {d}) * {b}", "select({a} > 0, exp({a} - {d}), 0)", "round({a} / ({d} * {d} + 1.0))"]
OPS = ["sum", "sum", "sum", "sum", "max", "min", "prod", "argmax", "any"]


def cascade(seed: int) -> Cascade:
    rng = random.Random(seed)
    names: list[str] = []
    lines = []
    for i in range(rng.randint(2, 5)):
        a, b = rng.choice(DATA), rng.choice(DATA)
        if not names:
            op, body = rng.choice(["sum", "max", "min"]), f"{a} + {b}"
        else:
            d, e = (rng.choice(RESULT).format(d=rng.choice(names)) for _ in range(2))
            op, body = rng.choice(OPS), rng.choice(MIXED).format(a=a, b=b, d=d, e=e)
        if op == "any":
            body = f"{body} > 0.5"
        lines.append(f"  d{i} = {op}[l] {body}")
        if op not in ("argmax", "any"):
            names.append(f"d{i}")
    text = "cascade c(x: f32[L], y: f32[L], w: f32[L, N]) over l where l = L\n" + "\n".join(lines)
    outputs = ", ".join(re.findall(r"^  (d\d)", text, re.M))
    return parse_cascade(f"{text}\n  return {outputs}\n")


def inputs(seed: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": np.round(rng.normal(size=n), 2), "y": np.round(rng.normal(size=n), 2),
            "w": np.round(rng.normal(size=(n, 2)), 2)}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_accepted_cascades_equal_the_program(seed: int) -> None:
    c = cascade(seed)
    fused = fuse(c)
    assume(isinstance(fused, Fused))
    assert isinstance(fused, Fused)
    data = inputs(seed, 4)
    with np.errstate(all="ignore"):
        want = run(c, data)
        for segments, how in (([4], "step"), ([1, 0, 1, 2], "step"), ([3, 1], "tree"), ([0, 1, 2, 1], "tree")):
            got = run_fused(fused, data, segments, how)
            for name in c.outputs:
                scale = np.maximum(1.0, np.abs(want[name].astype(float)))
                finite = np.isfinite(want[name].astype(float))
                off = np.abs(got[name].astype(float) - want[name].astype(float)) / scale
                assert (off[finite] <= 1e-6).all(), f"{c}\n{name} {segments} {how}: {got[name]} {want[name]}"


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_refused_cascades_say_why_and_keep_their_prefix(seed: int) -> None:
    c = cascade(seed)
    out = fuse(c)
    assume(isinstance(out, NotFusable))
    assert isinstance(out, NotFusable)
    assert out.code in CODES and out.code.startswith("RF2")
    assert out.condition and out.why and out.help
    before = c.stmts[:[s.name for s in c.stmts].index(out.statement)]
    assert out.prefix == tuple(s.name for s in before)
    results = tuple(s.name for s in before if isinstance(s, Reduce) and s.over == c.raxis)
    assert isinstance(fuse(replace(c, stmts=before, outputs=results)), Fused)


def test_both_kinds_are_drawn() -> None:
    kinds = [type(fuse(cascade(seed))) for seed in range(60)]
    assert 15 <= kinds.count(Fused) <= 50
