"""Text to segment programs: the inverse of ``str``. The fused state they realise is not in the text and is given beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from redfuser.acrf.cascade import Axis, Extent, Reducer, Tensor, default_dtype
from redfuser.acrf.expr import Expr
from redfuser.acrf.facts.algebra import PAYLOAD
from redfuser.acrf.state import Fused
from redfuser.acrf.syntax import REDUCERS
from redfuser.acrf.text import Line, commas, lines_of, parse_expr
from redfuser.strategies.program import Block, Kernel, Program

_HEAD = re.compile(r"program (.*): (single|resident|multi|map)(?:, (\d+) splits)?(?:, segments of (\d+))?, axes (.*)$")
_KERNEL = re.compile(r"kernel (\S+) \((\w+)\) grid \[(.*)\] over (\S+?)(?: split by (\S+))?$")
_TENSOR = re.compile(r"(\S+): (\w+)\[(.*)\]$")
_REDUCTION = re.compile(rf"({'|'.join(REDUCERS)}\(\d+\))\[(?:\.\.)?(\w+)\] (.*)$")


def parse(text: str, fused: Fused) -> Program:
    """The program that ``text`` spells, a realisation of ``fused``. Raises InputError RF180 (RF181, RF182 of expressions)."""
    lines = lines_of(text)
    m = lines[0].match(_HEAD, "'program NAME: STRATEGY, axes ...'") if lines else Line(1, 0, "").fail("a program")
    axes = tuple(Axis(a, _extent(e)) for a, _, e in (part.partition("=") for part in m[5].split(", ")))
    workspaces, kernels = [], []
    at = 1
    while at < len(lines) and lines[at].text.startswith("workspace "):
        workspaces.append(_tensor(lines[at]))
        at += 1
    starts = [i for i in range(at, len(lines)) if lines[i].text.startswith("kernel ")]
    if at < len(lines) and (not starts or starts[0] != at):
        lines[at].fail("'kernel NAME (KIND) grid [axes] over AXIS'")
    for i, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        kernels.append(_Reader(fused).kernel(lines[i:stop]))
    return Program(fused, m[2], int(m[3] or 1), tuple(kernels), axes, tuple(workspaces),  # type: ignore[arg-type]
                   int(m[4]) if m[4] else None)


@dataclass
class _Reader:
    """One kernel. ``dtypes``: of the names and tensors known so far."""

    fused: Fused
    dtypes: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)

    def kernel(self, lines: list[Line]) -> Kernel:
        head = lines[0].match(_KERNEL, "'kernel NAME (KIND) grid [axes] over AXIS'")
        raxis = head[4] if head[2] == "merge" else self.fused.cascade.raxis
        declared: dict[str, list[Tensor]] = {"reads": [], "writes": []}
        parts: dict[str, list[Block]] = {"init": [], "body": [], "tail": []}
        part = ""
        for line in lines[1:]:
            word = line.text.split(None, 1)[0]
            if word in declared and not part:
                declared[word].append(_tensor(line))
                if word == "reads":
                    self.tensors[declared[word][-1].name] = declared[word][-1].dtype
            elif line.text in parts:
                part = line.text
            elif part:
                parts[part].append(self.block(line))
            else:
                line.fail("reads, writes, init, body or tail")
        split = head[4] if head[2] == "combine" else head[5]
        return Kernel(head[1], head[2], tuple(commas(head[3])), raxis, tuple(declared["reads"]),  # type: ignore[arg-type]
                      tuple(declared["writes"]), tuple(parts["init"]), tuple(parts["body"]), tuple(parts["tail"]), split)

    def block(self, line: Line) -> Block:
        role, _, rest = line.text.partition(" ")
        left, found, right = rest.strip().partition(" = ")
        if not found:
            line.fail("'ROLE NAME[axes] = expression'")
        left, _, kept = left.partition(": ")
        names, axes = [], ()
        for part in commas(left):
            name, _, inside = part.partition("[")
            names.append(name)
            axes = tuple(commas(inside.removesuffix("]")))
        reducer, over, exprs = self._right(line, role, right)
        dtype = kept or (exprs[0].dtype if reducer is None or role == "merge" else default_dtype(reducer, exprs[0]))
        for k, name in enumerate(names):
            payload = reducer is not None and k > 0
            self.dtypes[name] = self.dtypes.get(name) or ("i64" if payload else exprs[k].dtype if role == "init" else dtype)
        return Block(role, tuple(names), axes, exprs, dtype, reducer, over)  # type: ignore[arg-type]

    def _right(self, line: Line, role: str, text: str) -> tuple[Reducer | None, str | None, tuple[Expr, ...]]:
        if role in ("merge", "reduce"):
            first, rest = _bracketed(line, text)
            kind, _, rest = rest.strip().partition(" ")
            if role == "merge":
                return _reducer(kind), None, (*self.exprs(first), *self.exprs(_bracketed(line, rest)[0]))
            text = rest
        if m := _REDUCTION.match(text):
            reducer = _reducer(m[1])
            pair = commas(_bracketed(line, m[3])[0]) if reducer.kind in PAYLOAD and m[3].startswith("(") else []
            return reducer, m[2], tuple(map(self.expr, pair if len(pair) == 2 else [m[3]]))
        return None, None, self.exprs(text)

    def exprs(self, text: str) -> tuple[Expr, ...]:
        return tuple(map(self.expr, commas(text)))

    def expr(self, text: str) -> Expr:
        return parse_expr(text, self.dtypes, self.tensors)


def _reducer(text: str) -> Reducer:
    kind, _, k = text.partition("(")
    return Reducer(kind, int(k[:-1])) if k else Reducer(kind)


def _tensor(line: Line) -> Tensor:
    m = Line(line.number, 0, line.text.split(None, 1)[1]).match(_TENSOR, "'NAME: DTYPE[extents]'")
    return Tensor(m[1], m[2], tuple(_extent(e) for e in commas(m[3])))


def _extent(text: str) -> Extent:
    return int(text) if text.isdigit() else text


def _bracketed(line: Line, text: str) -> tuple[str, str]:
    """What stands in the bracket that ``text`` begins with, and after it."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if not depth:
            return text[1:k], text[k + 1:]
    line.fail("'(expressions) REDUCER ...'")
