"""Expression IR: the mathematics of a cascade, as named statements (:mod:`redfuser.acrf.cascade`) over typed loads.

The grammar, on one screen (``str()`` of every node prints this text; :mod:`redfuser.acrf.text` parses it back)::

    cascade   ::= "cascade" NAME "(" decl {"," decl} ")" "over" AXIS ["where" AXIS "=" extent {"," AXIS "=" extent}]
                  NEWLINE {stmt} ["return" NAME {"," NAME}]
    decl      ::= NAME ":" DTYPE "[" [extent {"," extent}] "]"    extent ::= INT | SYMBOL
    stmt      ::= result {"," result} [":" DTYPE] "=" (reduction | expr)
    result    ::= NAME ["[" AXIS {"," AXIS} "]"]
    reduction ::= OP "[" [".."] AXIS "]" expr      OP ::= sum prod max min any all argmax argmin topk(K)
    expr      ::= CONST | AXIS | NAME "[" index {"," index} "]" | NAME | FUNC "(" expr {"," expr} ")"
                | expr ("+"|"-"|"*"|"/"|"//"|"%"|"<"|"<="|">"|">="|"=="|"!="|"and"|"or") expr | "-" expr | "not" expr
                | DTYPE "(" number ")"                              (a literal of that dtype; a bare number is f32)
                | DTYPE "(" expr ")"                                (a cast: a rounding, part of the program)

``where`` states extents that no tensor dimension shows (``h`` in ``q[i, h * 64 + c]``); ``: DTYPE`` the dtype of a
reduction kept wider than its body; ``[..l]`` reduces the elements up to each (running: l is a result axis
too). Comments start with ``#``.

Nodes are frozen and carry no parents; sharing is by *named statements*, never by nesting, so hashing, equality and
printing stay linear. A dtype is a short name: ``f64 f32 f16 bf16 e4m3 e5m2 i64 i32 i8 u8 bool``; index arithmetic is
``i64``. Axes are named; two things share an axis exactly when they name the same one (extent equality means nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Union

from redfuser.acrf import functions
from redfuser.acrf.once import Once, hashed_once
from redfuser.dtypes import BYTES as BYTES
from redfuser.dtypes import FLOATS, TABLE, widens
from redfuser.dtypes import NARROW as NARROW

UNARY = frozenset({"neg", "abs", "floor", "ceil", "round", "not"}) | {n for n, f in functions.TABLE.items() if f.arity == 1}
BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=",
          "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or"}
FUNCTIONS = frozenset({"pow", "min", "max", "select", "isnan"}) | functions.TABLE.keys() - UNARY
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
DTYPES = tuple(TABLE)


class _Node(Once):
    __slots__ = ()

    def text(self) -> str:
        return print_expr(self)  # type: ignore[arg-type]  # of the nodes below


@dataclass(frozen=True, slots=True)
class Const(_Node):
    """A literal. The dtype takes part in equality, since Python merges 0, 0.0, -0.0 and False."""

    value: float | int | bool
    dtype: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or self.dtype != other.dtype:
            return False
        a, b = self.value, other.value
        return a is b or (type(a) is type(b) and (a == b != 0 or repr(a) == repr(b)))  # -0.0 is not 0.0, and NaN is NaN

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else None, self.dtype))


@dataclass(frozen=True, slots=True)
class Index:
    """The value of an axis at the current point, as an integer (``l`` in ``l <= i``)."""

    axis: str

    @property
    def dtype(self) -> str:
        return "i64"

    def __str__(self) -> str:
        return self.axis


@hashed_once
@dataclass(frozen=True, slots=True)
class Load(_Node):
    """An element of an input tensor, ``x[i, l]``; the indices are integer expressions over axes."""

    tensor: str
    indices: tuple[Expr, ...]
    dtype: str


@hashed_once
@dataclass(frozen=True, slots=True)
class Ref(_Node):
    """The value of an earlier statement at the current point of its axes (``m`` in ``exp(x[l] - m)``).

    Inside a fused state a name may carry a version suffix: ``m@old`` (before this segment), ``m@a`` / ``m@b`` (the two
    sides of a merge); a bare name is the current (new) value. ``indices`` is empty for the ordinary pointwise reference
    along the statement's own axes, else one integer expression per axis of the statement (a gather or a shift).
    """

    name: str
    dtype: str
    indices: tuple[Expr, ...] = ()


@hashed_once
@dataclass(frozen=True, slots=True)
class Op(_Node):
    """A pointwise operation; ``name`` is one of UNARY, BINARY's keys or FUNCTIONS."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


