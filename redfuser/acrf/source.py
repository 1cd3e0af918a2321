"""A text to point into, and its words: characters to tokens, and errors that name line, column and what would help.

Line ends of any system count as one; a byte order mark is none of the text's business. What an error shows of a line is a
window around the place, on which tabs are blanks and nothing can move the cursor.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import NoReturn

from redfuser.errors import InputError

_WINDOW, _LEAD = 110, 80
"""Characters of a line that an error shows, and how many of them may stand before the place."""
_SHOWN = 24
"""Characters of a word that an error repeats."""

_TOKEN = re.compile(r"""(?P<skip>[ \t]+|\#[^\n]*) | (?P<newline>\n)
    | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:@[A-Za-z0-9_]+)?)
    | (?P<mark>\.\.|\*\*|//|<=|>=|==|!=|[-+*/%<>=()\[\],:])""", re.VERBOSE | re.ASCII)

_LOOKALIKES = {"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "∕": "/", "−": "-", "–": "-", "—": "-", "≤": "<=",
               "≥": ">=", "≠": "!=", "∞": "inf", "∧": "and", "∨": "or", "¬": "not", "←": "="}
_HELP = {"^": "a power is pow(x, 2.0)", "&": "write 'and'", "|": "write 'or'", "!": "write 'not', or '!='",
         ";": "one statement per line", "{": "brackets are ( ) and [ ]", "}": "brackets are ( ) and [ ]",
         "\\": "a statement goes on over lines inside brackets", ".": "a number has a digit beside its point: 0.5",
         "'": "names stand without quotes", '"': "names stand without quotes", "@": "a name begins with a letter"}


class TextError(InputError):
    """A place in a text that cannot be read. ``short``: what, without the excerpt."""

    def __init__(self, code: str, short: str, excerpt: str, name: str, line: int, column: int, why: str, help: str) -> None:
        super().__init__(code, short + excerpt, where=f"{name}:{line}:{column}", why=why, help=help)
        self.short, self.line, self.column = short, line, column


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: number, name, mark, newline or end; ``at``: its offset in the source."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Source:
    """A text, its name, and the number of its first line in the file it was cut from."""

    text: str
    name: str = "<text>"
    first: int = 1

    def line(self, at: int) -> int:
        return self.first + self.text.count("\n", 0, at)

    def fail(self, code: str, at: int, what: str, *, why: str = "", help: str = "") -> NoReturn:
        """Raise :class:`TextError` with line, column and a caret under the place."""
        at = min(at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", start)
        line, column = self.text[start:] if end < 0 else self.text[start:end], at - start
        cut = max(0, column - _LEAD)
        shown = "".join(c if c.isprintable() else " " for c in line[cut:cut + _WINDOW])
        front, back = "..." if cut else "", "..." if len(line) > cut + _WINDOW else ""
        excerpt = f"\n    {front}{shown}{back}\n    {' ' * (len(front) + column - cut)}^"
        raise TextError(code, what, excerpt, self.name, self.line(at), column + 1, why, help)


def clean(text: str) -> str:
    """The text with line ends as ``\\n`` and without a byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def short(word: str) -> str:
    """A word of the text, as an error repeats it."""
    return word if len(word) <= _SHOWN else f"{word[:_SHOWN - 8]}...{word[-5:]}"


def tokenize(source: Source) -> list[Token]:
    """Tokens; line ends count only outside brackets. Raises InputError RF180 at a character that begins no token."""
    out: list[Token] = []
    at = depth = 0
    while at < len(source.text):
        m = _TOKEN.match(source.text, at)
        if m is None:
            _unexpected(source, at)
        kind = m.lastgroup or ""
        depth = max(0, depth + (m.group() in "([") - (m.group() in ")]")) if kind == "mark" else depth
        if kind in ("number", "name", "mark") or (kind == "newline" and depth == 0):
            out.append(Token(kind, m.group(), at))
        if kind == "number" and (tail := _TOKEN.match(source.text, m.end())) and tail.lastgroup == "name":
            source.fail("RF180", at, f"'{short(m.group() + tail.group())}' is neither a number nor a name",
                        help="numbers are decimal (16, 0.5, 1e-3); a product is written with *")
        at = m.end()
    out.append(Token("end", "", at))
    return out


def _unexpected(source: Source, at: int) -> NoReturn:
    c = source.text[at]
    plain = _LOOKALIKES.get(c) or unicodedata.normalize("NFKC", c)
    if c in _HELP:
        help = _HELP[c]
    elif plain != c and plain.isascii():
        help = f"write {'a plain space' if plain.isspace() else repr(plain)}"
    else:
        help = "names, numbers and operators are plain ASCII; a comment (# ...) may hold anything"
    source.fail("RF180", at, f"unexpected character {c!r}", help=help)
