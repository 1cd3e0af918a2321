"""Expressions of a segment program as TVMScript text.

The narrow floats (``f16 bf16``) are held as float32 values that are rounded where the program says so: a cast to them and
every arithmetic operation in them rounds explicitly, because LLVM kernels otherwise drop bf16 round trips. Integer index
arithmetic is printed in 32 bits. ``select`` is evaluated lazily where a branch could load outside its tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import inf
from struct import pack, unpack

from redfuser.acrf.affine import Indices
from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Index, Load, Op, Ref, entangled, indices_of, walk
from redfuser.acrf.steps import COARSE, STEPS, SUMS, a_statistic
from redfuser.acrf.unfolded import unfolded
from redfuser.dtypes import INTS, LARGEST, LONG
from redfuser.errors import LoweringError
from redfuser.strategies import tir_math

TVM_DTYPE = {name: long for name, long in LONG.items() if not long.startswith("float8")}
NARROW = frozenset({"f16", "bf16"})
_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "eq": "==", "ne": "!="}
_CALLS = {"sqrt": "T.sqrt", "rsqrt": "T.rsqrt", "exp": "T.exp", "exp2": "T.exp2", "log": "T.log", "log2": "T.log2",
          "floor": "T.floor", "ceil": "T.ceil", "round": "T.nearbyint", "sin": "T.sin", "cos": "T.cos", "abs": "T.abs"}
_LIBM = frozenset({"tanh", "erf", "pow", "erfc", "lgamma", "atan2"})
"""From the C library: TVM's own approximations of the first two lose digits near 0, and of a power it warns."""
FENCE = 'T.call_llvm_pure_intrin("{dtype}", "llvm.arithmetic.fence", {text})'
"""A value as it is: LLVM joins a product and what it is taken from, and rounds once, also where the program's own two roundings
are what cancels (``sum w x x - (sum w x) ** 2`` of equal elements)."""
ROUNDED = 'T.call_llvm_pure_intrin("{dtype}", "llvm.fma", {text}, T.{dtype}(1.0), T.{dtype}(0.0))'
"""A product rounded before it is taken from, where a step follows or a statistic is taken (:mod:`redfuser.acrf.steps`) and
nobody sees the sign of a zero: LLVM makes it one multiply-add with 0, and vectors of it as of any other, which it does not of
``FENCE``."""
_EXACT = frozenset({"neg", "abs", "min", "max", "select"})
"""Operations that cannot need a rounding in a narrow type."""


def wide(dtype: str) -> str:
    """The TVM dtype in which a value of ``dtype`` is held in registers and scratch memory."""
    if dtype not in TVM_DTYPE:
        raise LoweringError("RF431", f"the CPU target has no arithmetic in {dtype}",
                            why="LLVM kernels drop round trips through 8-bit floats",
                            help="the region runs as torch operators on the CPU")
    return "float32" if dtype in NARROW else TVM_DTYPE[dtype]


def stored(text: str, dtype: str) -> str:
    """``text`` (held as :func:`wide` says) as a value of a buffer of ``dtype``. TVM rounds a NaN to bfloat16 as it does a
    number: one with every bit set, as vectors of torch's make them, would be 0."""
    if dtype == "bf16":
        text = f'T.Select({is_nan(text, "float32")}, T.reinterpret("float32", T.uint32(0x7FC00000)), {text})'
    return f'T.Cast("{TVM_DTYPE[dtype]}", {text})' if dtype in NARROW or dtype in INTS else text


def is_nan(text: str, held: str) -> str:
    """Whether a value held as ``held`` is NaN. Its bits are asked: TVM makes a loop of a vector that is asked ``isnan``, one
    lane after the other and without what is bound beside it, takes ``x != x`` for false, and cannot divide by 2^31, which a
    mask means to it."""
    if held == "float64":
        return f'(T.reinterpret("int64", T.abs({text})) > T.int64(0x7FF0000000000000))'
    return f'(T.shift_left(T.reinterpret("uint32", {text}), T.uint32(1)) > T.uint32(0xFF000000))'


