"""Text to cascades: the inverse of ``str``, and what people write by hand.

::

    cascade softmax_denominator(x: f32[L]) over l
      m = max[l] x[l]
      t = sum[l] exp(x[l] - m)

:mod:`redfuser.acrf.syntax` reads the characters; this module settles names, axes and dtypes. What a text may leave out:

* result axes: all axes of the right-hand side except the reduced one, in order of appearance;
* extents of axes that index a dimension directly, and ``topk``'s own trailing axis;
* dtypes of numbers: a bare number takes the dtype of the operand beside it, else f32 (i64 in an index position);
* ``return``: the statements that no later one reads;
* the extent symbol of the r-axis, used as a value (``s / L``), stands for a count ``sum[l] 1.0``.

Every error is an :class:`~redfuser.errors.InputError` with line, column and a caret: RF180 syntax, RF181 names, RF182
dtypes, RF183 axes and shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from redfuser.acrf.expr import (
    BINARY,
    COMPARISONS,
    DTYPES,
    FLOATS,
    Axis,
    Cascade,
    Cast,
    Const,
    Expr,
    Extent,
    Index,
    Let,
    Load,
    Op,
    Provenance,
    Reduce,
    Reducer,
    Ref,
    Stmt,
    Tensor,
    axes_in_order,
    default_dtype,
    inferable_extents,
    refs_of,
    walk,
)
from redfuser.acrf.syntax import KEYWORDS, REDUCERS, Name, Node, Program, Reader, Source, Statement

_LOGIC = frozenset({"and", "or", "not"})
_FLOAT_ONLY = frozenset({"sqrt", "rsqrt", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "erf", "floor", "ceil",
                         "round", "sin", "cos", "isnan", "div", "pow"})


def parse_cascade(text: str, name: str = "<text>") -> Cascade:
    """The one cascade that ``text`` spells. ``name`` (a file name) appears in errors. Raises InputError (RF18x)."""
    found = parse_cascades(text, name)
    if len(found) != 1:
        Source(text, name).fail("RF180", 0, f"expected one cascade, found {len(found)}")
    return found[0]


def parse_cascades(text: str, name: str = "<text>") -> list[Cascade]:
    """Every cascade in a file's text, in order. Raises InputError (RF18x)."""
    source = Source(text, name)
    try:
        reader = Reader(source)
        out = []
        reader.skip_lines()
        while reader.here.kind != "end":
            out.append(_elaborate(reader.program(), source))
            reader.skip_lines()
        return out
    except RecursionError:
        source.fail("RF180", 0, "the text nests too deeply", help="give inner expressions statements of their own")


def parse_expr(text: str, refs: Mapping[str, str] | None = None, tensors: Mapping[str, str] | None = None) -> Expr:
    """One expression. ``refs`` and ``tensors`` give the dtype of each name that is one; every other name is an axis.

    Raises InputError (RF18x)."""
    source = Source(text)
    try:
        reader = Reader(source)
        reader.skip_lines()
        tree = reader.expression()
        reader.skip_lines()
        if reader.here.kind != "end":
            reader.unexpected("an operator or the end of the text")
        scope = _Scope(source, lenient=True)
        scope.dtypes.update(refs or {})
        scope.tensors.update({n: Tensor(n, d, ()) for n, d in (tensors or {}).items()})
        return scope.expr(tree)
    except RecursionError:
        source.fail("RF180", 0, "the text nests too deeply")


# -- one cascade -------------------------------------------------------------------------------------------------------


