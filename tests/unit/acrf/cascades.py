"""Random expressions and cascades, drawn from the grammar by a seeded generator (hypothesis draws the seeds)."""

from __future__ import annotations

import math
import random

from redfuser.acrf.cascade import Axis, Cascade, Let, Reduce, Reducer, Stmt, Tensor, axes_in_order, default_dtype
from redfuser.acrf.expr import Cast, Const, Expr, Index, Load, Op, Ref, walk

TENSORS = (Tensor("x", "f32", ("I", "L")), Tensor("y", "f16", ("L",)), Tensor("w", "f32", ("L", 64)),
           Tensor("n", "i64", ("L",)), Tensor("b", "bool", ("I", "L")), Tensor("k", "i32", ("I",)))
EXTENTS = {"i": "I", "l": "L", "c": 64, "h": 8}
_FLOAT1 = ["abs", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "sin",
           "cos", "neg"]
_SOURCES = {"f32": ["f16", "f64", "i64", "bool", "f32"], "f16": ["f32"], "i64": ["f32", "bool", "i32"],
            "bool": ["i64", "f32"]}


def const(rng: random.Random, dtype: str) -> Const:
    if dtype == "bool":
        return Const(rng.random() < 0.5, "bool")
    if dtype[0] in "iu":
        return Const(rng.randint(-9, 9), dtype)
    return Const(rng.choice([float(rng.randint(-4, 4)), rng.gauss(0, 1), 10.0 ** rng.randint(-30, 30), math.inf,
                             -math.inf, -0.0, math.nan]), dtype)


def expr(rng: random.Random, dtype: str, refs: dict[str, str], depth: int = 3) -> Expr:
    """Any well-typed expression of a dtype."""
    def sub(d: str) -> Expr:
        return expr(rng, d, refs, depth - 1)

    known = [n for n, d in refs.items() if d == dtype]
    loads = [t for t in TENSORS if t.dtype == dtype]
    what = rng.choice(["const", "ref", "index", "load", "load", *(["op", "op", "op", "cast", "select"] if depth else [])])
    if what == "ref" and known:
        return Ref(rng.choice(known), dtype)
    if what == "index" and dtype == "i64":
        return Index(rng.choice("ilch"))
    if what == "load" and loads:
        t = rng.choice(loads)
        return Load(t.name, tuple(Index(rng.choice("ilch")) if not depth or rng.random() < 0.6 else sub("i64")
                                  for _ in t.shape), dtype)
    if what == "cast":
        return Cast(sub(rng.choice(_SOURCES.get(dtype, ["f32"]))), dtype)
    if what == "select":
        return Op("select", (sub("bool"), sub(dtype), sub(dtype)), dtype)
    if what != "op":
        return const(rng, dtype)
    if dtype != "bool":
        if rng.random() < 0.35:
            return Op(rng.choice(_FLOAT1 if dtype[0] == "f" else ["neg", "abs"]), (sub(dtype),), dtype)
        names = ["add", "sub", "mul", "mod", "floordiv", "min", "max", *(["div", "pow"] if dtype[0] == "f" else [])]
        return Op(rng.choice(names), (sub(dtype), sub(dtype)), dtype)
    kind = rng.choice(["compare", "and", "or", "not", "isnan"])
    if kind == "compare":
        d = rng.choice(["f32", "i64", "f16"])
        return Op(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]), (sub(d), sub(d)), "bool")
    if kind == "isnan":
        return Op("isnan", (sub("f32"),), "bool")
    return Op(kind, tuple(sub("bool") for _ in range(1 if kind == "not" else 2)), "bool")


def cascade(seed: int) -> Cascade:
    """Any well-typed cascade: its text must read back, whether or not it can fuse."""
    rng = random.Random(seed)
    refs: dict[str, str] = {}
    shapes: dict[str, tuple[str, ...]] = {}
    stmts: list[Stmt] = []
    for i in range(rng.randint(1, 4)):
        stmts.append(_statement(rng, i, refs, shapes))
        s = stmts[-1]
        dtype = s.dtype if isinstance(s, Reduce) else s.expr.dtype
        refs |= {s.names[0]: dtype, **{n: "i64" for n in s.names[1:]}}
        shapes |= {n: s.axes for n in s.names}
    used = list(dict.fromkeys((*axes_in_order(tuple(stmts)), "l")))
    ks = {s.axes[-1]: s.reducer.k for s in stmts if isinstance(s, Reduce) and s.reducer.kind == "topk"}
    fixed = rng.random() < 0.3
    order = used if rng.random() < 0.5 else sorted(used)
    axes = tuple(Axis(a, ks.get(a, 7 if fixed else EXTENTS.get(a, 7))) for a in order)
    outputs = rng.sample(sorted(refs), rng.randint(1, min(3, len(refs))))
    return Cascade("random", TENSORS, axes, "l", tuple(stmts), tuple(outputs))


def _statement(rng: random.Random, i: int, refs: dict[str, str], shapes: dict[str, tuple[str, ...]]) -> Stmt:
    dtype = rng.choice(["f32", "f32", "f16", "i64", "bool"])
    body = expr(rng, dtype, refs)
    if shapes and rng.random() < 0.5:
        named = rng.choice(sorted(shapes))
        index = tuple(expr(rng, "i64", {}, 1) for _ in shapes[named])
        if index and refs[named] == dtype != "bool" and index != tuple(Index(a) for a in shapes[named]):
            body = Op("add", (body, Ref(named, dtype, index)), dtype)
    free = list(axes_in_order((Let("_", (), body),)))
    for x in walk(body):
        if isinstance(x, Ref) and not x.indices:
            free += [a for a in shapes[x.name] if a not in free]
    over = rng.choice("llc")
    kept = [a for a in free if a != over]
    rng.shuffle(kept)
    kind = rng.choice(["let", "sum", "max", "argmax", "topk", "prod"])
    if kind == "let":
        return Let(f"s{i}", (*kept, *([over] if over in free else [])), body)
    if dtype == "bool":
        kind = rng.choice(["any", "all"])
    reducer = Reducer(kind, rng.randint(1, 5) if kind == "topk" else 1)
    wide = rng.choice(["f32", "f64"]) if kind == "sum" and dtype == "f16" else default_dtype(reducer, body)
    own = (f"r{i}",) if kind == "topk" else ()
    return Reduce((f"s{i}", f"p{i}") if own else (f"s{i}",), (*kept, *own), reducer, over, body, wide)
