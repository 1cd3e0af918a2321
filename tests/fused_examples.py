"""Fused cascades written by hand, for tests of what comes after the algebra. The algebra derives the same ones."""

from __future__ import annotations

from redfuser.acrf.cascade import Axis, Cascade, Let, Reduce, Reducer, Tensor
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Ref, f32, op
from redfuser.acrf.state import Accumulator, Certificate, Fused, State

SUM, MAX = Reducer("sum"), Reducer("max")
ZERO, NEG_INF = f32(0.0), f32(float("-inf"))


def ref(name: str, dtype: str = "f32") -> Ref:
    return Ref(name, dtype)


def load(tensor: str, dtype: str, *indices: Expr | str) -> Expr:
    x = Load(tensor, tuple(Index(i) if isinstance(i, str) else i for i in indices), dtype)
    return x if dtype == "f32" else Cast(x, "f32")


def i64(v: int) -> Const:
    return Const(v, "i64")


def minus_ref(x: Expr, m: Expr) -> Expr:
    """exp(x - m), and 0 where nothing is above -inf yet."""
    return op("select", op("eq", m, NEG_INF), ZERO, op("exp", op("sub", x, m)))


def rescaled(acc: str, m: str) -> Expr:
    """acc@old * exp(m@old - m), guarded."""
    return op("mul", ref(f"{acc}@old"), minus_ref(ref(f"{m}@old"), ref(m)))


def plain(name: str, axes: tuple[str, ...], reducer: Reducer, contribution: Expr, neutral: Const) -> Accumulator:
    old = ref(f"{name}@old", neutral.dtype)
    return Accumulator((name,), axes, reducer, neutral.dtype, (neutral,), contribution, (old,))


def running(name: str, axes: tuple[str, ...], m: str, contribution: Expr) -> Accumulator:
    """A sum relative to the running maximum m: rescaled when m grows."""
    return Accumulator((name,), axes, SUM, "f32", (ZERO,), contribution, (rescaled(name, m),))


def fused(cascade: Cascade, accumulators: tuple[Accumulator, ...], finalize: tuple[Let, ...],
          post: tuple[Let | Reduce, ...] = ()) -> Fused:
    first = next(i for i, s in enumerate(cascade.stmts) if isinstance(s, Reduce) and s.over == cascade.raxis)
    return Fused(cascade, cascade.stmts[:first], State(accumulators, finalize), post, Certificate("by hand"))


