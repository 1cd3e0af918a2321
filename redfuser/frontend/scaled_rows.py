"""Root-mean-square norms in front of products, taken apart into what the algebra can take out of the sum and what it cannot.

    n = f16(rms_norm(h, g))                    r = rsqrt(mean(h * h) + eps);  n = f16(h * r)
    y = matmul(n, permute(w))        -->       y = matmul(n, permute(w * g))

A scale of the row leaves the sum that the product is; the norm's weight runs along it, and goes into the matrix. That rounds
``w * g`` where the program rounds ``h * r * g``, so it is done under ``elide`` alone; a norm without weight rounds as it did.
It is a proposal: the pipeline takes it where products then read ``h`` itself, else the program as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from redfuser.frontend.builder import Again, renamed
from redfuser.frontend.imported import Imported
from redfuser.tvm_compat import bindings, dtype_of, op_name, relax, results, shape_of

op = relax.op
HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Norm:
    """``n``: the rounded product of rows and their scale; None where it is to be made, of ``rows``, with ``eps``. ``weight``:
    in half precision, by element of the row."""

    n: Any
    rows: Any = None
    weight: Any = None
    eps: float = 0.0


def row_scales(imported: Imported, casts: str, pays: Callable[[int, list[int]], bool]) -> tuple[Imported, dict[str, str]]:
    """The program with norms taken apart that products alone read, where ``pays``, and by the name of each that of the rounded
    rows that it leaves: if no product takes these in, nothing is gained. ``imported`` itself, and no names, where there are
    none. pays: of the bytes of rows, and of the matrices that a weight goes into (none without), as
    :func:`redfuser.partition.cost.scaling_pays` answers."""
    main = imported.mod["main"]
    bound = [(b.var, b.value) for b in bindings(main)]
    values = {v.name_hint: e for v, e in bound}
    kept = {f.name_hint for f in results(main) if isinstance(f, relax.Var)}
    readers: dict[str, list[tuple[Any, Any]]] = {}
    for v, e in bound:
        for a in {x.name_hint for x in getattr(e, "args", ()) if isinstance(x, relax.Var)}:
            readers.setdefault(a, []).append((v, e))
    found: dict[str, Norm] = {}
    for v, _ in bound:
        norm = None if v.name_hint in kept else _norm(v, values)
        if norm is not None and (norm.weight is None or casts == "elide") and (
                matrices := _matrices(v, readers.get(v.name_hint, []), values)) and pays(
                2 * prod(shape_of(v)), matrices if norm.weight is not None else []):
            found[v.name_hint] = norm
    return _Apart(imported, bound, values, found).run() if found else (imported, {})


def _norm(v: Any, values: dict[str, Any]) -> Norm | None:
    """The norm that ends in ``v``: a whole one, or written out and weighted in half precision."""
    e = values[v.name_hint]
    if op_name(e) not in ("astype", "multiply") or dtype_of(v) not in HALF or not shape_of(v):
        return None
    if op_name(e) == "astype":
        whole = values.get(getattr(e.args[0], "name_hint", ""))
        if whole is None or op_name(whole) != "nn.rms_norm" or [int(a) for a in whole.attrs.axes] != [len(shape_of(v)) - 1]:
            return None
        weight, eps = whole.args[1], float(whole.attrs.epsilon)
        if isinstance(weight, relax.Constant):
            return Norm(None, whole.args[0], None, eps) if (weight.data.numpy() == 1).all() else None
        half = _widened(weight, values)
        return Norm(None, whole.args[0], half, eps) if half is not None and dtype_of(half) == dtype_of(v) else None
    for n, g in (e.args, e.args[::-1]):
        if isinstance(n, relax.Var) and shape_of(n) == shape_of(v) and prod(shape_of(g)) == shape_of(v)[-1] == (
                shape_of(g) or (0,))[-1] and dtype_of(g) == dtype_of(v) and _scaled(n, values):
            return Norm(n, weight=g)
    return None


def _widened(x: Any, values: dict[str, Any]) -> Any:
    """What a conversion converts; None for anything else."""
    e = values.get(getattr(x, "name_hint", ""))
    return e.args[0] if e is not None and op_name(e) == "astype" else None


def _scaled(n: Any, values: dict[str, Any]) -> bool:
    """Is it the rounded product of rows and one number for each?"""
    e = values.get(getattr(_widened(n, values), "name_hint", ""))
    return e is not None and op_name(e) == "multiply" and any(shape_of(r) == (*shape_of(n)[:-1], 1) for r in e.args)


def _matrices(v: Any, readers: list[tuple[Any, Any]], values: dict[str, Any]) -> list[int]:
    """The bytes of the matrices of the products that read ``v``; none where others read it."""
    found = []
    for _, e in readers:
        right = e.args[1] if op_name(e) == "matmul" and e.args[0].same_as(v) else None
        turned = values.get(right.name_hint) if isinstance(right, relax.Var) else None
        if right is None or len(shape_of(right)) != 2 or op_name(turned) != "permute_dims":
            return []
        found.append(2 * prod(shape_of(right)))
    return found


class _Apart:
    """``main`` written down again with the norms ``found`` taken apart."""

    def __init__(self, imported: Imported, bound: list[tuple[Any, Any]], values: dict[str, Any],
                 found: dict[str, Norm]) -> None:
        self.imported, self.bound, self.values, self.found = imported, bound, values, found
        params = list(imported.mod["main"].params)
        self.builder = Again(params)
        self.now: dict[str, Any] = {p.name_hint: p for p in params}
        self.weighted: dict[tuple[str, str], Any] = {}

    def run(self) -> tuple[Imported, dict[str, str]]:
        rounded: dict[str, Any] = {}
        for v, e in self.bound:
            self.builder.begin(v.name_hint, self.imported.provenance[v.name_hint])
            norm = self.found.get(v.name_hint)
            left = e.args[0] if op_name(e) == "matmul" else None
            if norm is not None:
                self.now[v.name_hint] = rounded[v.name_hint] = self.apart(norm, dtype_of(v))
            elif isinstance(left, relax.Var) and left.name_hint in self.found:
                right = self.matrix(e.args[1], self.found[left.name_hint].weight)
                self.now[v.name_hint] = self.builder.emit(relax.Call(e.op, [self.again(left), right], e.attrs, e.sinfo_args))
            else:
                self.now[v.name_hint] = self.builder.emit(self.again(e))
        outputs = [self.again(f) for f in results(self.imported.mod["main"])]
        notes = [f"{name}: the norm's weight is a factor of the product's matrix, which rounds once more; weighted rows do not"
                 for name, norm in self.found.items() if norm.weight is not None]
        return replace(self.imported, mod=self.builder.finish(outputs), provenance=self.builder.provenance,
                       notes=(*self.imported.notes, *notes)), {name: x.name_hint for name, x in rounded.items()}

    def apart(self, norm: Norm, dtype: str) -> Any:
        if norm.n is not None:
            return self.again(norm.n)
        emit, x = self.builder.emit, self.again(norm.rows)
        square = emit(op.multiply(x, x), "square")
        self.builder.part()
        mean = emit(op.mean(square, [-1], True), "mean")
        self.builder.part()
        scale = emit(op.rsqrt(emit(op.add(mean, relax.const(norm.eps, "float32")), "eps")), "scale")
        return emit(op.astype(emit(op.multiply(x, scale), "wide"), dtype))

    def matrix(self, right: Any, weight: Any) -> Any:
        """The product's right operand, weighted along its sum."""
        if weight is None:
            return self.again(right)
        key = (right.name_hint, weight.name_hint)
        if key not in self.weighted:
            turned = self.values[right.name_hint]
            row = self.again(weight)
            if len(shape_of(row)) != 1:
                row = self.builder.emit(op.reshape(row, (shape_of(row)[-1],)), "row")
            made = self.builder.emit(op.multiply(self.again(turned.args[0]), row), "weighted")
            self.weighted[key] = self.builder.emit(relax.Call(turned.op, [made], turned.attrs, turned.sinfo_args), "matrix")
        return self.weighted[key]

    def again(self, e: Any) -> Any:
        return renamed(e, self.now)