def _elaborate(program: Program, source: Source) -> Cascade:
    scope = _Scope(source)
    for d in program.inputs:
        scope.declare(d.name, f"input {d.name.text}")
        if d.name.text in REDUCERS:
            source.fail("RF181", d.name.at, f"an input cannot be called '{d.name.text}', the name of a reduction")
        scope.tensors[d.name.text] = Tensor(d.name.text, d.dtype, d.shape)
    scope.find_axes(program)
    stmts: list[Stmt] = []
    for s in program.stmts:
        stmts.append(scope.statement(s))
        for r in s.results:
            scope.declare(r.name, f"statement {r.name.text}")
    if scope.counted:
        stmts.insert(0, Reduce((scope.count_name,), (), Reducer("sum"), program.over.text, Const(1.0, "f32"), "f32"))
    if not stmts:
        source.fail("RF180", program.at, f"the cascade {program.name} has no statements")
    tensors = tuple(scope.tensors[d.name.text] for d in program.inputs)
    axes = _axes(program, tensors, tuple(stmts), scope)
    return Cascade(program.name, tensors, axes, program.over.text, tuple(stmts), _outputs(program, stmts, source))


def _axes(program: Program, tensors: tuple[Tensor, ...], stmts: tuple[Stmt, ...], scope: _Scope) -> tuple[Axis, ...]:
    stated: dict[str, Extent] = {a.text: e for a, e in program.where}
    known = inferable_extents(tensors, stmts)
    shown = tuple(dict.fromkeys((*axes_in_order(stmts), program.over.text)))
    order = tuple(stated) if set(shown) <= set(stated) else tuple(dict.fromkeys((*shown, *stated)))
    out = []
    for name in order:
        extent = stated.get(name, known.get(name) or scope.extents.get(name))
        at = scope.axis_places.get(name, program.at)
        if name in known and known[name] is None and name not in stated:
            scope.source.fail("RF183", at, f"axis {name} indexes dimensions of different extents",
                              help=f"state its own: over {program.over.text} where {name} = ...")
        if extent is None:
            scope.source.fail("RF183", at, f"the extent of axis {name} cannot be inferred",
                              why="it indexes no dimension directly",
                              help=f"state it: over {program.over.text} where {name} = 64")
        out.append(Axis(name, extent))
    return tuple(out)


def _outputs(program: Program, stmts: list[Stmt], source: Source) -> tuple[str, ...]:
    names = [n for s in stmts for n in s.names]
    if program.returns is None:
        read = {r for s in stmts for r in refs_of(s.expr)}
        return tuple(n for s in stmts for n in s.names if not read & set(s.names))
    for r in program.returns:
        if r.text not in names:
            source.fail("RF181", r.at, f"no statement is called '{r.text}'")
    if len({r.text for r in program.returns}) < len(program.returns):
        source.fail("RF181", program.returns[0].at, "a result is returned twice")
    return tuple(r.text for r in program.returns)


# -- names, axes, dtypes -----------------------------------------------------------------------------------------------


