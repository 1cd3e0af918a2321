"""How arguments and results are packed, as data: a closed grammar in place of torch's own text of a pytree.

    structure ::= "leaf" | ["tuple", structure...] | ["list", structure...] | ["dict", [key, structure]...]

Nothing in it is a name that could be resolved. What a model packs in other types is written as what it holds: a named tuple
as a tuple, a record (a model output of transformers, a dataclass known to torch) as a dict of its fields. In the process
that compiled a model its results have their own types; loaded from a file they have these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils import _pytree as pytree

MAX_DEPTH = 64
LEAF = "leaf"
_TUPLES = (pytree.namedtuple, pytree.structseq) if hasattr(pytree, "structseq") else (pytree.namedtuple,)


def children(spec: Any) -> list[Any]:
    """The children of a pytree spec, in any torch release."""
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def to_json(spec: Any, leaves: Sequence[Any], none: Any) -> tuple[Any, list[Any]]:
    """A pytree spec in the grammar, and ``leaves`` in its order, with ``none`` for a record's fields that are None.
    Raises ValueError for a structure that is neither a sequence nor a record."""
    found: list[Any] = []
    given = iter(leaves)

    def walk(node: Any) -> Any:
        if node.is_leaf():
            found.append(next(given))
            return LEAF
        below = children(node)
        if node.type in (tuple, list):
            return [node.type.__name__, *map(walk, below)]
        if _is_tuple(node.type):
            return ["tuple", *map(walk, below)]
        keys, empty = _fields(node.context, len(below))
        if keys is None:
            raise ValueError(f"a {getattr(node.type, '__name__', node.type)}, which is neither a sequence nor a record")
        packed = [[key, walk(child)] for key, child in zip(keys, below, strict=True)]
        for key in empty:
            found.append(none)
            packed.append([key, LEAF])
        return ["dict", *packed]

    return walk(spec), found


def from_json(data: Any) -> Any:
    """The inverse: a pytree spec of tuples, lists and dicts. Raises ValueError for what is not in the grammar."""
    return pytree.tree_structure(_example(data, 0))


def plain(spec: Any, leaves: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
    """A spec and its leaves as they would be after saving and loading, to compare with; None for what cannot be saved."""
    try:
        return to_json(spec, leaves or [None] * spec.num_leaves, None)
    except ValueError:
        return None, []


def arranged(spec: Any, leaves: Sequence[Any], wanted: Any) -> list[Any] | None:
    """The leaves of ``spec`` in the order of ``wanted``, for structures that are one in the grammar, up to the order of a
    dict's keys; None for others."""
    found: list[Any] = []

    def walk(given: Any, asked: Any) -> bool:
        if given[0] == "leaf" or asked == LEAF:
            found.append(given[-1])
            return bool(given[0] == "leaf" and asked == LEAF)
        if given[0] != asked[0] or len(given) != len(asked):
            return False
        if given[0] != "dict":
            return all(walk(g, a) for g, a in zip(given[1:], asked[1:], strict=True))
        parts = dict(given[1:])
        return len(parts) == len(asked) - 1 and all(key in parts and walk(parts[key], part) for key, part in asked[1:])

    (packed, flat), (order, _) = plain(spec, leaves), plain(wanted)
    if packed is None or order is None:
        return None
    return found if walk(_filled(packed, iter(flat)), order) else None


def shown(spec: Any, words: Iterator[str]) -> str:
    """``(x, [tensor, tensor], {'mask': tensor})``: a structure as Python writes it, with ``words`` in the leaves' places."""
    if spec.is_leaf():
        return next(words)
    parts = [shown(child, words) for child in children(spec)]
    if spec.type is list:
        return f"[{', '.join(parts)}]"
    names, _ = (None, []) if _is_tuple(spec.type) else _fields(spec.context, len(parts))
    if names is not None:
        return "{" + ", ".join(f"{name!r}: {part}" for name, part in zip(names, parts, strict=True)) + "}"
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _filled(packed: Any, leaves: Iterator[Any]) -> Any:
    """A structure with its leaves in their places, each as ``("leaf", value)``."""
    if packed == LEAF:
        return "leaf", next(leaves)
    if packed[0] == "dict":
        return ["dict", *((key, _filled(part, leaves)) for key, part in packed[1:])]
    return [packed[0], *(_filled(part, leaves) for part in packed[1:])]


def _example(data: Any, depth: int) -> Any:
    """Python values of that structure, with 0 at the leaves."""
    if depth > MAX_DEPTH:
        raise ValueError("a structure nested too deeply")
    if data == LEAF:
        return 0
    if not isinstance(data, list) or not data:
        raise ValueError("a structure of no known kind")
    kind, *parts = data
    if kind == "tuple":
        return tuple(_example(part, depth + 1) for part in parts)
    if kind == "list":
        return [_example(part, depth + 1) for part in parts]
    if kind != "dict":
        raise ValueError("a structure of no known kind")
    found: dict[str, Any] = {}
    for key, part in _pairs(parts):
        if key in found:
            raise ValueError(f"a key that occurs twice: {key[:40]!r}")
        found[key] = _example(part, depth + 1)
    return found


def _pairs(parts: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for part in parts:
        if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], str):
            raise ValueError("an entry of a dict that is not a key and a structure")
        yield part[0], part[1]


def _is_tuple(kind: Any) -> bool:
    """Whether pytree flattened a tuple of some sort: a named tuple or a result of torch (``torch.return_types.topk``)."""
    return kind in _TUPLES or (isinstance(kind, type) and issubclass(kind, tuple))


def _fields(context: Any, count: int) -> tuple[list[str] | None, list[str]]:
    """The names of a dict's or record's ``count`` fields, and of those that are None and have no leaf."""
    if not isinstance(context, (list, tuple)):
        return None, []
    names, empty = list(context), []
    if len(names) == 2 and all(isinstance(c, (list, tuple)) for c in context):  # a dataclass registered with torch
        names, empty = list(context[0]), list(context[1])
    if len(names) != count or not all(isinstance(n, str) for n in (*names, *empty)):
        return None, []
    return names, empty
