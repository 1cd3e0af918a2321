"""Fused cascades with masks, biases and layouts of all kinds, and their float64 references."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redfuser.acrf.cascade import Axis, Cascade, Let, Reduce, Tensor
from redfuser.acrf.expr import Cast, Expr, Index, Load, f32, op
from redfuser.acrf.state import Fused
from tests.fused_examples import MAX, NEG_INF, SUM, fused, i64, load, minus_ref, plain, ref, running

ROW = ("b", "h", "i")


@dataclass(frozen=True)
class Shape:
    b: int = 1
    h: int = 2
    hk: int = 2
    i: int = 40
    n: int = 40
    d: int = 32
    dtype: str = "f16"


def position(name: str) -> Expr:
    return Index(name)


def masks(shape: Shape) -> dict[str, Expr]:
    """Conditions on positions and data, aligned to the end of the keys."""
    i, n = op("add", Index("i"), i64(shape.n - shape.i)), Index("l")
    return {
        "causal": op("le", n, i),
        "causal, turned": op("ge", i, n),
        "strict": op("lt", n, i),
        "window": op("and", op("le", n, i), op("lt", op("sub", i, n), i64(7))),
        "window, two-sided": op("and", op("le", op("sub", n, i), i64(5)), op("le", op("sub", i, n), i64(3))),
        "prefix": op("or", op("le", n, i), op("lt", n, i64(11))),
        "not after": op("not", op("gt", n, i)),
        "data": Load("mask", (Index("b"), Index("i"), Index("l")), "bool"),
        "keys": Load("keys", (Index("b"), Index("l")), "bool"),
        "causal and keys": op("and", op("le", n, i), Load("keys", (Index("b"), Index("l")), "bool")),
        "halves": op("eq", op("floordiv", n, i64(16)), op("floordiv", i, i64(16))),
    }


def attention(shape: Shape, *, mask: Expr | None = None, bias: str = "", cap: float = 0.0, flat: bool = False,
              kv_order: str = "blhd") -> Fused:
    """Attention with a mask, an additive bias (``tile``: [b, h, i, l], ``alibi``: slope[h] * (l - i)), a soft cap.

    flat: q, k, v as [b, s, h * d]; kv_order: the order of k's and v's dimensions."""
    b, h, hk, i, n, d, dtype = shape.b, shape.h, shape.hk, shape.i, shape.n, shape.d, shape.dtype
    head = op("floordiv", Index("h"), i64(h // hk)) if h != hk else Index("h")

    def kv(name: str, column: str) -> Expr:
        if flat:
            return load(name, dtype, "b", "l", op("add", op("mul", head, i64(d)), Index(column)))
        index = {"b": Index("b"), "l": Index("l"), "h": head, "d": Index(column)}
        return load(name, dtype, *(index[c] for c in kv_order))

    q = load("q", dtype, "b", "i", op("add", op("mul", Index("h"), i64(d)), Index("c"))) if flat else \
        load("q", dtype, "b", "i", "h", "c")
    sizes = {"b": b, "l": n, "h": hk, "d": d}
    kv_shape = (b, n, hk * d) if flat else tuple(sizes[c] for c in kv_order)
    tensors = [Tensor("q", dtype, (b, i, h * d) if flat else (b, i, h, d)), Tensor("k", dtype, kv_shape),
               Tensor("v", dtype, kv_shape)]
    p: Expr = op("mul", ref("s"), f32(d**-0.5))
    if cap:
        p = op("mul", op("tanh", op("div", p, f32(cap))), f32(cap))
    if bias == "tile":
        tensors.append(Tensor("bias", "f16", (b, h, i, n)))
        p = op("add", p, load("bias", "f16", "b", "h", "i", "l"))
    if bias == "alibi":
        tensors.append(Tensor("slopes", "f32", (h,)))
        p = op("add", p, op("mul", load("slopes", "f32", "h"), Cast(op("sub", Index("l"), Index("i")), "f32")))
    if mask is not None:
        text = str(mask)
        if "mask[" in text:
            tensors.append(Tensor("mask", "bool", (b, i, n)))
        if "keys[" in text:
            tensors.append(Tensor("keys", "bool", (b, n)))
        p = op("select", mask, p, NEG_INF)
    e = op("exp", op("sub", ref("p"), ref("m")))
    v = kv("v", "e")
    cascade = Cascade(
        "attention", tuple(tensors), tuple(Axis(*a) for a in (("b", b), ("h", h), ("i", i), ("l", n), ("c", d), ("e", d))),
        "l", (Reduce(("s",), (*ROW, "l"), SUM, "c", op("mul", q, kv("k", "c")), "f32"), Let("p", (*ROW, "l"), p),
              Reduce(("m",), ROW, MAX, "l", ref("p"), "f32"), Reduce(("t",), ROW, SUM, "l", e, "f32"),
              Reduce(("o",), (*ROW, "e"), SUM, "l", op("mul", op("div", e, ref("t")), v), "f32"),
              Let("y", ("b", "i", "h", "e"), Cast(ref("o"), dtype))), ("y",))
    weight = minus_ref(ref("p"), ref("m"))
    return fused(cascade, (plain("m", ROW, MAX, ref("p"), NEG_INF), running("t", ROW, "m", weight),
                           running("o_acc", (*ROW, "e"), "m", op("mul", weight, v))),
                 (Let("m", ROW, ref("m")), Let("t", ROW, ref("t")),
                  Let("o", (*ROW, "e"), op("div", ref("o_acc"), ref("t")))), (cascade.stmts[-1],))  # type: ignore[arg-type]


def inputs(f: Fused, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs in storage precision; boolean masks keep at least the first key; integers are of any size."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    types = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
    out: dict[str, np.ndarray] = {}
    for t in f.cascade.inputs:
        if t.dtype == "bool":
            out[t.name] = rng.random(t.shape) < 0.6
            out[t.name][..., 0] = True
        elif t.dtype in ("i8", "i32"):
            most = 2 ** {"i8": 7, "i32": 30}[t.dtype]
            out[t.name] = rng.integers(-most, most, t.shape)
        else:
            scale = 2.0 if t.name == "q" else 1.0
            out[t.name] = (rng.standard_normal(t.shape) * scale).astype(types[t.dtype])
    return out


def evaluate(e: Expr, env: dict[str, np.ndarray], axes: dict[str, np.ndarray]) -> np.ndarray:
    """A float64 evaluation of an expression over broadcast axis positions."""
    from redfuser.acrf.expr import Const, Op, Ref
    from redfuser.tensorize.ir.pointwise import ARRAY

    match e:
        case Const(value=v, dtype=d):
            return np.asarray(v, np.int64 if d.startswith("i") else None)
        case Index(axis=a):
            return axes[a]
        case Load(tensor=n, indices=ix):
            array = env[n]
            array = array if array.dtype == bool else array.astype(np.float64)
            return array[tuple(np.broadcast_arrays(*(evaluate(x, env, axes) for x in ix)))]
        case Ref(name=n):
            return env[f"@{n}"]
        case Cast(arg=a, dtype=d):
            return evaluate(a, env, axes).astype(np.float64)
        case Op(name=name, args=args):
            return ARRAY[name](*(evaluate(a, env, axes) for a in args))
    raise TypeError(e)


def reference(f: Fused, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every statement of the cascade, unfused, in float64; values have the cascade's full rank with size-1 axes."""
    cascade = f.cascade
    order = [a.name for a in cascade.axes]
    axes = {a.name: np.arange(a.extent).reshape([-1 if x == a.name else 1 for x in order]) for a in cascade.axes}
    env: dict[str, np.ndarray] = dict(values)
    reducers = {"sum": np.sum, "max": np.max, "min": np.min}
    out: dict[str, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for s in cascade.stmts:
            value = evaluate(s.expr, env, axes)
            own = [a for a in order if a in s.axes]
            if isinstance(s, Reduce):
                over = order.index(s.over)
                shape = [cascade.extent(a) if a in (*own, s.over) else 1 for a in order]
                value = reducers[s.reducer.kind](np.broadcast_to(value, shape), axis=over, keepdims=True)
            env[f"@{s.name}"] = value
            full = np.broadcast_to(value, [cascade.extent(a) if a in own else 1 for a in order])
            flat = full.reshape([cascade.extent(a) for a in own])
            out[s.name] = flat.transpose([own.index(a) for a in s.axes])
    return {n: out[n] for n in cascade.outputs}


def unbounded(f: Fused) -> Fused:
    """The same sums without their maximum: exp(p) grows without a bound."""
    from dataclasses import replace

    from redfuser.acrf.expr import Ref, substitute

    m, t, o = f.state.accumulators
    zero = {"m": f32(0.0), "m@old": f32(0.0)}
    bare = tuple(replace(a, contribution=substitute(a.contribution, zero), rebase=(Ref(f"{a.name}@old", "f32"),))
                 for a in (t, o))
    return replace(f, state=replace(f.state, accumulators=(m, *bare)))
