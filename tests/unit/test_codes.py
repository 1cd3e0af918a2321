"""The code table, the page that explains the codes, and the places that use them say the same."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from redfuser.codes import CODES

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"RF[1-9]\d\d")


@cache
def used() -> dict[str, str]:
    """Codes that appear as a string of their own in the source (a raise or a refusal), with one place each."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "redfuser").rglob("*.py")):
        if path.name == "codes.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                found.setdefault(node.value, f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def documented() -> dict[str, str]:
    """Code -> the text of its section in docs/codes*.md."""
    text = "\n".join(p.read_text() for p in sorted((ROOT / "docs").glob("codes*.md")))
    parts = re.split(r"^## (RF\d{3})\b", text, flags=re.M)
    assert len(parts[1::2]) == len(set(parts[1::2])), "a code has two sections"
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_code_used_is_in_the_table() -> None:
    unknown = {c: place for c, place in used().items() if c not in CODES}
    assert not unknown, unknown


def test_every_code_in_the_table_is_used() -> None:
    assert not set(CODES) - set(used()), "codes nothing raises: remove them, or raise them"


def test_every_code_has_a_section_with_a_wrong_and_a_right_example() -> None:
    sections = documented()
    assert set(sections) == set(CODES), {"no section": set(CODES) - set(sections), "no code": set(sections) - set(CODES)}
    bad = [c for c, text in sections.items() if not re.search(r"^\*\*?Wrong", text, re.M | re.I)
           or not re.search(r"^\*\*?Right", text, re.M | re.I)]
    assert not bad, f"sections without a wrong and a right example: {bad}"


def test_sections_carry_the_tables_text() -> None:
    wrong = [c for c, text in documented().items() if c in CODES and CODES[c] not in text.splitlines()[0]]
    assert not wrong, f"the heading must read `## CODE text of codes.py`: {wrong}"


def test_codes_are_in_a_known_range() -> None:
    assert all(CODE.fullmatch(c) for c in CODES)
