"""The names of one cascade's text: which are axes, what a statement defines, along which axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from redfuser.acrf.cascade import Extent, Let, Provenance, Reduce, Reducer, Stmt, default_dtype
from redfuser.acrf.cursor import KEYWORDS
from redfuser.acrf.expr import Expr, Index, Ref, walk
from redfuser.acrf.tree import Name, Node, Program, Statement
from redfuser.acrf.typed import Typing


@dataclass
class Scope(Typing):
    """The names known so far, and what kind each is."""

    declared: dict[str, str] = field(default_factory=dict)
    axis_places: dict[str, int] = field(default_factory=dict)

    def declare(self, name: Name, what: str) -> None:
        if "@" in name.text:
            self.source.fail("RF181", name.at, f"'{name.text}' is a state version, not a name a cascade may define",
                             help="versions (m@old) belong to the derived state; choose a name without @")
        if name.text in self.declared:
            self.source.fail("RF181", name.at, f"'{name.text}' is already {self.declared[name.text]}",
                             help="give each input, statement and axis a name of its own")
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
                self.source.fail("RF181", axis.at, f"'{axis.text}' names both an axis and a value",
                                 help="rename one of them: an axis is no tensor and no statement")
            self.extents[axis.text] = self.extents.get(axis.text) if extent is None else extent
            self.axis_places.setdefault(axis.text, axis.at)
        self.declared.update({a: "an axis" for a in self.extents})
        self.coming = {r.name.text: self.source.line(s.at) for s in program.stmts for r in s.results}
        direct = {d for _, d in self._direct(program, program.over.text)}
        stated = self.extents[program.over.text]
        self.raxis_extent = stated if stated is not None else direct.pop() if len(direct) == 1 else None
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
        axes = self._result_axes(s, _free_axes(body, self.stmt_axes))
        if kind is None:
            if len(s.results) > 1 or s.dtype is not None:
                self.source.fail("RF180", s.at, "only topk has two results, and only a reduction a dtype of its own",
                                 help="a conversion is a cast: f16(...)")
            self._define(s, axes, body.dtype)
            return Let(s.results[0].name.text, axes, body, self._place(s))
        assert s.over is not None
        if len(s.results) != (2 if kind == "topk" else 1):
            self.source.fail("RF180", s.at, f"{kind} gives {'values and indices' if kind == 'topk' else 'one result'}",
                             help="values, places = topk(8)[l] x[l]; argmax and argmin give the place, max and min the value")
        if (kind in ("any", "all")) != (body.dtype == "bool"):
            self.source.fail("RF182", s.body.at, f"{kind} cannot reduce {body.dtype}",
                             help="any and all reduce bool; cast to reduce otherwise")
        if kind == "topk" and s.k < 1:
            self.source.fail("RF183", s.at, "topk needs k >= 1", help="values, places = topk(8)[l] x[l]")
        reducer = Reducer(kind, s.k)
        dtype = s.dtype or default_dtype(reducer, body)
        self._define(s, axes, dtype)
        names = tuple(r.name.text for r in s.results)
        return Reduce(names, axes, reducer, s.over.text, body, dtype, self._place(s))

    def _place(self, s: Statement) -> Provenance:
        return Provenance(source=f"{self.source.name}:{self.source.line(s.at)}")

    def _define(self, s: Statement, axes: tuple[str, ...], dtype: str) -> None:
        for i, r in enumerate(s.results):
            if r.name.text in KEYWORDS:
                self.source.fail("RF181", r.name.at, f"'{r.name.text}' is a keyword", help="choose another name")
            self.dtypes[r.name.text] = "i64" if i else dtype
            self.stmt_axes[r.name.text] = axes
            self.coming.pop(r.name.text, None)

    def _result_axes(self, s: Statement, free: tuple[str, ...]) -> tuple[str, ...]:
        over = s.over.text if s.over else None
        own: tuple[str, ...] = ()
        kept = tuple(a for a in free if a != over or s.running)
        given = [r.axes for r in s.results if r.axes is not None]
        if not given:
            if s.reducer == "topk":
                own = (next(n for i in range(2, 99) for n in ("k" if i == 2 else f"k{i - 1}",)
                            if n not in self.declared and n not in self.tensors and n not in self.dtypes),)
                self.extents[own[0]], self.declared[own[0]] = s.k, "an axis"
            return kept + own
        axes = tuple(a.text for a in given[0])
        place, name = given[0][0].at, s.results[0].name.text
        if any(tuple(a.text for a in g) != axes for g in given[1:]):
            self.source.fail("RF183", place, "values and indices must have the same axes",
                             help="write the axes once, or alike on both")
        if len(set(axes)) < len(axes):
            self.source.fail("RF183", place, "a result axis is repeated", help="name each axis once")
        if s.running and over not in axes:
            self.source.fail("RF183", place, f"a running reduction has a result for each element of {over}",
                             help=f"write {name}[{', '.join((*axes, str(over)))}]")
        if over in axes and not s.running:
            rest = ", ".join(a for a in axes if a != over)
            self.source.fail("RF183", place, f"axis {over} is reduced and cannot be a result axis",
                             help=f"write {name}[{rest}]" if rest else f"write {name} = ...")
        if missing := [a for a in kept if a not in axes]:
            self.source.fail("RF183", place, f"axis {missing[0]} is free on the right but not among the result axes",
                             help=f"write {name}[{', '.join((*axes, *missing))}]")
        if s.reducer == "topk" and axes[-1] in kept:
            self.source.fail("RF183", place, "topk's results need a trailing axis of their own, for the rank",
                             help=f"write {name}[{', '.join((*kept, 'k'))}]")
        return axes


def _lone_indices(e: Node) -> list[Name]:
    own = [Name(a.name, a.at) for a in e.args if a.kind == "name"] if e.kind == "subscript" else []
    for a in e.args:
        own += _lone_indices(a)
    return own


def _free_axes(e: Expr, stmt_axes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Axes the value depends on, in order of appearance."""
    out: dict[str, None] = {}
    for x in walk(e):
        if isinstance(x, Index):
            out[x.axis] = None
        elif isinstance(x, Ref) and not x.indices:
            out.update(dict.fromkeys(stmt_axes.get(x.name, ())))
    return tuple(out)
