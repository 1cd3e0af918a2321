"""The surface syntax of cascades: tokens to an untyped tree, by recursive descent.

Grammar: the docstring of :mod:`redfuser.acrf.expr`. Names, axes and dtypes are settled in :mod:`redfuser.acrf.text`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from redfuser.acrf.cursor import KEYWORDS, Cursor
from redfuser.acrf.expr import DTYPES, FUNCTIONS, UNARY
from redfuser.acrf.source import Token, short
from redfuser.acrf.tree import Declaration, Name, Node, Program, Result, Statement

REDUCERS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "topk")
PICKS = ("argmax", "argmin", "topk")
LARGEST_EXTENT, LARGEST_K = 1 << 48, 1 << 16

_CALLABLE = sorted((UNARY | FUNCTIONS) - {"neg", "not"})
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_SUM = {"+": "add", "-": "sub"}
_PRODUCT = {"*": "mul", "/": "div", "//": "floordiv", "%": "mod"}
_FOREIGN = {"where": "select(condition, x, y)", "if": "select(condition, x, y)", "relu": "max(x, 0.0)",
            "maximum": "max(x, y)", "minimum": "min(x, y)", "square": "x * x", "ln": "log(x)", "power": "pow(x, y)",
            "silu": "x * sigmoid(x)", "sign": "select(x > 0, 1.0, -1.0)", "fabs": "abs(x)", "log1p": "log(1.0 + x)",
            "expm1": "exp(x) - 1.0", "mean": "sum[axis] x, divided by the axis's extent", "amax": "max[axis] x",
            "amin": "min[axis] x", "mul": "x * y", "add": "x + y", "float": "f32(x)", "int": "i64(x)"}


@dataclass
class Reader(Cursor):
    """A recursive-descent reader over the token list."""

    known: set[str] = field(init=False, default_factory=set)
    """Inputs and results named so far: a bracket after one of them is an index."""

    # -- cascades and statements --

    def program(self) -> Program:
        at = self.expect("cascade", "to begin a cascade", "a file holds cascades: cascade NAME(x: f32[L]) over l, then "
                         "its statements; 'return' is the last of them").at
        name = self.take() if self.here.text in KEYWORDS else self.name("the cascade's name")
        opened = self.expect("(", "and the input tensors", "cascade NAME(x: f32[L]) over l")
        inputs = [] if self.here.text == ")" else [self.declaration()]
        while self.accept(","):
            inputs.append(self.declaration())
        self.close(")", "after the input tensors", opened)
        self.expect("over", "and the reduction axis", "cascade NAME(x: f32[L]) over l")
        over = self.name("the reduction axis")
        if self.here.text == ",":
            self.unexpected("the end of the line", "a cascade reduces over one axis; the others are free, or contracted by "
                            "a statement of their own: s[l] = sum[c] ...")
        where = self.where() if self.accept("where") else ()
        self.end_of_line()
        self.known = {d.name.text for d in inputs}
        stmts = []
        while not (self.here.kind == "end" or (self.here.kind == "name" and self.here.text in ("return", "cascade"))):
            stmts.append(self.statement())
            self.known |= {r.name.text for r in stmts[-1].results}
            self.end_of_line()
        returns: tuple[Name, ...] | None = None
        if self.accept("return"):
            names = [self.name("a result's name", "return NAME, NAME: results of statements above")]
            while self.accept(","):
                names.append(self.name("a result's name"))
            returns = tuple(names)
            if self.here.kind not in ("newline", "end"):
                self.unexpected("the end of the line", "return takes names; give an expression a statement of its own")
            self.end_of_line()
        return Program(name.text, tuple(inputs), over, where, tuple(stmts), returns, at)

    def declaration(self) -> Declaration:
        example = "an input is NAME: DTYPE[EXTENT, ...], as in x: f32[I, L]"
        name = self.name("an input tensor's name", example)
        self.expect(":", "and the tensor's dtype", example)
        if self.here.text not in DTYPES:
            self.unexpected(f"a dtype ({' '.join(DTYPES)})", example)
        dtype = self.take().text
        opened = self.expect("[", "and the tensor's shape", f"{example}; a scalar is c: f32[]")
        shape = [] if self.here.text == "]" else [self.extent()]
        while self.accept(","):
            shape.append(self.extent())
        self.close("]", "after the shape", opened)
        return Declaration(name, dtype, tuple(shape))

    def extent(self) -> int | str:
        if self.here.kind == "number":
            return self.integer("an extent: an integer or a symbol", LARGEST_EXTENT)
        return self.name("an extent: an integer or a symbol", "as in f32[I, 768]; an expression is no extent").text

    def where(self) -> tuple[tuple[Name, int | str], ...]:
        out: list[tuple[Name, int | str]] = []
        while True:
            axis = self.name("an axis", "where AXIS = EXTENT, as in where h = 12")
            if axis.text in {a.text for a, _ in out}:
                self.source.fail("RF183", axis.at, f"the extent of axis {axis.text} is stated twice", help="state it once")
            self.expect("=", "and the axis's extent", "where AXIS = EXTENT, as in where h = 12")
            out.append((axis, self.extent()))
            if not self.accept(","):
                return tuple(out)

    def statement(self) -> Statement:
        at = self.here.at
        results = [self.result()]
        while self.accept(","):
            results.append(self.result())
        dtype = None
        if self.accept(":"):
            if self.here.text not in DTYPES:
                self.unexpected("a dtype", " ".join(DTYPES))
            dtype = self.take().text
        self.expect("=", "and what the statement computes", "a statement is NAME = expression or NAME = sum[l] expression")
        reducer, k, over, running = self.reduction() or (None, 1, None, False)
        return Statement(tuple(results), dtype, reducer, k, over, self.expression(), at, running)

    def result(self) -> Result:
        name = self.name("a result's name")
        opened = self.here
        if not self.accept("["):
            return Result(name, None)
        axes = [self.name("an axis", "a left side names axes: s[i, j] = ...")]
        while self.accept(","):
            axes.append(self.name("an axis", "a left side names axes: s[i, j] = ..."))
        self.close("]", "after the axes", opened)
        return Result(name, tuple(axes))

    def reduction(self) -> tuple[str, int, Name, bool] | None:
        """``sum[l]``, ``sum[..l]`` or ``topk(3)[l]`` at the start of a right-hand side, when an operand follows it."""
        op, head = self.here.text, [self.peek(i).text for i in range(1, 4)]
        if op not in REDUCERS:
            return None
        if op == "topk" and head[0] == "(":
            self.take()
            self.take()
            k = self.integer("topk's k", LARGEST_K)
            self.expect(")", "after topk's k", "values, places = topk(8)[l] x[l]")
            self.expect("[", "and the reduced axis", "values, places = topk(8)[l] x[l]")
        elif op not in PICKS and head[:2] == ["[", ".."] and self.peek(4).text == "]":
            self.take()
            self.take()
            k = 1
        elif head[0] == "[" and head[2] == "]" and self._starts_operand(self.peek(4)):
            self.take()
            k = 1
            if op == "topk":
                self.unexpected("topk(k)[axis]", "values, places = topk(8)[l] x[l]")
            self.take()
        elif op not in self.known and ((self._starts_operand(self.peek()) and head[0] not in ("(", "-")) or (
                head[0] == "(" and op not in FUNCTIONS)):
            self.source.fail("RF180", self.peek().at, f"the reduction '{op}' names no axis", help=f"write {op}[l] ...")
        else:
            return None
        running = self.accept("..")
        over = self.name("the reduced axis")
        self.expect("]", "after the reduced axis", "one axis at a time")
        return op, k, over, running

    @staticmethod
    def _starts_operand(t: Token) -> bool:
        return t.kind == "number" or t.text in ("(", "-", "not") or (
            t.kind == "name" and t.text not in ("and", "or", "return", "over", "where", "cascade"))

    # -- expressions, loosest first --

    def expression(self) -> Node:
        left = self.conjunction()
        while self.here.text == "or":
            at = self.take().at
            left = self.node("op", "or", at, left, self.conjunction())
        return left

    def conjunction(self) -> Node:
        left = self.negation()
        while self.here.text == "and":
            at = self.take().at
            left = self.node("op", "and", at, left, self.negation())
        return left

    def negation(self) -> Node:
        if self.here.text == "not":
            at = self.take().at
            with self.nested(at):
                return self.node("op", "not", at, self.negation())
        return self.comparison()

    def comparison(self) -> Node:
        left = self.arithmetic()
        if self.here.text in _COMPARE:
            t = self.take()
            left = self.node("op", _COMPARE[t.text], t.at, left, self.arithmetic())
            if self.here.text in _COMPARE:
                self.source.fail("RF180", self.here.at, "comparisons do not chain", help="write 'a < b and b < c'")
        return left

    def arithmetic(self) -> Node:
        left = self.term()
        while self.here.text in _SUM:
            t = self.take()
            left = self.node("op", _SUM[t.text], t.at, left, self.term())
        return left

    def term(self) -> Node:
        left = self.unary()
        while self.here.text in _PRODUCT:
            t = self.take()
            left = self.node("op", _PRODUCT[t.text], t.at, left, self.unary())
        if self.here.text == "**":
            self.source.fail("RF180", self.here.at, "there is no operator '**'", help="a power is pow(x, 2.0), or x * x")
        return left

    def unary(self) -> Node:
        if self.here.text != "-":
            return self.primary()
        at = self.take().at
        t = self.here
        if t.kind == "number" or t.text in ("inf", "nan"):
            self.take()
            return Node("number", "-" + t.text, at)
        with self.nested(at):
            return self.node("op", "neg", at, self.unary())

    def primary(self) -> Node:
        t = self.here
        if t.kind == "number" or t.text in ("inf", "nan"):
            self.take()
            return Node("number", t.text, t.at)
        if t.text in ("true", "false"):
            self.take()
            return Node("bool", t.text, t.at)
        if t.text == "(":
            self.take()
            with self.nested(t.at):
                inner = self.expression()
            self.close(")", "to close the parenthesis", t)
            return inner
        if t.kind != "name" or t.text in KEYWORDS:
            self.unexpected("an expression", _FOREIGN.get(t.text, "") or
                            "an operand is a number, a name, x[i, l], f(...) or (...)")
        self.take()
        if self.here.text == "(":
            return self.call(t)
        if self.here.text == "[":
            return self.subscript(t)
        return Node("name", t.text, t.at)

    def arguments(self, end: str, context: str) -> list[Node]:
        """Expressions up to the closing bracket; none at all is for the caller to judge."""
        opened = self.take()
        with self.nested(opened.at):
            args = [] if self.here.text == end else [self.expression()]
            while args and self.accept(","):
                args.append(self.expression())
        self.close(end, context, opened)
        return args

    def call(self, t: Token) -> Node:
        if t.text in REDUCERS and t.text not in FUNCTIONS:
            self.source.fail("RF180", t.at, f"{t.text} is a reduction, no function",
                             help=f"give it a statement of its own: s = {t.text}[l] ...")
        if t.text not in UNARY and t.text not in FUNCTIONS and t.text not in DTYPES:
            near = difflib.get_close_matches(t.text, _CALLABLE, 1, 0.7)
            meant = f"{_FOREIGN[t.text]};" if t.text in _FOREIGN else (f"did you mean '{near[0]}'?" if near else "")
            self.source.fail("RF180", t.at, f"no function is called '{short(t.text)}'",
                             help=f"{meant} functions: {' '.join(_CALLABLE)}; casts: a dtype".lstrip())
        args = self.arguments(")", f"after the arguments of {t.text}")
        return self.node("call", t.text, t.at, *args)

    def subscript(self, t: Token) -> Node:
        args = self.arguments("]", f"after the indices of {t.text}")
        if self._starts_operand(self.here) and self.here.text != "-" and t.text not in self.known:
            if t.text in REDUCERS and len(args) == 1:
                self.source.fail("RF180", t.at, f"the reduction {t.text}[..] stands inside an expression",
                                 help="give it a statement of its own and use its name here")
            word = t.text.lower()
            near = [] if t.text in REDUCERS else difflib.get_close_matches(word, REDUCERS, 1, 0.7)
            meant = f"{_FOREIGN[word]};" if word in _FOREIGN else (f"did you mean '{near[0]}'?" if near else "")
            what = f"{t.text} reduces over one axis" if t.text in REDUCERS else f"no reduction is called '{short(t.text)}'"
            self.source.fail("RF180", t.at, what, help=(
                f"{meant} reductions: {' '.join(REDUCERS[:-1])} topk(k), each over one axis").lstrip())
        return self.node("subscript", t.text, t.at, *args)