def attention(b: int, h: int, hk: int, i: int, n: int, d: int, dtype: str = "f32", causal: bool = True) -> Fused:
    """softmax(q k^T / sqrt(d)) v with grouped heads; causal is aligned to the end.

    q, y: [b, i, h, d]; k, v: [b, l, hk, d]."""
    head = op("floordiv", Index("h"), i64(h // hk))
    s = op("mul", load("q", dtype, "b", "i", "h", "c"), load("k", dtype, "b", "l", head, "c"))
    scaled: Expr = op("mul", ref("s"), f32(d**-0.5))
    p = op("select", op("le", Index("l"), op("add", Index("i"), i64(n - i))), scaled, NEG_INF) if causal else scaled
    tensors = (Tensor("q", dtype, (b, i, h, d)), Tensor("k", dtype, (b, n, hk, d)), Tensor("v", dtype, (b, n, hk, d)))
    e, v = op("exp", op("sub", ref("p"), ref("m"))), load("v", dtype, "b", "l", head, "e")
    row = ("b", "h", "i")
    y = ref("o") if dtype == "f32" else Cast(ref("o"), dtype)
    cascade = Cascade(
        "attention", tensors,
        tuple(Axis(*a) for a in (("b", b), ("h", h), ("i", i), ("l", n), ("c", d), ("e", d))), "l",
        (Reduce(("s",), (*row, "l"), SUM, "c", s, "f32"), Let("p", (*row, "l"), p),
         Reduce(("m",), row, MAX, "l", ref("p"), "f32"), Reduce(("t",), row, SUM, "l", e, "f32"),
         Reduce(("o",), (*row, "e"), SUM, "l", op("mul", op("div", e, ref("t")), v), "f32"),
         Let("y", ("b", "i", "h", "e"), y)), ("y",))
    weight = minus_ref(ref("p"), ref("m"))
    return fused(cascade, (
        plain("m", row, MAX, ref("p"), NEG_INF),
        running("t", row, "m", weight),
        running("o_acc", (*row, "e"), "m", op("mul", weight, v)),
    ), (Let("m", row, ref("m")), Let("t", row, ref("t")), Let("o", (*row, "e"), op("div", ref("o_acc"), ref("t")))),
        (cascade.stmts[-1],))  # type: ignore[arg-type]


def softmax(i: int, n: int, dtype: str = "f32") -> Fused:
    x, y = load("x", dtype, "i", "l"), op("div", op("exp", op("sub", ref("x32"), ref("m"))), ref("t"))
    cascade = Cascade("softmax", (Tensor("x", dtype, (i, n)),), (Axis("i", i), Axis("l", n)), "l", (
        Let("x32", ("i", "l"), x), Reduce(("m",), ("i",), MAX, "l", ref("x32"), "f32"),
        Reduce(("t",), ("i",), SUM, "l", op("exp", op("sub", ref("x32"), ref("m"))), "f32"),
        Let("y", ("i", "l"), y if dtype == "f32" else Cast(y, dtype))), ("y",))
    return fused(cascade, (
        plain("m", ("i",), MAX, ref("x32"), NEG_INF),
        running("t", ("i",), "m", minus_ref(ref("x32"), ref("m"))),
    ), (), (cascade.stmts[-1],))  # type: ignore[arg-type]


def logsumexp(i: int, n: int) -> Fused:
    x = load("x", "f32", "i", "l")
    cascade = Cascade("logsumexp", (Tensor("x", "f32", (i, n)),), (Axis("i", i), Axis("l", n)), "l", (
        Reduce(("m",), ("i",), MAX, "l", x, "f32"),
        Reduce(("t",), ("i",), SUM, "l", op("exp", op("sub", x, ref("m"))), "f32"),
        Let("y", ("i",), op("add", ref("m"), op("log", ref("t"))))), ("y", "m"))
    return fused(cascade, (plain("m", ("i",), MAX, x, NEG_INF),
                           running("t", ("i",), "m", minus_ref(x, ref("m")))),
                 (), (cascade.stmts[-1],))  # type: ignore[arg-type]


def _moments(x: Expr) -> tuple[Accumulator, ...]:
    """count, sum, and the sum of squares about the running mean (Welford, Chan)."""
    n, s = ref("n"), ref("total")
    mean, old_mean = op("div", s, n), op("div", ref("total@old"), op("max", ref("n@old"), f32(1.0)))
    centred, shift = op("sub", x, mean), op("sub", old_mean, mean)
    return (plain("n", ("i",), SUM, f32(1.0), ZERO), plain("total", ("i",), SUM, x, ZERO),
            Accumulator(("m2",), ("i",), SUM, "f32", (ZERO,), op("mul", centred, centred),
                        (op("select", op("eq", ref("n@old"), ZERO), ZERO,
                            op("add", ref("m2@old"), op("mul", ref("n@old"), op("mul", shift, shift)))),)))


MEAN = Let("mean", ("i",), op("div", ref("total"), ref("n")))


def variance(i: int, n: int) -> Fused:
    x = load("x", "f32", "i", "l")
    cascade = Cascade("variance", (Tensor("x", "f32", (i, n)),), (Axis("i", i), Axis("l", n)), "l", (
        Reduce(("s",), ("i",), SUM, "l", x, "f32"), Let("mean", ("i",), op("div", ref("s"), f32(n))),
        Reduce(("ss",), ("i",), SUM, "l", op("mul", op("sub", x, ref("mean")), op("sub", x, ref("mean"))), "f32"),
        Let("var", ("i",), op("div", ref("ss"), f32(n)))), ("var", "mean"))
    return fused(cascade, _moments(x), (MEAN, Let("ss", ("i",), ref("m2"))), (cascade.stmts[-1],))  # type: ignore[arg-type]


def layer_norm(i: int, n: int, dtype: str = "f32", eps: float = 1e-5) -> Fused:
    x = load("x", dtype, "i", "l")
    centred = op("sub", x, ref("mean"))
    y = op("add", op("mul", op("mul", centred, ref("rstd")), load("w", dtype, "l")), load("bias", dtype, "l"))
    rstd = Let("rstd", ("i",), op("rsqrt", op("add", op("div", ref("ss"), f32(n)), f32(eps))))
    cascade = Cascade("layer_norm", (Tensor("x", dtype, (i, n)), Tensor("w", dtype, (n,)), Tensor("bias", dtype, (n,))),
                      (Axis("i", i), Axis("l", n)), "l", (
        Reduce(("s",), ("i",), SUM, "l", x, "f32"), Let("mean", ("i",), op("div", ref("s"), f32(n))),
        Reduce(("ss",), ("i",), SUM, "l", op("mul", centred, centred), "f32"), rstd,
        Let("y", ("i", "l"), y if dtype == "f32" else Cast(y, dtype))), ("y",))
    return fused(cascade, _moments(x), (MEAN, Let("ss", ("i",), ref("m2"))), (rstd, cascade.stmts[-1]))  # type: ignore[arg-type]


def rms_norm(i: int, n: int, dtype: str = "f32", eps: float = 1e-6) -> Fused:
    x = load("x", dtype, "i", "l")
    y = op("mul", op("mul", x, ref("r")), load("w", dtype, "l"))
    r = Let("r", ("i",), op("rsqrt", op("add", op("div", ref("ss"), f32(n)), f32(eps))))
    tensors = (Tensor("x", dtype, (i, n)), Tensor("w", dtype, (n,)))
    cascade = Cascade("rms_norm", tensors, (Axis("i", i), Axis("l", n)), "l", (
        Reduce(("ss",), ("i",), SUM, "l", op("mul", x, x), "f32"), r,
        Let("y", ("i", "l"), y if dtype == "f32" else Cast(y, dtype))), ("y",))
    return fused(cascade, (plain("ss", ("i",), SUM, op("mul", x, x), ZERO),), (),
                 (r, cascade.stmts[-1]))  # type: ignore[arg-type]


def router(i: int, n: int, d: int, k: int) -> Fused:
    """softmax over experts l of x[i, d] @ w[l, d]^T, then the k largest probabilities and their experts."""
    logits = op("mul", load("x", "f32", "i", "c"), load("w", "f32", "l", "c"))
    prob = op("div", op("exp", op("sub", ref("g"), ref("m"))), ref("t"))
    topk = Reducer("topk", k)
    cascade = Cascade("router", (Tensor("x", "f32", (i, d)), Tensor("w", "f32", (n, d))),
                      tuple(Axis(*a) for a in (("i", i), ("l", n), ("c", d), ("k", k))), "l", (
        Reduce(("g",), ("i", "l"), SUM, "c", logits, "f32"), Reduce(("m",), ("i",), MAX, "l", ref("g"), "f32"),
        Reduce(("t",), ("i",), SUM, "l", op("exp", op("sub", ref("g"), ref("m"))), "f32"),
        Reduce(("top", "expert"), ("i", "k"), topk, "l", prob, "f32")), ("top", "expert"))
    best = Accumulator(("best", "expert"), ("i", "k"), topk, "f32", (NEG_INF, i64(-1)), ref("g"),
                       (ref("best@old"), ref("expert@old", "i64")))
    return fused(cascade, (plain("m", ("i",), MAX, ref("g"), NEG_INF),
                           running("t", ("i",), "m", minus_ref(ref("g"), ref("m"))),
                           best),
                 (Let("top", ("i", "k"), op("div", op("exp", op("sub", ref("best"), ref("m"))), ref("t"))),))


def argmax(i: int, n: int) -> Fused:
    x = load("x", "f32", "i", "l")
    cascade = Cascade("argmax", (Tensor("x", "f32", (i, n)),), (Axis("i", i), Axis("l", n)), "l",
                      (Reduce(("at",), ("i",), Reducer("argmax"), "l", x, "i64"),), ("at",))
    acc = Accumulator(("at_value", "at"), ("i",), Reducer("argmax"), "f32", (NEG_INF, i64(-1)), x,
                      (ref("at_value@old"), ref("at@old", "i64")))
    return fused(cascade, (acc,), ())


def planted(f: Fused) -> Fused:
    """A wrong correction factor: the rebase of every accumulator that rescales is replaced by a plain monoid's."""
    from dataclasses import replace

    broken = tuple(a if len(a.names) > 1 else replace(a, rebase=(ref(f"{a.name}@old", a.dtype),))
                   for a in f.state.accumulators)
    return replace(f, state=replace(f.state, accumulators=broken))


