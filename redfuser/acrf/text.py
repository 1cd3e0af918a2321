"""Text to cascades: the inverse of ``str``, and what people write by hand; and the lines of printed segment programs and tile
programs for their readers, whose expressions are read here.

::

    cascade softmax_denominator(x: f32[L]) over l
      m = max[l] x[l]
      t = sum[l] exp(x[l] - m)

:mod:`redfuser.acrf.syntax` reads the words, :mod:`redfuser.acrf.scope` settles names and axes, :mod:`redfuser.acrf.typed`
dtypes. What a text may leave out:

* result axes: all axes of the right-hand side except the reduced one, in order of appearance;
* extents of axes that index a dimension directly, and ``topk``'s own trailing axis;
* dtypes of numbers: a bare number takes the dtype of the operand beside it, else f32 (i64 in an index position);
* ``return``: the statements that no later one reads;
* the extent symbol of the r-axis, used as a value (``s / L``), stands for a count ``sum[l] 1.0``.

Every error is an :class:`~redfuser.errors.InputError` with line, column and a caret: RF180 syntax, RF181 names, RF182
dtypes, RF183 axes and shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from redfuser.acrf.cascade import Axis, Cascade, Extent, Reduce, Reducer, Stmt, Tensor, axes_in_order, inferable_extents
from redfuser.acrf.expr import Const, Expr, refs_of
from redfuser.acrf.scope import Scope
from redfuser.acrf.source import Source, clean
from redfuser.acrf.syntax import REDUCERS, Reader
from redfuser.acrf.tree import Program
from redfuser.errors import InputError

_BEGIN = re.compile(r"^[ \t]*cascade\b", re.MULTILINE)


def parse_cascade(text: str, name: str = "<text>") -> Cascade:
    """The one cascade that ``text`` spells. ``name`` (a file name) appears in errors. Raises InputError (RF18x)."""
    found = parse_cascades(text, name)
    if len(found) != 1:
        Source(clean(text), name).fail("RF180", 0, f"expected one cascade, found {len(found)}",
                                       help="parse_cascades reads any number of them")
    return found[0]


def parse_cascades(text: str, name: str = "<text>") -> list[Cascade]:
    """Every cascade in a file's text, in order. Raises InputError (RF18x) for the first that cannot be read."""
    found = []
    for c in read_cascades(text, name):
        if isinstance(c, InputError):
            raise c
        found.append(c)
    return found


def read_cascades(text: str, name: str = "<text>") -> Iterator[Cascade | InputError]:
    """Every cascade in a file's text, in order, or the error (RF18x) in its place: one that cannot be read does not keep
    the others from being read. A cascade begins with the line whose first word is ``cascade``."""
    text = clean(text)
    begins = [m.start() for m in _BEGIN.finditer(text)]
    line = 1
    for start, stop in zip([0, *begins], [*begins, len(text)], strict=True):
        source = Source(text[start:stop], name, line)
        line += source.text.count("\n")
        try:
            reader = Reader(source)
            reader.skip_lines()
            if reader.here.kind == "end":  # blank lines and comments before the first
                continue
            yield _elaborate(reader.program(), source)
            if reader.here.kind != "end":
                reader.unexpected("'cascade' to begin a cascade", "'return' is a cascade's last statement")
        except InputError as e:
            yield e
        except RecursionError:
            yield _too_deep(source)


def parse_expr(text: str, refs: Mapping[str, str] | None = None, tensors: Mapping[str, str] | None = None) -> Expr:
    """One expression. ``refs`` and ``tensors`` give the dtype of each name that is one; every other name is an axis.

    Raises InputError (RF18x)."""
    source = Source(clean(text))
    try:
        reader = Reader(source)
        reader.skip_lines()
        tree = reader.expression()
        reader.skip_lines()
        if reader.here.kind != "end":
            reader.unexpected("an operator or the end of the text")
        scope = Scope(source, lenient=True)
        scope.dtypes.update(refs or {})
        scope.tensors.update({n: Tensor(n, d, ()) for n, d in (tensors or {}).items()})
        return scope.expr(tree)
    except RecursionError:
        raise _too_deep(source) from None


def _too_deep(source: Source) -> InputError:
    """Python's own limit, which a caller may already be close to; the reader's own limits name the place."""
    try:
        source.fail("RF180", 0, "the text nests too deeply", help="give inner expressions statements of their own")
    except InputError as e:
        return e


