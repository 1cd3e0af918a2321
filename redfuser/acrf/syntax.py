"""The surface syntax of cascades: characters to an untyped tree in which every node knows its place.

Grammar: the docstring of :mod:`redfuser.acrf.expr`. Names, axes and dtypes are settled in :mod:`redfuser.acrf.text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from redfuser.acrf.expr import DTYPES, FUNCTIONS, UNARY
from redfuser.errors import InputError

REDUCERS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "topk")
KEYWORDS = frozenset({"cascade", "over", "where", "return", "and", "or", "not", "true", "false", "inf", "nan"})

_TOKEN = re.compile(r"""(?P<skip>[ \t\r]+|\#[^\n]*) | (?P<newline>\n)
    | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:@[A-Za-z0-9_]+)?)
    | (?P<mark>//|<=|>=|==|!=|[-+*/%<>=()\[\],:])""", re.VERBOSE | re.ASCII)
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_SUM = {"+": "add", "-": "sub"}
_PRODUCT = {"*": "mul", "/": "div", "//": "floordiv", "%": "mod"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Node:
    """An untyped node. ``kind``: number, bool, name, subscript, call or op; ``name``: the number's text, the name read,
    subscripted or called, or the operation; ``at``: the offset in the source text that an error points at."""

    kind: str
    name: str
    at: int
    args: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Name:
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Result:
    name: Name
    axes: tuple[Name, ...] | None


@dataclass(frozen=True, slots=True)
class Statement:
    results: tuple[Result, ...]
    dtype: str | None
    reducer: str | None
    k: int
    over: Name | None
    body: Node
    at: int


@dataclass(frozen=True, slots=True)
class Declaration:
    name: Name
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    inputs: tuple[Declaration, ...]
    over: Name
    where: tuple[tuple[Name, int | str], ...]
    stmts: tuple[Statement, ...]
    returns: tuple[Name, ...] | None
    at: int


@dataclass(frozen=True, slots=True)
class Source:
    """A text and its name, to point into."""

    text: str
    name: str = "<text>"

    def fail(self, code: str, at: int, what: str, *, why: str = "", help: str = "") -> NoReturn:
        """Raise :class:`InputError` with line, column and a caret under the place."""
        at = min(at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", start)
        line = self.text[start:] if end < 0 else self.text[start:end]
        row, column = self.text.count("\n", 0, at) + 1, at - start + 1
        caret = f"\n    {line}\n    {' ' * (column - 1)}^"
        raise InputError(code, what + caret, where=f"{self.name}:{row}:{column}", why=why, help=help)


@dataclass
class Reader:
    """A recursive-descent reader over the token list."""

    source: Source
    tokens: list[Token] = field(init=False)
    pos: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.tokens = tokenize(self.source)

    # -- tokens --

    @property
    def here(self) -> Token:
        return self.tokens[self.pos]

    def peek(self, offset: int = 1) -> Token:
        return self.tokens[min(self.pos + offset, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.here
        self.pos = min(self.pos + 1, len(self.tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        if self.here.kind in ("mark", "name") and self.here.text == text:
            self.take()
            return True
        return False

    def expect(self, text: str, context: str) -> Token:
        if self.here.kind in ("mark", "name") and self.here.text == text:
            return self.take()
        self.unexpected(f"'{text}' {context}")

    def unexpected(self, wanted: str) -> NoReturn:
        t = self.here
        found = {"end": "the end of the text", "newline": "the end of the line"}.get(t.kind, f"'{t.text}'")
        self.source.fail("RF180", t.at, f"expected {wanted}, found {found}")

    def name(self, what: str) -> Name:
        t = self.here
        if t.kind != "name" or t.text in KEYWORDS:
            self.unexpected(what)
        self.take()
        return Name(t.text, t.at)

    def integer(self, what: str) -> int:
        if self.here.kind != "number" or not self.here.text.isdigit():
            self.unexpected(what)
        return int(self.take().text)

    def skip_lines(self) -> None:
        while self.here.kind == "newline":
            self.take()

    def end_of_line(self) -> None:
        if self.here.kind == "end":
            return
        if self.here.kind != "newline":
            self.unexpected("an operator or the end of the line")
        self.skip_lines()

    # -- cascades and statements --

    def program(self) -> Program:
        at = self.expect("cascade", "to begin a cascade").at
        name = self.name("the cascade's name").text
        self.expect("(", "and the input tensors")
        inputs = [] if self.here.text == ")" else [self.declaration()]
        while self.accept(","):
            inputs.append(self.declaration())
        self.expect(")", "after the input tensors")
        self.expect("over", "and the reduction axis")
        over = self.name("the reduction axis")
        where = self.where() if self.accept("where") else ()
        self.end_of_line()
        stmts = []
        while not (self.here.kind == "end" or (self.here.kind == "name" and self.here.text in ("return", "cascade"))):
            stmts.append(self.statement())
            self.end_of_line()
        returns: tuple[Name, ...] | None = None
        if self.accept("return"):
            names = [self.name("a result's name")]
            while self.accept(","):
                names.append(self.name("a result's name"))
            returns = tuple(names)
            self.end_of_line()
        return Program(name, tuple(inputs), over, where, tuple(stmts), returns, at)

    def declaration(self) -> Declaration:
        name = self.name("an input tensor's name")
        self.expect(":", "and the tensor's dtype")
        if self.here.text not in DTYPES:
            self.unexpected(f"a dtype ({' '.join(DTYPES)})")
        dtype = self.take().text
        self.expect("[", "and the tensor's shape")
        shape = [] if self.here.text == "]" else [self.extent()]
        while self.accept(","):
            shape.append(self.extent())
        self.expect("]", "after the shape")
        return Declaration(name, dtype, tuple(shape))

    def extent(self) -> int | str:
        if self.here.kind == "number":
            return self.integer("an extent: an integer or a symbol")
        return self.name("an extent: an integer or a symbol").text

    def where(self) -> tuple[tuple[Name, int | str], ...]:
        out = []
        while True:
            axis = self.name("an axis")
            self.expect("=", "and the axis's extent")
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
                self.unexpected("a dtype")
            dtype = self.take().text
        self.expect("=", "and what the statement computes")
        reducer, k, over = self.reduction() or (None, 1, None)
        return Statement(tuple(results), dtype, reducer, k, over, self.expression(), at)

    def result(self) -> Result:
        name = self.name("a result's name")
        if not self.accept("["):
            return Result(name, None)
        axes = [self.name("an axis")]
        while self.accept(","):
            axes.append(self.name("an axis"))
        self.expect("]", "after the axes")
        return Result(name, tuple(axes))

    def reduction(self) -> tuple[str, int, Name] | None:
        """``sum[l]`` or ``topk(3)[l]`` at the start of a right-hand side, when an operand follows it."""
        if self.here.text not in REDUCERS:
            return None
        head = [self.peek(i).text for i in range(1, 4)]
        if self.here.text == "topk" and head[0] == "(":
            op = self.take().text
            self.take()
            k = self.integer("topk's k")
            self.expect(")", "after topk's k")
            self.expect("[", "and the reduced axis")
        elif head[0] == "[" and head[2] == "]" and self._starts_operand(self.peek(4)):
            op, k = self.take().text, 1
            if op == "topk":
                self.unexpected("topk(k)[axis]")
            self.take()
        else:
            return None
        over = self.name("the reduced axis")
        self.expect("]", "after the reduced axis")
        return op, k, over

    @staticmethod
    def _starts_operand(t: Token) -> bool:
        return t.kind == "number" or t.text in ("(", "-", "not") or (
            t.kind == "name" and t.text not in ("and", "or", "return", "over", "where", "cascade"))

    # -- expressions, loosest first --

    def expression(self) -> Node:
        left = self.conjunction()
        while self.here.text == "or":
            at = self.take().at
            left = Node("op", "or", at, (left, self.conjunction()))
        return left

    def conjunction(self) -> Node:
        left = self.negation()
        while self.here.text == "and":
            at = self.take().at
            left = Node("op", "and", at, (left, self.negation()))
        return left

    def negation(self) -> Node:
        if self.here.text == "not":
            at = self.take().at
            return Node("op", "not", at, (self.negation(),))
        return self.comparison()

    def comparison(self) -> Node:
        left = self.arithmetic()
        if self.here.text in _COMPARE:
            t = self.take()
            left = Node("op", _COMPARE[t.text], t.at, (left, self.arithmetic()))
            if self.here.text in _COMPARE:
                self.source.fail("RF180", self.here.at, "comparisons do not chain", help="write 'a < b and b < c'")
        return left

    def arithmetic(self) -> Node:
        left = self.term()
        while self.here.text in _SUM:
            t = self.take()
            left = Node("op", _SUM[t.text], t.at, (left, self.term()))
        return left

    def term(self) -> Node:
        left = self.unary()
        while self.here.text in _PRODUCT:
            t = self.take()
            left = Node("op", _PRODUCT[t.text], t.at, (left, self.unary()))
        return left

    def unary(self) -> Node:
        if self.here.text != "-":
            return self.primary()
        at = self.take().at
        t = self.here
        if t.kind == "number" or t.text in ("inf", "nan"):
            self.take()
            return Node("number", "-" + t.text, at)
        return Node("op", "neg", at, (self.unary(),))

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
            inner = self.expression()
            self.expect(")", "to close the parenthesis")
            return inner
        if t.kind != "name" or t.text in KEYWORDS:
            self.unexpected("an expression")
        self.take()
        if self.here.text == "(":
            return self.call(t)
        if self.here.text == "[":
            return self.subscript(t)
        return Node("name", t.text, t.at)

    def call(self, t: Token) -> Node:
        if t.text not in UNARY and t.text not in FUNCTIONS and t.text not in DTYPES:
            known = " ".join(sorted((UNARY | FUNCTIONS) - {"neg", "not"}))
            self.source.fail("RF180", t.at, f"no function is called '{t.text}'",
                             help=f"functions: {known}; casts: a dtype")
        self.take()
        args = [self.expression()]
        while self.accept(","):
            args.append(self.expression())
        self.expect(")", f"after the arguments of {t.text}")
        return Node("call", t.text, t.at, tuple(args))

    def subscript(self, t: Token) -> Node:
        self.take()
        args = [] if self.here.text == "]" else [self.expression()]
        while self.accept(","):
            args.append(self.expression())
        self.expect("]", f"after the indices of {t.text}")
        if t.text in REDUCERS and self._starts_operand(self.here):
            self.source.fail("RF180", t.at, f"the reduction {t.text}[..] stands inside an expression",
                             help="give it a statement of its own and use its name here")
        return Node("subscript", t.text, t.at, tuple(args))


def tokenize(source: Source) -> list[Token]:
    """Tokens; line ends count only outside brackets. Raises InputError RF180 at a character that begins no token."""
    out: list[Token] = []
    at = depth = 0
    while at < len(source.text):
        m = _TOKEN.match(source.text, at)
        if m is None:
            source.fail("RF180", at, f"unexpected character {source.text[at]!r}")
        kind = m.lastgroup or ""
        depth = max(0, depth + (m.group() in "([") - (m.group() in ")]")) if kind == "mark" else depth
        if kind in ("number", "name", "mark") or (kind == "newline" and depth == 0):
            out.append(Token(kind, m.group(), at))
        at = m.end()
    out.append(Token("end", "", at))
    return out
