"""Values that TileLang's text keeps of a buffer which has been written since: read again where they are used.

TileLang 0.1.15 names the vector that a conversion or a function of each element reads, and takes the name for whatever else in
the block would read the same elements, also behind a store to them.

    float2 v_ = *(float2*)(t + 0);           float2 v_ = *(float2*)(t + 0);
    __1.x = tanhf(v_.x); ...                 __1.x = tanhf(v_.x); ...
    *(float2*)(t + 0) = __1;           -->   *(float2*)(t + 0) = __1;
                                             v_ = *(float2*)(t + 0);
    __2.x = v_.x * v_.x; ...                 __2.x = v_.x * v_.x; ...

A name stands for its expression wherever it is used, so the value as of then is what was meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAMED = re.compile(r"^\s*(?:[A-Za-z_][\w:]*\s+)+(v_\w*) = (.+);\s*$")
_LEFT = re.compile(r"(?<![=!<>])=(?!=)")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_TYPES = re.compile(r"\((?:const |unsigned )*[A-Za-z_][\w:]*\s*\*+\)|[A-Za-z_][\w:]*(?:<[^;()]*>)?(?:::\w+)*(?=\()")
"""Casts of an address, and what is called."""
_MEMORY = re.compile(r"__shared__.*?\b(\w+)\s*\[")
_MEETS = re.compile(r"sync|wait|barrier|arrive|fence|commit")
"""What blocks say where threads meet: what others wrote to shared memory is there behind it."""


@dataclass
class _Name:
    """``line``: where it is declared; ``value``: what it stands for; ``reads``: the names in it; ``end``: the line at which its
    block ends."""

    name: str
    line: int
    value: str
    reads: frozenset[str]
    end: int
    used: list[int] = field(default_factory=list)


def reread(text: str) -> str:
    """The text with every name read again behind what writes to a buffer of its expression, where it is used after that."""
    lines = text.split("\n")
    names = _names(lines)
    if not names:
        return text
    shared = frozenset(m for line in lines for m in _MEMORY.findall(line))
    opened = _opened(lines)
    behind: dict[int, list[str]] = {}
    for i, line in enumerate(lines):
        live = [n for n in names if n.line < i < n.end]
        changed = _changed(line, shared) if live else frozenset()
        for n in live:
            if n.reads & changed and any(j > i or j > _again(opened[i], opened[n.line]) for j in n.used):
                behind.setdefault(i, []).append(n.name)
                changed |= {n.name}
    value = {(n.name, n.line): n.value for n in names}
    out = []
    for i, line in enumerate(lines):
        out.append(line)
        indent = line[:len(line) - len(line.lstrip())]
        for name in behind.get(i, ()):
            at = max(k for n, k in value if n == name and k < i)
            out.append(f"{indent}{name} = {value[name, at]};")
    return "\n".join(out)


def _names(lines: list[str]) -> list[_Name]:
    """In the order in which they are declared."""
    found: list[_Name] = []
    depth = 0
    open_: list[tuple[_Name, int]] = []
    for i, line in enumerate(lines):
        words = set(_WORD.findall(line))
        for n, _ in open_:
            if n.name in words:
                n.used.append(i)
        if (m := _NAMED.match(line)) is not None:
            name = _Name(m[1], i, m[2], frozenset(_words(m[2])), len(lines))
            found.append(name)
            open_.append((name, depth))
        depth += line.count("{") - line.count("}")
        for n, at in [x for x in open_ if depth < x[1]]:
            n.end = i
            open_.remove((n, at))
    for n in reversed(found):  # what is read again for a name is used where it is
        for r in found:
            if r.name in n.reads and r.line < n.line < r.end:
                r.used += n.used
    return found


def _opened(lines: list[str]) -> list[tuple[int, ...]]:
    """For each line the lines at which the blocks open that it is in, outermost first."""
    stack: list[int] = []
    found = []
    for i, line in enumerate(lines):
        for c in line:
            if c == "}" and stack:
                stack.pop()
        found.append(tuple(stack))
        for k, c in enumerate(line):
            if c == "{":
                stack.append(i)
            elif c == "}" and "{" in line[:k] and stack:
                stack.pop()
    return found


def _again(here: tuple[int, ...], there: tuple[int, ...]) -> int:
    """The line from which a loop may run again: where the outermost block opens that is here and not there."""
    inner = [k for k in here if k not in there]
    return inner[0] if inner else 1 << 62


def _changed(line: str, shared: frozenset[str]) -> frozenset[str]:
    """Buffers that a line writes to, or may: left of an assignment, by their address, or as what a call is given."""
    code = line.strip()
    if not code.endswith(";") or code.startswith(("//", "#")):
        return frozenset()
    assigned = _LEFT.search(code)
    if assigned is None:
        written = set(_words(code)) if "(" in code else set()
    else:
        left = _words(code[:assigned.start()])
        declared = re.fullmatch(r"[\w:\s]+", code[:assigned.start()].strip()) is not None
        written = set(left[-1:] if declared else left[:1])
        written.update(re.findall(r"&\s*\(?\s*([A-Za-z_]\w*)", code[assigned.end():]))
    return frozenset(written | shared) if _MEETS.search(code) else frozenset(written)


def _words(code: str) -> list[str]:
    return _WORD.findall(_TYPES.sub(" ", code))