# -- one cascade -------------------------------------------------------------------------------------------------------


def _elaborate(program: Program, source: Source) -> Cascade:
    scope = Scope(source)
    for d in program.inputs:
        scope.declare(d.name, f"input {d.name.text}")
        if d.name.text in REDUCERS:
            source.fail("RF181", d.name.at, f"an input cannot be called '{d.name.text}', the name of a reduction",
                        help="choose another name")
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
        source.fail("RF180", program.at, f"the cascade {program.name} has no statements",
                    help="a statement is NAME = sum[l] expression, on a line of its own")
    tensors = tuple(scope.tensors[d.name.text] for d in program.inputs)
    axes = _axes(program, tensors, tuple(stmts), scope)
    _topk_fits(program, {a.name: a.extent for a in axes}, source)
    return Cascade(program.name, tensors, axes, program.over.text, tuple(stmts), _outputs(program, stmts, source))


def _axes(program: Program, tensors: tuple[Tensor, ...], stmts: tuple[Stmt, ...], scope: Scope) -> tuple[Axis, ...]:
    stated: dict[str, Extent] = {a.text: e for a, e in program.where}
    known = inferable_extents(tensors, stmts)
    shown = tuple(dict.fromkeys((*axes_in_order(stmts), program.over.text)))
    for a, _ in program.where:
        if a.text not in shown:
            symbol = any(a.text in t.shape for t in tensors)
            scope.source.fail("RF183", a.at, f"no statement has an axis {a.text}", help=(
                "'where' states the extents of axes; a symbolic dimension gets its number in the input's shape" if symbol
                else f"the axes are {', '.join(shown)}"))
    order = tuple(stated) if set(shown) <= set(stated) else tuple(dict.fromkeys((*shown, *stated)))
    out = []
    for name in order:
        at = scope.axis_places.get(name, program.at)
        if name in known and known[name] is None and name not in stated:
            scope.source.fail("RF183", at, f"axis {name} indexes dimensions of different extents",
                              help=f"state its own: over {program.over.text} where {name} = ...")
        extents = (stated.get(name), known.get(name), scope.extents.get(name))
        extent = next((e for e in extents if e is not None), None)
        if extent is None:
            scope.source.fail("RF183", at, f"the extent of axis {name} cannot be inferred",
                              why="it indexes no dimension directly",
                              help=f"state it: over {program.over.text} where {name} = 64")
        out.append(Axis(name, extent))
    return tuple(out)


def _topk_fits(program: Program, extents: Mapping[str, Extent], source: Source) -> None:
    for s in program.stmts:
        if s.reducer == "topk" and s.over is not None:
            n = extents[s.over.text]
            if isinstance(n, int) and s.k > n:
                source.fail("RF183", s.at, f"topk({s.k}) of a row of {n}", help=f"k is at most the extent of {s.over.text}")


def _outputs(program: Program, stmts: list[Stmt], source: Source) -> tuple[str, ...]:
    names = [n for s in stmts for n in s.names]
    if program.returns is None:
        read = {r for s in stmts for r in refs_of(s.expr)}
        return tuple(n for s in stmts for n in s.names if not read & set(s.names))
    for i, r in enumerate(program.returns):
        if r.text not in names:
            source.fail("RF181", r.at, f"no statement is called '{r.text}'", help=f"statements: {', '.join(names)}")
        if r.text in {x.text for x in program.returns[:i]}:
            source.fail("RF181", r.at, "a result is returned twice", help="name it once")
    return tuple(r.text for r in program.returns)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text: its number, its depth in steps of two spaces, and what it says."""

    number: int
    depth: int
    text: str

    def fail(self, wanted: str) -> NoReturn:
        """Raises InputError RF180."""
        raise InputError("RF180", f"line {self.number}: expected {wanted}, found {self.text[:80]!r}")

    def match(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        """The match of ``pattern`` at the line's beginning. Raises InputError RF180."""
        return pattern.match(self.text) or self.fail(wanted)


def lines_of(text: str) -> list[Line]:
    """The lines of ``text`` that say something."""
    return [Line(n, (len(t) - len(t.lstrip(" "))) // 2, t.strip()) for n, t in enumerate(text.splitlines(), 1) if t.strip()]


def commas(text: str) -> list[str]:
    """``text`` at its commas outside brackets."""
    out, depth, start = [], 0, 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            out.append(text[start:k].strip())
            start = k + 1
    return [*out, text[start:].strip()] if text.strip() else []