@dataclass
class _Scope:
    """What the names mean at one point of the text. ``lenient``: unknown names are axes (a lone expression)."""

    source: Source
    lenient: bool = False
    tensors: dict[str, Tensor] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    stmt_axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)
    extents: dict[str, Extent | None] = field(default_factory=dict)
    axis_places: dict[str, int] = field(default_factory=dict)
    raxis_extent: Extent | None = None
    counted: bool = False
    count_name: str = ""

    def declare(self, name: Name, what: str) -> None:
        if "@" in name.text:
            self.source.fail("RF181", name.at, f"'{name.text}' is a state version, not a name a cascade may define")
        if name.text in self.declared:
            self.source.fail("RF181", name.at, f"'{name.text}' is already {self.declared[name.text]}")
        self.declared[name.text] = what

    def find_axes(self, program: Program) -> None:
        """Which names are axes: those on a left side, reduced over, stated, or alone in an index position."""
        found: list[tuple[Name, Extent | None]] = [(program.over, None)]
        found += [(a, e) for a, e in program.where]
        results = {r.name.text for s in program.stmts for r in s.results}
        for s in program.stmts:
            found += [(a, None) for r in s.results for a in r.axes or ()]
            found += [(s.over, None)] if s.over else []
            found += [(n, None) for n in _lone_indices(s.body) if n.text not in results and n.text not in self.tensors]
        for axis, extent in found:
            if axis.text in results or axis.text in self.tensors or "@" in axis.text:
                self.source.fail("RF181", axis.at, f"'{axis.text}' names both an axis and a value")
            self.extents[axis.text] = extent or self.extents.get(axis.text)
            self.axis_places.setdefault(axis.text, axis.at)
        self.declared.update({a: "an axis" for a in self.extents})
        direct = {d for _, d in self._direct(program, program.over.text)}
        self.raxis_extent = self.extents[program.over.text] or (direct.pop() if len(direct) == 1 else None)
        taken = results | set(self.tensors) | set(self.extents)
        self.count_name = next(n for i in range(len(taken) + 1)
                               if (n := f"count_{self.raxis_extent}" + "_" * i) not in taken)

    def _direct(self, program: Program, axis: str) -> list[tuple[str, Extent]]:
        out: list[tuple[str, Extent]] = []

        def go(e: Node) -> None:
            if e.kind == "subscript" and e.name in self.tensors:
                out.extend((a.name, d) for a, d in zip(e.args, self.tensors[e.name].shape, strict=False)
                           if a.kind == "name" and a.name == axis)
            for a in e.args:
                go(a)

        for s in program.stmts:
            go(s.body)
        return out

    # -- statements --

    def statement(self, s: Statement) -> Stmt:
        kind = s.reducer
        body = self.expr(s.body)
        free = _free_axes(body, self.stmt_axes)
        axes = self._result_axes(s, free)
        if kind is None:
            if len(s.results) > 1 or s.dtype is not None:
                self.source.fail("RF180", s.at, "only topk has two results, and only a reduction a dtype of its own")
            self._define(s, axes, body.dtype)
            return Let(s.results[0].name.text, axes, body, self._place(s))
        assert s.over is not None
        if len(s.results) != (2 if kind == "topk" else 1):
            self.source.fail("RF180", s.at, f"{kind} gives {'values and indices' if kind == 'topk' else 'one result'}")
        if (kind in ("any", "all")) != (body.dtype == "bool"):
            self.source.fail("RF182", s.body.at, f"{kind} cannot reduce {body.dtype}",
                             help="any and all reduce bool; cast to reduce otherwise")
        if kind == "topk" and s.k < 1:
            self.source.fail("RF183", s.at, "topk needs k >= 1")
        reducer = Reducer(kind, s.k)
        dtype = s.dtype or default_dtype(reducer, body)
        self._define(s, axes, dtype)
        names = tuple(r.name.text for r in s.results)
        return Reduce(names, axes, reducer, s.over.text, body, dtype, self._place(s))

    def _place(self, s: Statement) -> Provenance:
        return Provenance(source=f"{self.source.name}:{self.source.text.count(chr(10), 0, s.at) + 1}")

    def _define(self, s: Statement, axes: tuple[str, ...], dtype: str) -> None:
        for i, r in enumerate(s.results):
            if r.name.text in KEYWORDS:
                self.source.fail("RF181", r.name.at, f"'{r.name.text}' is a keyword")
            self.dtypes[r.name.text] = "i64" if i else dtype
            self.stmt_axes[r.name.text] = axes

    def _result_axes(self, s: Statement, free: tuple[str, ...]) -> tuple[str, ...]:
        over = s.over.text if s.over else None
        own: tuple[str, ...] = ()
        kept = tuple(a for a in free if a != over)
        given = [r.axes for r in s.results if r.axes is not None]
        if not given:
            if s.reducer == "topk":
                own = (next(n for i in range(2, 99) for n in ("k" if i == 2 else f"k{i - 1}",)
                            if n not in self.declared and n not in self.tensors and n not in self.dtypes),)
                self.extents[own[0]], self.declared[own[0]] = s.k, "an axis"
            return kept + own
        axes = tuple(a.text for a in given[0])
        place = given[0][0].at
        if any(tuple(a.text for a in g) != axes for g in given[1:]):
            self.source.fail("RF183", place, "values and indices must have the same axes")
        if len(set(axes)) < len(axes):
            self.source.fail("RF183", place, "a result axis is repeated")
        if over in axes:
            self.source.fail("RF183", place, f"axis {over} is reduced and cannot be a result axis")
        if missing := [a for a in kept if a not in axes]:
            self.source.fail("RF183", place, f"axis {missing[0]} is free on the right but not among the result axes",
                             help=f"write {s.results[0].name.text}[{', '.join((*axes, *missing))}]")
        if s.reducer == "topk" and axes[-1] in kept:
            self.source.fail("RF183", place, "topk's results need a trailing axis of their own, for the rank",
                             help=f"write {s.results[0].name.text}[{', '.join((*kept, 'k'))}]")
        return axes

    # -- expressions --

    def expr(self, e: Node, want: str = "f32") -> Expr:
        """Type one node. ``want``: the dtype a bare number takes when nothing beside it says otherwise."""
        if e.kind == "number":
            return self._number(e, want)
        if e.kind == "bool":
            return Const(e.name == "true", "bool")
        if e.kind == "name":
            return self._name(e)
        if e.kind == "subscript":
            return self._subscript(e)
        if e.kind == "call" and e.name in DTYPES:
            return self._cast(e)
        return self._op(e, want)

    def _number(self, e: Node, dtype: str) -> Const:
        digits = e.name.lstrip("-")
        if dtype in FLOATS:
            return Const(float(e.name), dtype)
        if not digits.isdigit() or dtype == "bool" or len(digits) > 19:
            self.source.fail("RF182", e.at, f"{e.name} is not a value of {dtype}",
                             help="cast the operand beside it, or this number: f32(...)")
        return Const(int(e.name), dtype)

    def _name(self, e: Node) -> Expr:
        if e.name in self.dtypes:
            return Ref(e.name, self.dtypes[e.name])
        if e.name in self.tensors:
            t = self.tensors[e.name]
            if t.shape:
                self.source.fail("RF183", e.at, f"{e.name} has {len(t.shape)} dimensions and is read without indices",
                                 help=f"write {e.name}[...], one index per dimension")
            return Load(e.name, (), t.dtype)
        if e.name in self.extents or self.lenient:
            return Index(e.name)
        if e.name == self.raxis_extent:
            self.counted = True
            return Ref(self.count_name, "f32")
        self._unknown(e)

    def _unknown(self, e: Node) -> NoReturn:
        symbols = {d for t in self.tensors.values() for d in t.shape}
        if e.name in symbols:
            self.source.fail("RF181", e.at, f"{e.name} is the extent of a dimension, not a value",
                             help="only the r-axis's own extent can be read as a value; count with sum[axis] 1.0")
        later = self.declared.get(e.name)
        help = f"'{e.name}' is {later}" if later else "names are inputs, earlier statements and axes"
        self.source.fail("RF181", e.at, f"nothing here is called '{e.name}'", help=help)

    def _subscript(self, e: Node) -> Expr:
        indices = tuple(self._integer(a) for a in e.args)
        if e.name in self.tensors:
            t = self.tensors[e.name]
            if len(t.shape) != len(indices) and not self.lenient:
                self.source.fail("RF183", e.at, f"{e.name} has {len(t.shape)} dimensions, {len(indices)} indices given")
            return Load(e.name, indices, t.dtype)
        if e.name in self.dtypes:
            own = self.stmt_axes.get(e.name)
            if own is not None and len(own) != len(indices):
                self.source.fail("RF183", e.at, f"{e.name} has {len(own)} axes, {len(indices)} indices given")
            pointwise = own is not None and indices == tuple(Index(a) for a in own)
            for axis, i in zip(own or (), indices, strict=False):
                if isinstance(i, Index) and not self.extents.get(i.axis):
                    self.extents[i.axis] = self.extents.get(axis)
            return Ref(e.name, self.dtypes[e.name], () if pointwise else indices)
        self._unknown(e)

    def _integer(self, e: Node) -> Expr:
        index = self.expr(e, "i64")
        if index.dtype in FLOATS or index.dtype == "bool":
            self.source.fail("RF182", e.at, f"an index must be an integer, this is {index.dtype}",
                             help="cast it: i64(...)")
        return index

    def _cast(self, e: Node) -> Expr:
        if len(e.args) != 1:
            self.source.fail("RF180", e.at, f"a cast to {e.name} takes one operand")
        if e.args[0].kind == "number":
            return self._number(e.args[0], e.name)
        return Cast(self.expr(e.args[0]), e.name)

    def _op(self, e: Node, want: str) -> Expr:
        name = e.name
        arity = 3 if name == "select" else 2 if name in BINARY or name in ("pow", "min", "max") else 1
        if len(e.args) != arity:
            self.source.fail("RF180", e.at, f"{name} takes {arity} operands, {len(e.args)} given")
        if name in _LOGIC:
            return Op(name, tuple(self._boolean(a) for a in e.args), "bool")
        if name == "select":
            x, y = self._alike(e, e.args[1:], want)
            return Op(name, (self._boolean(e.args[0]), x, y), x.dtype)
        args = self._alike(e, e.args, "f32" if name in COMPARISONS or name == "isnan" else want)
        dtype = args[0].dtype
        if dtype == "bool" and name not in ("eq", "ne"):
            self.source.fail("RF182", e.at, f"{name} does not take bool", help="cast it, or use and, or, not, select")
        if dtype not in FLOATS and name in _FLOAT_ONLY:
            self.source.fail("RF182", e.at, f"{name} takes a float, this is {dtype}",
                             help="cast it: f32(...)" + (", or divide with //" if name == "div" else ""))
        return Op(name, args, "bool" if name in COMPARISONS or name == "isnan" else dtype)

    def _boolean(self, e: Node) -> Expr:
        x = self.expr(e)
        if x.dtype != "bool":
            self.source.fail("RF182", e.at, f"a condition must be bool, this is {x.dtype}", help="compare: x != 0")
        return x

    def _alike(self, e: Node, args: tuple[Node, ...], want: str) -> tuple[Expr, ...]:
        """Type operands that must share one dtype; bare numbers among them take it."""
        typed = {i: self.expr(a) for i, a in enumerate(args) if not _bare(a)}
        dtype = next(iter(typed.values())).dtype if typed else want
        out = tuple(typed[i] if i in typed else self.expr(a, dtype) for i, a in enumerate(args))
        if odd := next((x for x in out if x.dtype != out[0].dtype), None):
            self.source.fail("RF182", e.at, f"{e.name} of {out[0].dtype} and {odd.dtype}",
                             help=f"cast one side: {out[0].dtype}(...)")
        return out


def _bare(e: Node) -> bool:
    """Bare numbers only, so that the dtype comes from outside (the text's side of expr.is_literal)."""
    if e.kind == "number":
        return True
    if e.name == "select" and e.kind == "call":
        return all(_bare(a) for a in e.args[1:])
    typed = e.name in DTYPES or e.name in COMPARISONS or e.name in _LOGIC or e.name == "isnan"
    return e.kind in ("op", "call") and not typed and all(_bare(a) for a in e.args)


def _lone_indices(e: Node) -> list[Name]:
    own = [Name(a.name, a.at) for a in e.args if a.kind == "name"] if e.kind == "subscript" else []
    return own + [n for a in e.args for n in _lone_indices(a)]


def _free_axes(e: Expr, stmt_axes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Axes the value depends on, in order of appearance."""
    out: dict[str, None] = {}
    for x in walk(e):
        if isinstance(x, Index):
            out[x.axis] = None
        elif isinstance(x, Ref) and not x.indices:
            out.update(dict.fromkeys(stmt_axes.get(x.name, ())))
    return tuple(out)


__all__ = ["parse_cascade", "parse_cascades", "parse_expr"]
