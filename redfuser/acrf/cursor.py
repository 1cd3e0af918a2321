"""A cursor over the tokens of a cascade's text: looking, taking, expecting, and errors that say what was expected and what
would help. What is read is walked recursively by everything downstream, so a text that nests too deeply ends here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from redfuser.acrf.source import Source, Token, short, tokenize
from redfuser.acrf.tree import Name, Node

KEYWORDS = frozenset({"cascade", "over", "where", "return", "and", "or", "not", "true", "false", "inf", "nan"})
NESTING, HEIGHT = 64, 210
"""Brackets and signs inside one another; operations inside one another (a chain of n sums counts n)."""
_STRAY = {"=": "equality is ==; one statement per line", ")": "no '(' is open here", "]": "no '[' is open here",
          ":": "a dtype stands on the left side: s: f32 = sum[l] ...", ",": "only topk has two results: v, p = topk(k)[l] x",
          "where": "a choice is select(condition, x, y)"}


@dataclass
class Cursor:
    """A place in the token list, and how deep inside brackets and operations it is."""

    source: Source
    tokens: list[Token] = field(init=False)
    pos: int = field(init=False, default=0)
    depth: int = field(init=False, default=0)

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

    def expect(self, text: str, context: str, help: str = "") -> Token:
        if self.here.kind in ("mark", "name") and self.here.text == text:
            return self.take()
        self.unexpected(f"'{text}' {context}", help)

    def close(self, text: str, context: str, opened: Token) -> None:
        """The bracket that closes ``opened``."""
        line = self.source.line(opened.at)
        column = opened.at - self.source.text.rfind("\n", 0, opened.at)
        self.expect(text, context, f"the '{opened.text}' at {line}:{column} is still open")

    def unexpected(self, wanted: str, help: str = "") -> NoReturn:
        t = self.here
        found = {"end": "the end of the text", "newline": "the end of the line"}.get(t.kind, f"'{short(t.text)}'")
        self.source.fail("RF180", t.at, f"expected {wanted}, found {found}", help=help)

    def name(self, what: str, help: str = "") -> Name:
        t = self.here
        if t.kind != "name" or t.text in KEYWORDS:
            clash = f"'{t.text}' is a keyword" if t.text in KEYWORDS else ""
            self.unexpected(what, help or clash or "a name is letters, digits and _, a letter first")
        self.take()
        return Name(t.text, t.at)

    def integer(self, what: str, largest: int) -> int:
        t = self.here
        if t.kind != "number" or not t.text.isdigit():
            self.unexpected(what, f"a whole number up to {largest}")
        if len(t.text) > 18 or int(t.text) > largest:
            self.source.fail("RF183", t.at, f"{short(t.text)} is too large: expected {what}", help=f"at most {largest}")
        return int(self.take().text)

    def skip_lines(self) -> None:
        while self.here.kind == "newline":
            self.take()

    def end_of_line(self) -> None:
        if self.here.kind == "end":
            return
        if self.here.kind != "newline":
            self.unexpected("an operator or the end of the line",
                            _STRAY.get(self.here.text, "one statement per line, and an operator between operands"))
        self.skip_lines()

    @contextmanager
    def nested(self, at: int) -> Iterator[None]:
        """One bracket or sign further in."""
        self.depth += 1
        if self.depth > NESTING:
            self.source.fail("RF180", at, f"the text nests too deeply: more than {NESTING} brackets and signs are open",
                             help="give inner expressions statements of their own")
        yield
        self.depth -= 1

    def node(self, kind: str, name: str, at: int, *args: Node) -> Node:
        height = 1 + max((a.height for a in args), default=-1)
        if height > HEIGHT:
            self.source.fail("RF180", at, f"the expression is too long: more than {HEIGHT} operations one inside another",
                             help="split it over several statements: a[l] = ..., then s = sum[l] a + ...")
        return Node(kind, name, at, args, height)
