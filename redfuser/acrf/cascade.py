"""Cascades and their statements, over the expressions of :mod:`redfuser.acrf.expr`, where the grammar of both stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from redfuser.acrf.expr import Expr, Index, Load, print_expr, walk

Extent = Union[int, str]
"""A static extent, or the name of a symbolic one."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a statement came from: the user's op and source line. Never part of equality or of the text key. ``code``: the
    text of that line; ``module``: the path of the module that ran it (``layers.0.attn``)."""

    op: str = ""
    source: str = ""
    code: str = field(default="", compare=False)
    module: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Reducer:
    """A commutative monoid: ``sum prod max min any all argmax argmin topk``. ``topk(k)`` yields (values, indices),
    ``argmax``/``argmin`` an index; ties go to the lowest index. NaN propagates as in the source program."""

    kind: str
    k: int = 1

    def __str__(self) -> str:
        return f"topk({self.k})" if self.kind == "topk" else self.kind


@dataclass(frozen=True, slots=True)
class Let:
    """``name[axes] = expr``: a value per point of ``axes``. Over the r-axis before any reduction: a producer."""

    name: str
    axes: tuple[str, ...]
    expr: Expr
    provenance: Provenance = field(default=Provenance(), compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def __str__(self) -> str:
        return f"{_result(self.name, self.axes)} = {print_expr(self.expr)}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """``names[axes] = op[over] expr``. ``over`` is the cascade's r-axis, or an inner axis of a contraction whose
    result still has the r-axis among ``axes`` (``s[i,l] = sum[c] q[i,c]*k[l,c]``: a producer). ``topk`` has two names
    (values, indices) whose results carry one extra trailing axis, named ``axes[-1]``, of extent k.

    Over an axis that is also one of ``axes`` it is *running* (``y[i, l] = sum[..l] x[i, l]``): the value at a point is the
    reduction of the elements up to it, itself included.

    ``dtype`` is part of the program: floats narrower than fp32 are accumulated in fp32 and the whole sum is rounded to
    ``dtype`` once, as PyTorch's reductions and matrix products do."""

    names: tuple[str, ...]
    axes: tuple[str, ...]
    reducer: Reducer
    over: str
    expr: Expr
    dtype: str
    provenance: Provenance = field(default=Provenance(), compare=False)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def running(self) -> bool:
        return self.over in self.axes

    def __str__(self) -> str:
        left = ", ".join(_result(n, self.axes) for n in self.names)
        kept = "" if self.dtype == default_dtype(self.reducer, self.expr) else f": {self.dtype}"
        return f"{left}{kept} = {self.reducer}[{'..' * self.running}{self.over}] {print_expr(self.expr)}"


Stmt = Union[Let, Reduce]


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis with its extent."""

    name: str
    extent: Extent


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input tensor's declaration."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Cascade:
    """A list of statements over one common r-axis under common p-axes (algebra.md section 1).

    ``axes`` lists every axis used; ``raxis`` names the common reduction axis; ``outputs`` names the statements whose
    values leave the cascade (an output may still carry the r-axis: a map over the row, as in softmax or LayerNorm).
    """

    name: str
    inputs: tuple[Tensor, ...]
    axes: tuple[Axis, ...]
    raxis: str
    stmts: tuple[Stmt, ...]
    outputs: tuple[str, ...]

    def extent(self, axis: str) -> Extent:
        return next(a.extent for a in self.axes if a.name == axis)

    def stmt(self, name: str) -> Stmt:
        return next(s for s in self.stmts if name in s.names)

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.inputs if t.name == name)

    def __str__(self) -> str:
        head = f"cascade {self.name}({', '.join(map(str, self.inputs))}) over {self.raxis}{_where(self)}"
        body = [f"  {s}" for s in self.stmts]
        return "\n".join([head, *body, f"  return {', '.join(self.outputs)}"])


def stmt_dtype(s: Stmt, name: str) -> str:
    """The dtype of one of a statement's names (topk's second name is an index)."""
    if isinstance(s, Let):
        return s.expr.dtype
    return "i64" if s.reducer.kind == "topk" and name == s.names[1] else s.dtype


def default_dtype(reducer: Reducer, expr: Expr) -> str:
    """The dtype of a reduction that its statement need not spell: the body's, or i64 for an index."""
    return "i64" if reducer.kind in ("argmax", "argmin") else expr.dtype


def axes_in_order(stmts: tuple[Stmt, ...]) -> tuple[str, ...]:
    """Every axis the statements name, in the order in which their text names them first."""
    seen: dict[str, None] = {}
    for s in stmts:
        seen.update(dict.fromkeys(s.axes))
        if isinstance(s, Reduce):
            seen[s.over] = None
        seen.update(dict.fromkeys(x.axis for x in walk(s.expr) if isinstance(x, Index)))
    return tuple(seen)


def inferable_extents(tensors: tuple[Tensor, ...], stmts: tuple[Stmt, ...]) -> dict[str, Extent | None]:
    """Extents that the text need not state: of axes that index a tensor's dimension directly, and of topk's own axis.
    None where two dimensions disagree."""
    shapes = {t.name: t.shape for t in tensors}
    out: dict[str, Extent | None] = {}

    def note(axis: str, extent: Extent) -> None:
        out[axis] = extent if out.get(axis, extent) == extent else None

    for s in stmts:
        if isinstance(s, Reduce) and s.reducer.kind == "topk" and s.axes:
            note(s.axes[-1], s.reducer.k)
        for x in walk(s.expr):
            if isinstance(x, Load):
                for index, extent in zip(x.indices, shapes.get(x.tensor, ()), strict=False):
                    if isinstance(index, Index):
                        note(index.axis, extent)
    return out


def _result(name: str, axes: tuple[str, ...]) -> str:
    return f"{name}[{', '.join(axes)}]" if axes else name


def _where(c: Cascade) -> str:
    """The ``where`` clause: axes whose extent or place the rest of the text does not determine."""
    known = inferable_extents(c.inputs, c.stmts)
    in_order = tuple(a.name for a in c.axes) == tuple(dict.fromkeys((*axes_in_order(c.stmts), c.raxis)))
    stated = [a for a in c.axes if not in_order or known.get(a.name) != a.extent]
    return f" where {', '.join(f'{a.name} = {a.extent}' for a in stated)}" if stated else ""
