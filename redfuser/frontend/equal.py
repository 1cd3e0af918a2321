"""Values that a program computes more than once, computed once.

    a = silu(c); b = silu(c)                                a = silu(c)
    x @ a, y @ b                                    -->     x @ a, y @ a

Two bindings are equal where the same operator with the same attributes is applied to equal operands. What runs as a torch call
is equal to nothing: it may draw random numbers. Only results of the program's own operations are shared: an operation is
imported as several bindings (a product's sum before it is rounded), and the library that computes them in one takes none of
them from elsewhere. Two results of the program stay two, and so does what they are views of: its caller may write to one of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redfuser.tvm_compat import dtype_of, op_name, relax, same, shape_of

VIEWS = frozenset({"broadcast_to", "expand_dims", "permute_dims", "reshape", "squeeze", "strided_slice"})
FREE = VIEWS | {"arange", "astype", "full"}
"""Operators that cost nothing, however often: views, conversions that kernels read through, positions."""
Binding = tuple[Any, Any]
"""A variable and its value."""


@dataclass(slots=True)
class Equal:
    """``instead``: by name, the variable that is read in a variable's place. ``first``: by name, the result of the program that
    is bound where that variable was. ``spared``: for each computation that is left out and costs something, what stands for
    it."""

    instead: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)
    spared: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Class:
    """Equal bindings: the first one's place and value, and the variable that others read, where there is one."""

    number: int
    value: Any
    shared: Any = None


def equal(bindings: Sequence[Binding], whole: Collection[str], results: Collection[str]) -> Equal:
    """``bindings`` in program order; ``whole``: names of what the program's operations make; ``results``: of its results."""
    found = Equal()
    values = {var.name_hint: value for var, value in bindings}
    results = _seen(values, results)
    number: dict[str, int] = {}
    classes: dict[Any, list[_Class]] = {}
    for at, (var, value) in enumerate(bindings):
        name = var.name_hint
        number[name] = at
        key = _key(value, number)
        if key is None:
            continue
        alike = next((c for c in classes.setdefault(key, []) if _alike(c.value, value)), None)
        if alike is None:
            classes[key].append(alike := _Class(at, value))
        number[name] = alike.number
        if name not in whole:
            continue
        if alike.shared is None:
            alike.shared = var
            continue
        kept = alike.shared.name_hint
        if name in results and kept in results:
            continue
        if name in results:
            found.first[kept], alike.shared = var, var
            found.instead = {k: var if v.name_hint == kept else v for k, v in found.instead.items()} | {kept: var}
        else:
            found.instead[name] = alike.shared
        if _costs(value, values, whole):
            found.spared.append(alike.shared.name_hint)
    return found


def _seen(values: Mapping[str, Any], results: Collection[str]) -> set[str]:
    """Results, and what they are views of."""
    found: set[str] = set()
    for name in results:
        while name not in found:
            found.add(name)
            value: Any = values.get(name)
            if op_name(value) in VIEWS and isinstance(value.args[0], relax.Var):
                name = value.args[0].name_hint
    return found


def _key(e: Any, number: Mapping[str, int]) -> Any:
    """What equal values have in common, but for the attributes of their operator; None for what is equal to nothing."""
    if isinstance(e, relax.Var):
        return number.get(e.name_hint, e.name_hint)
    if isinstance(e, relax.Constant):
        return (dtype_of(e), e.data.numpy().tobytes()) if not shape_of(e) else e
    if isinstance(e, relax.TupleGetItem):
        of = _key(e.tuple_value, number)
        return None if of is None else ("item", of, int(e.index))
    if isinstance(e, relax.Tuple):
        return _all(e.fields, number)
    if isinstance(e, (relax.PrimValue, relax.ShapeExpr, relax.DataTypeImm)):
        return str(e)
    if not op_name(e) or op_name(e) == "call_dps_packed":
        return None
    args = _all(e.args, number)
    return None if args is None else (op_name(e), args)


def _all(parts: Sequence[Any], number: Mapping[str, int]) -> Any:
    keys = tuple(_key(p, number) for p in parts)
    return None if None in keys else keys


def _alike(a: Any, b: Any) -> bool:
    """Are two values whose operators and operands are equal the same? Their attributes say."""
    if isinstance(a, relax.TupleGetItem):
        return True
    return same(a.attrs, b.attrs) and same(a.struct_info, b.struct_info) and same(list(a.sinfo_args), list(b.sinfo_args))


def _costs(e: Any, values: Mapping[str, Any], whole: Collection[str]) -> bool:
    """Is there, among the steps of an operation that end in ``e``, one that costs something?"""
    at: Any = e
    while op_name(at) in FREE and at.args and isinstance(at.args[0], relax.Var) and at.args[0].name_hint not in whole:
        at = values.get(at.args[0].name_hint)
    return op_name(at) != "" and op_name(at) not in FREE