_ELEMENT = re.compile(r"\w+\[[\w, ]+\]")
"""An element of a buffer as it is, which is not bound: TVM writes a bound value that reads no buffer out again wherever it is
asked for, before it lowers, and a chain of bindings becomes a tree (13 of the 17 s that a merge of two maxima took)."""


class Texts:
    """Prints expressions inside one block. ``access`` gives the text of a named value's element, and whether it lies in a
    buffer of its own (possibly narrow) dtype; ``lets`` collects the block's local bindings. ``register`` names a
    one-element buffer to bind to instead (TVM's bf16 legalisation does not look into let bindings). ``vectors``: functions
    that LLVM would call a library for are written out where they can be (:mod:`redfuser.strategies.tir_math`). ``settled``:
    sums and differences are of what is rounded (``FENCE``)."""

    def __init__(self, index: Callable[[str], str], access: Callable[[Ref], tuple[str, str]],
                 extents: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, str],
                 register: Callable[[int, str], str] | None = None, vectors: bool = False, settled: bool = False) -> None:
        self.index, self.access, self.extents, self.shapes, self.tensors = index, access, extents, shapes, tensors
        self.register, self.vectors, self.settled = register, vectors, settled
        self.lets: list[str] = []
        self._bound: dict[tuple[str, str], str] = {}  # a block writes after all of its lets: a text keeps its value
        self.lazy = 0
        self.step = False  # does what is printed go into a step, scaled or chosen from but not summed with anything?

    def bind(self, text: str, dtype: str, before: bool = False) -> str:
        """A name for a value that is used several times; the text itself inside a lazy branch. An element needs no name,
        unless it is wanted as it was ``before`` the block's first of several stores."""
        if self.lazy or text.isidentifier() or (_ELEMENT.fullmatch(text) and not before):
            return text
        if (text, dtype) in self._bound:
            return self._bound[text, dtype]
        if self.register is not None:
            name = self.register(len(self.lets), dtype)
            self.lets.append(f"{name} = {text}")
        else:
            name = f"x{len(self.lets)}"
            cast = f'T.Cast("{dtype}", {text})' if dtype.startswith("int") else text
            self.lets.append(f"{name}: T.let[T.{dtype}] = {cast}")
        self._bound[text, dtype] = name
        return name

    def value(self, e: Expr) -> str:
        """``e`` in :func:`wide` of its dtype, parenthesised as needed."""
        before = self.step
        if isinstance(e, Op):
            self.step = e.name in STEPS or (before and e.name not in SUMS)
        elif isinstance(e, Cast):
            self.step = before or e.dtype in COARSE
        text = self._value(e, before)
        self.step = before
        return text

    def _value(self, e: Expr, step: bool) -> str:
        match e:
            case Const():
                return self.const(e)
            case Index(axis=a):
                return self.index(a)
            case Load():
                return self._widened(self.load(e), e.dtype)
            case Ref():
                text, dtype = self.access(e)
                return f'T.Cast("float32", {text})' if dtype in NARROW else text
            case Cast():
                return self.cast(e)
            case Op():
                text = self.op(e, step)
                return self.rounded(text, e.dtype) if e.dtype in NARROW and e.name not in _EXACT else text
        raise TypeError(f"not an expression: {e!r}")

    def const(self, e: Const) -> str:
        if e.dtype == "bool":
            return f"T.bool({bool(e.value)})"
        if e.dtype in FLOATS:
            v = float(e.value)
            if LARGEST["f32"] < abs(v) < inf:  # TVM's script reads a literal as float32 first
                return f'T.reinterpret("float64", T.int64({unpack("<q", pack("<d", v))[0]}))'
            text = f'"{v}"' if v != v or v in (inf, -inf) else repr(v)
            return f"T.{wide(e.dtype)}({text})"
        return str(int(e.value)) if e.dtype == "i64" and abs(int(e.value)) < 2**31 else f"T.{wide(e.dtype)}({int(e.value)})"

    def load(self, e: Load) -> str:
        hidden = entangled(e.indices)
        return f"{self.tensors[e.tensor]}[{', '.join(self.position(i, hidden) for i in e.indices) or '()'}]"

    def position(self, e: Expr, hidden: bool = False) -> str:
        """hidden: behind an operation through which TVM's simplifier of iterators does not see."""
        text = self.value(e)
        if any(isinstance(x, (Load, Ref)) for x in walk(e)):
            return f'T.Cast("int32", {text})'
        return f"T.bitwise_or({text}, 0)" if hidden and indices_of(e) else text

    def _widened(self, text: str, dtype: str) -> str:
        wide(dtype)
        return f'T.Cast("float32", {text})' if dtype in NARROW else text

    def rounded(self, text: str, dtype: str) -> str:
        """A float32 text rounded to the nearest value of a narrow dtype, ties to even, NaN kept."""
        if dtype == "f16":
            return f'T.Cast("float32", T.Cast("float16", {text}))'
        x = self.bind(text, "float32")
        bits = f'T.reinterpret("uint32", {x})'
        odd = f"T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(1))"
        near = f"T.bitwise_and({bits} + T.uint32(0x7FFF) + {odd}, T.uint32(0xFFFF0000))"
        return f'T.Select({is_nan(x, "float32")}, {x}, T.reinterpret("float32", {near}))'

    def cast(self, e: Cast) -> str:
        source, target = e.arg.dtype, e.dtype
        text = self.value(e.arg)
        if target in NARROW:
            text = text if wide(source) == "float32" else f'T.Cast("float32", {text})'
            return text if source == target else self.rounded(text, target)
        if target == "bool":
            zero = self.const(Const(0, source))
            return text if source == "bool" else _unequal(text, zero) if source in FLOATS else f"({text} != {zero})"
        if wide(source) == wide(target) and not isinstance(e.arg, Index):
            return text
        if source in FLOATS and target in ("i8", "u8"):  # as processors do: by way of 32 bits, and NaN becomes 0
            x = self.bind(text, wide(source))
            return f'T.Cast("{wide(target)}", T.Select({is_nan(x, wide(source))}, T.int32(0), T.Cast("int32", {x})))'
        return f'T.Cast("{wide(target)}", {text})'

    def op(self, e: Op, step: bool = False) -> str:
        """step: is it the argument of one?"""
        e = unfolded(e)
        name, args = e.name, e.args
        if name == "select":
            return self.select(e)
        if name == "pow" and isinstance(args[1], Const) and float(args[1].value) == 2.0:
            x = self.bind(self.value(args[0]), wide(e.dtype))
            return f"({x} * {x})"
        texts = [self.value(a) for a in args]
        kind = wide(e.dtype)
        if len({any(isinstance(x, (Load, Ref)) for x in walk(a)) for a in args}) == 2 and all(a.dtype in INTS for a in args):
            common = "int64" if e.dtype == "bool" else kind
            texts = [f'T.Cast("{common}", {t})' for t in texts]  # a position is int32 in the text, data need not be
        if name in ("min", "max"):
            return self.extremum(name, texts, args, e.dtype)
        if name == "ne" and args[0].dtype in FLOATS:
            return _unequal(*texts)
        if e.dtype in ("f32", "f64") and ((name in SUMS and self.settled) or
                                          (name == "sub" and (step or a_statistic(*args) or a_statistic(*args[::-1])))):
            whole = FENCE if self.settled else ROUNDED
            texts = [whole.format(dtype=kind, text=t) if isinstance(a, Op) and a.name in ("mul", "pow") else t
                     for t, a in zip(texts, args, strict=True)]
        if name == "mod" and e.dtype in FLOATS:
            return self.floor_mod(texts[0], texts[1], kind)
        if name in _INFIX:
            return f"({texts[0]} {_INFIX[name]} {texts[1]})"
        if name == "div":
            return f"T.truncdiv({texts[0]}, {texts[1]})" if e.dtype in INTS else f"({texts[0]} / {texts[1]})"
        if name in ("and", "or"):
            return f"T.{name.capitalize()}({texts[0]}, {texts[1]})"
        if name == "not":
            return f"T.Not({texts[0]})"
        if name == "isnan":
            return is_nan(texts[0], wide(args[0].dtype))
        if name == "neg":
            return f"(-{texts[0]})"
        if self.vectors and not self.lazy and kind == "float32" and (text := tir_math.inline(name, texts[0], self.bind)):
            return text
        if name == "sigmoid":
            one = self.const(Const(1.0, e.dtype))
            return f"({one} / ({one} + T.exp(-{texts[0]})))"
        if name in _LIBM:
            return f'T.call_pure_extern("{kind}", "{name}{"f" if kind == "float32" else ""}", {", ".join(texts)})'
        if name == "rsqrt" and self.vectors:  # the same bits, and a vector where it is bound: TVM makes none of rsqrt
            return f"({self.const(Const(1.0, e.dtype))} / T.sqrt({texts[0]}))"
        if name in _CALLS:
            return f"{_CALLS[name]}({texts[0]})"
        raise LoweringError("RF430", f"the CPU target cannot compute {name}")

    def floor_mod(self, x: str, y: str, kind: str) -> str:
        """Of the divisor's sign. C's is exact, whatever the quotient; TVM's own takes a rounded one."""
        by = self.bind(y, kind)
        left = self.bind(f'T.call_pure_extern("{kind}", "fmod{"f" if kind == "float32" else ""}", {x}, {by})', kind)
        zero = f"T.{kind}(0.0)"
        other = f"T.Or(T.And({left} < {zero}, {by} > {zero}), T.And({left} > {zero}, {by} < {zero}))"
        return f"T.Select({other}, {left} + {by}, {left})"

    def extremum(self, name: str, texts: list[str], args: tuple[Expr, ...], dtype: str) -> str:
        """NaN propagates: ``T.max(a, b)`` gives b when either is NaN, so a constant goes first."""
        a, b = texts
        if dtype not in FLOATS:
            return f"T.{name}({a}, {b})"
        if isinstance(args[1], Const):
            a, b = b, a
        elif not isinstance(args[0], Const):
            a = self.bind(a, wide(dtype))
            b = self.bind(b, wide(dtype))
            return f"T.Select(T.Or({a} {'>' if name == 'max' else '<'} {b}, {is_nan(a, wide(dtype))}), {a}, {b})"
        return f"T.{name}({a}, {b})"

    def select(self, e: Op) -> str:
        condition, yes, no = e.args
        test = self.value(condition)
        unsafe = [x for branch in (yes, no) for x in walk(branch) if isinstance(x, Load) and not self.in_bounds(x)]
        if unsafe:
            self.lazy += 1
        a, b = self.value(yes), self.value(no)
        if unsafe:
            self.lazy -= 1
        if e.dtype in INTS:
            a, b = f'T.Cast("{wide(e.dtype)}", {a})', f'T.Cast("{wide(e.dtype)}", {b})'
        return f"T.{'if_then_else' if unsafe else 'Select'}({test}, {a}, {b})"

    def in_bounds(self, load: Load) -> bool:
        """Whether every index stays inside the tensor over the whole range of the axes."""
        ix = Indices(self.extents)
        for e, extent in zip(load.indices, self.shapes[load.tensor], strict=True):
            low, high = ix.range_of(e)
            if not (low >= 0 and high <= extent - 1):
                return False
        return True


def _unequal(x: str, y: str) -> str:
    """Of floats: TVM's LLVM code takes ``!=`` for false beside NaN."""
    return f"T.Select({x} == {y}, T.bool(False), T.bool(True))"