@hashed_once
@dataclass(frozen=True, slots=True)
class Cast(_Node):
    """A conversion: a rounding that is part of the program."""

    arg: Expr
    dtype: str


Expr = Union[Const, Index, Load, Ref, Op, Cast]


def f32(value: float) -> Const:
    return Const(float(value), "f32")


def op(name: str, *args: Expr) -> Op:
    """Build an Op with the obvious result dtype: bool for comparisons, else that of the last argument."""
    dtype = "bool" if name in COMPARISONS or name in ("and", "or", "not", "isnan") else args[-1].dtype
    return Op(name, tuple(args), dtype)


def children(e: Expr) -> tuple[Expr, ...]:
    # asked tens of millions of times a model: a class is found faster than what it is derived from
    if type(e) is Op:
        return e.args
    if type(e) is Const or type(e) is Index:
        return ()
    if type(e) is Load or type(e) is Ref:
        return e.indices
    return (e.arg,) if type(e) is Cast else ()


def map_children(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """The node with ``f`` of each of its children: itself where they are what they were."""
    kids = children(e)
    if not kids:
        return e
    new = tuple(map(f, kids))
    if all(map(is_, new, kids)):
        return e
    match e:
        case Op(name=name, dtype=dtype):
            return Op(name, new, dtype)
        case Load(tensor=name, dtype=dtype):
            return Load(name, new, dtype)
        case Ref(name=name, dtype=dtype):
            return Ref(name, dtype, new)
    return Cast(new[0], e.dtype)


def walk(e: Expr) -> Iterator[Expr]:
    """Every node of the tree, a parent before its children, from the left."""
    todo = [e]
    while todo:
        x = todo.pop()
        yield x
        if kids := children(x):
            todo += kids[::-1]


def substitute(e: Expr, refs: Mapping[str, Expr] | None = None, indices: Mapping[str, Expr] | None = None) -> Expr:
    """Replace pointwise Refs by name and Index nodes by axis."""
    refs, indices = refs or {}, indices or {}

    def go(x: Expr) -> Expr:
        if isinstance(x, Ref) and not x.indices and x.name in refs:
            return refs[x.name]
        if isinstance(x, Index) and x.axis in indices:
            return indices[x.axis]
        return map_children(x, go)

    return go(e)


def unwidened(e: Expr) -> Expr:
    """Without the casts of floats around it that round nothing."""
    while isinstance(e, Cast) and e.dtype in FLOATS and e.arg.dtype in FLOATS and widens(e.arg.dtype, e.dtype):
        e = e.arg
    return e


def refs_of(e: Expr) -> frozenset[str]:
    return frozenset(x.name for x in walk(e) if isinstance(x, Ref))


def loads_of(e: Expr) -> tuple[Load, ...]:
    return tuple(dict.fromkeys(x for x in walk(e) if isinstance(x, Load)))


def indices_of(e: Expr) -> frozenset[str]:
    """Axes that the expression names directly (through Index nodes, in load indices or in arithmetic)."""
    return frozenset(x.axis for x in walk(e) if isinstance(x, Index))


def entangled(indices: tuple[Expr, ...]) -> bool:
    """Whether the indices of one element have several quotients and remainders, one of them shifted by a constant, as in
    ``(i // 14 + 6) % 7 * 7 + (i + 5) % 7``. TVM's simplifier of iterators (0.25, and TileLang's) takes two shifts of one
    axis for one: such indices are to be kept from it. Not those of one number (``(i + 5) // 7, (i + 5) % 7``)."""
    parts = {x for i in indices for x in walk(i) if isinstance(x, Op) and x.name in ("floordiv", "mod") and indices_of(x)}
    return len({p.args[0] for p in parts}) > 1 and any(
        isinstance(x, Op) and x.name in ("add", "sub") and any(isinstance(k, Const) for k in x.args)
        for p in parts for x in walk(p.args[0]))


# -- printing ----------------------------------------------------------------------------------------------------------
#
# Every node prints to exactly one text, and different nodes to different texts. Bare numbers are fp32 (``1.0``), but
# a bare integer is i64 where the context already is: in an index position, or beside an i64 operand (``l <= 3``).

LEVEL = {"or": 1, "and": 2, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4, "add": 5, "sub": 5, "mul": 6,
         "div": 6, "floordiv": 6, "mod": 6}
"""How strongly an operator binds."""


def print_expr(e: Expr, level: int = 0, integer: bool = False) -> str:
    """One line of text that :func:`redfuser.acrf.text.parse_expr` reads back to an equal expression.

    ``level`` is the binding strength the context asks for; ``integer`` says the context reads bare integers as i64.
    """
    match e:
        case Const(value=v, dtype=d):
            return _print_const(v, d, integer)
        case Index(axis=a):
            return a
        case Load(tensor=n, indices=ix):
            return f"{n}[{', '.join(print_expr(i, 0, True) for i in ix)}]"
        case Ref(name=n, indices=ix):
            return print_expr(Load(n, ix, e.dtype)) if ix else n
        case Cast(arg=Const(value=v, dtype="f32"), dtype=d):  # f16(0.5) is the f16 literal; this is its rounding
            return f"{d}(f32({_number(v, 'f32')}))"
        case Cast(arg=arg, dtype=d):
            return f"{d}({print_expr(arg)})"
        case Op(name="neg", args=(x,)):
            inner = f"{x.dtype}({_number(x.value, x.dtype)})" if isinstance(x, Const) else print_expr(x, 8, integer)
            return f"-{inner}" if level < 7 else f"(-{inner})"
        case Op(name="not", args=(x,)):
            return f"not {print_expr(x, 4)}" if level < 4 else f"(not {print_expr(x, 4)})"
        case Op(name=n, args=(x, y)) if n in BINARY:
            mine = LEVEL[n]
            left, right = _operand_contexts((x, y), integer and n not in COMPARISONS)
            text = f"{print_expr(x, mine, left)} {BINARY[n]} {print_expr(y, mine + 1, right)}"
            return f"({text})" if mine < level or (mine == 4 and level == 4) else text
        case Op(name="select", args=(c, x, y)):
            left, right = _operand_contexts((x, y), integer)
            return f"select({print_expr(c)}, {print_expr(x, 0, left)}, {print_expr(y, 0, right)})"
        case Op(name=n, args=args):
            contexts = _operand_contexts(args, integer and n != "isnan")
            return f"{n}({', '.join(print_expr(a, 0, c) for a, c in zip(args, contexts, strict=True))})"
    raise TypeError(f"not an expression: {e!r}")


def _operand_contexts(args: tuple[Expr, ...], integer: bool) -> tuple[bool, ...]:
    """For each operand: does it read bare integers as i64? Yes when a non-literal sibling is i64."""
    typed = [a.dtype == "i64" and not is_literal(a) for a in args]
    return tuple(integer or any(t for j, t in enumerate(typed) if j != i) for i in range(len(args)))


def is_literal(e: Expr) -> bool:
    """Does the expression consist of bare numbers only, so that its text takes the dtype its context asks for?"""
    match e:
        case Const(dtype=d):
            return d in ("f32", "i64")
        case Op(name="select", args=(_, x, y)):
            return is_literal(x) and is_literal(y)
        case Op(args=args, dtype=d) if d != "bool":
            return all(is_literal(a) for a in args)
    return False


def _print_const(v: float | int | bool, d: str, integer: bool) -> str:
    if d == "bool":
        return "true" if v else "false"
    return _number(v, d) if d == "f32" or (d == "i64" and integer) else f"{d}({_number(v, d)})"


def _number(v: float | int | bool, d: str) -> str:
    return repr(float(v)) if d in FLOATS else str(int(v))

