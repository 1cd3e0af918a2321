"""Expressions as TileLang spells them (0.1.15), for :mod:`redfuser.codegen.tilelang`."""

from __future__ import annotations

import math

from redfuser.acrf.expr import BINARY, LEVEL, Cast, Const, Expr, Index, Load, Op, entangled, indices_of, walk
from redfuser.acrf.unfolded import unfolded
from redfuser.codegen.contracted import Contractions
from redfuser.codegen.dialects import CUDA, EIGHT, Dialect, byte
from redfuser.codegen.exchange import by_row, of_rows
from redfuser.codegen.halves import power_of_two, reciprocal
from redfuser.codegen.numbers import Numbers
from redfuser.codegen.pairs import Pairs, chain
from redfuser.codegen.roles import arriving, role_kernel
from redfuser.errors import LoweringError
from redfuser.tensorize.ir.nodes import Parallel, TileKernel
from redfuser.tensorize.ir.pointwise import NUMPY_DTYPES
from redfuser.tensorize.ir.tangents import computed_half, flat, near, tangent

_FUNCTIONS = {"exp": "T.exp", "exp2": "T.exp2", "log": "T.log", "log2": "T.log2", "sqrt": "T.sqrt", "rsqrt": "T.rsqrt",
              "tanh": "T.tanh", "sigmoid": "T.sigmoid", "erf": "T.erf", "floor": "T.floor", "ceil": "T.ceil",
              "round": "T.nearbyint", "sin": "T.sin", "cos": "T.cos", "min": "T.min", "max": "T.max", "pow": "T.pow",
              "select": "T.if_then_else", "isnan": "T.isnan", "and": "T.And", "or": "T.Or", "not": "T.Not"}
_FLOATS = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")


class Expressions:
    """The expressions of a kernel. ``called``: the functions of ours that they call."""

    def __init__(self, kernel: TileKernel, dialect: Dialect) -> None:
        self.kernel, self.dialect, self.dtypes, self.spelled = kernel, dialect, kernel.dtypes, dialect.dtypes
        self.called: set[str] = set()
        self.contractions = Contractions.of(kernel)
        self.fragments = {b.name for b in kernel.buffers if b.scope == "fragment"}
        self.arriving = arriving(kernel) if "byte_of_two" in dialect.prelude else frozenset()
        """Masks that threads read in shared memory, two neighbouring elements each."""
        self.divides = "divided" in dialect.prelude and of_rows(kernel)
        """Are elements divided by a value of their row in a way of our own?"""
        self.flat = flat(kernel)
        """Are its tangents the hardware's, whatever they are of?"""
        self.alone = False
        """Is what is printed computed element by element?"""
        self.many = False
        """Is it computed for every element of a tile, and not for its rows alone?"""
        self.numbers = Numbers(kernel)
        self.pairs: Pairs | None = None
        """The statement that is printed in parts."""
        self.valued = self.reckoned = False
        """Is what is printed a value, and not the place of one, which fits into 32 bits? A term or factor of an integer one?"""

    def values(self, s: Parallel) -> list[list[str]]:
        """What a loop assigns, by assignment: one value, or several one after another (:mod:`redfuser.codegen.pairs`)."""
        own = chain(self.kernel, s) if role_kernel(self.kernel) and "quotient" in self.dialect.prelude else None
        self.many = len(s.vars) > 1
        if own is None or not _singly(self.assigned(s.body[0].target, s.body[0].expr)):
            return [[self.element(a.target, a.expr)] for a in s.body]
        (a,) = s.body
        self.pairs = Pairs(own, f"{a.target}[{', '.join(map(self.expr, a.indices))}]")
        text, parts = self.assigned(a.target, a.expr), self.pairs.parts
        if text == self.pairs.here:
            text = parts.pop()
        self.pairs = None
        return [[*parts, text]]

    def element(self, target: str, e: Expr) -> str:
        """A value at a point. In kernels with roles numbers of bfloat16 are rounded by a function of ours where all that is
        read is in registers, or beside a call or a choice; elsewhere by pairs, as they are loaded."""
        text = self.assigned(target, e)
        read = {x.tensor for x in walk(e) if isinstance(x, Load)}
        if not role_kernel(self.kernel) or not (read <= self.fragments or _singly(text)):
            return text
        self.alone = True
        text = self.assigned(target, e)
        self.alone = False
        return text

    def assigned(self, target: str, e: Expr) -> str:
        """``e`` converted to the target's element type where that differs."""
        self.valued, e = True, self.contractions.settled(target, e, not self.many)
        text, self.valued = self._assigned(self.dtypes[target], e), False
        return text

    def _assigned(self, want: str, e: Expr) -> str:
        if self.dialect.bytes and want in EIGHT and want != e.dtype:
            return str(byte(e.value, want)) if isinstance(e, Const) else self.to_byte(e, want)
        if want == "e4m3" and e.dtype in _FLOATS and want != e.dtype and not isinstance(e, Const):
            return f"T.cast({self.eight_bits(e)}, \"{self.spelled[want]}\")"
        if want != e.dtype and not (isinstance(e, Const) or {want, e.dtype} <= {"i64", "i32"}):
            if self.alone and want == "f32":
                return self.expr(Cast(e, "f32"))
            return f"T.cast({self.expr(_through(e, want))}, \"{self.spelled[want]}\")"
        return self.expr(e)

    def expr(self, e: Expr, level: int = 0) -> str:
        if self.pairs is not None and (known := self.pairs.known.get(e)):
            return known
        match e:
            case Cast(arg=arg, dtype="f32") if arg.dtype == "f16" and self.pairs is not None and self.pairs.on(arg):
                return self.pairs.keep(e, f"T.cast({self.expr(arg)}, \"{self.spelled['f32']}\")")
            case Cast(arg=arg, dtype="f16") if arg.dtype == "f32" and self.pairs is not None and self.pairs.on(arg):
                text = self.expr(arg)
                return f"T.cast({self.pairs.keep(arg, text) if _singly(text) else text}, \"{self.spelled['f16']}\")"
            case Op() if (spelled := unfolded(e)) is not e:
                return self.expr(spelled, level)
            case Const():
                return str(byte(e.value, e.dtype)) if self.dialect.bytes and e.dtype in EIGHT else _const(e)
            case Index(axis=a):
                return a
            case Load(tensor=n, indices=(*ix, Index(axis=a)), dtype="bool") if n in self.arriving:
                self.called.add("byte_of_two")
                even = f"{', '.join(map(self.expr, ix))}, {a} // 2 * 2"
                return f'(T.call_extern("int32", "byte_of_two", T.address_of({n}[{even}]), {a} % 2) != 0)'
            case Load() if e in self.numbers.names:
                return self.numbers.names[e]
            case Load(tensor=n, indices=ix, dtype=d):
                around = self.valued, self.reckoned
                self.valued = self.reckoned = False
                text = f"{n}[{', '.join(map(self.hidden if entangled(ix) else self.expr, ix))}]"
                self.valued, self.reckoned = around
                return f"({text} != 0)" if d == "bool" else text
            case Cast(arg=arg, dtype="i64") if arg.dtype not in _FLOATS and not (self.reckoned and self.narrow(arg)):
                return self.expr(arg, level)
            case Cast(arg=Op(name="div", args=(Cast(arg=x), Const(value=c)), dtype="f32"), dtype="f16" | "bf16" as d) if (
                    x.dtype == d and self.pairs is None and (parts := self.parts(d, c))):
                single = self.ours("quotient", Cast(x, "f32"), *(Const(p, "f32") for p in parts))
                return f'T.cast({single}, "{self.spelled[d]}")'
            case Cast(arg=arg, dtype=d):
                if self.alone and d == "f32" and arg.dtype == "bf16" and (single := self.single(arg)):
                    return single if level <= 6 or single.startswith("T.") else f"({single})"
                if self.dialect.bytes and d in EIGHT and arg.dtype != d:
                    return self.to_byte(arg, d)
                if self.dialect.bytes and arg.dtype in EIGHT and d != arg.dtype:
                    single = self.ours(f"from_{arg.dtype}", arg)
                    return single if d == "f32" else f"T.cast({single}, \"{self.spelled[d]}\")"
                if d == "e4m3" and arg.dtype in _FLOATS:
                    return f"T.cast({self.eight_bits(arg)}, \"{self.spelled[d]}\")"
                return f"T.cast({self.expr(_through(arg, d))}, \"{self.spelled[d]}\")"
            case Op(name="add" | "sub" | "mul" | "neg" | "abs" as n, args=args, dtype="i8" | "u8" as d):
                return f'T.cast({self.expr(Op(n, tuple(map(_word, args)), "i32"))}, "{self.spelled[d]}")'
            case Op(name="neg", args=(x,)):
                return f"(-{self.expr(x, 8)})"
            case Op(name="abs", args=(x,)):
                return f"T.max({self.expr(x)}, -{self.expr(x, 8)})" if x.dtype in ("f32", "f16") else f"T.abs({self.expr(x)})"
            case Op(name="select", args=(c, x, y)):
                return f"T.if_then_else({self.expr(c)}, {self.typed(x, e.dtype)}, {self.typed(y, e.dtype)})"
            case Op(name="max" | "min" as n, args=(x, y)) if e.dtype in _FLOATS and e.dtype != "f64":
                single = self.ours(f"{n}_nan", widened(x), widened(y))
                return single if e.dtype == "f32" else f'T.cast({single}, "{self.spelled[e.dtype]}")'
            case Op(name="exp2", args=(x,), dtype="f32") if not self.kernel.exact:
                return self.ours("exp2_approx", x)
            case Op(name="tanh", args=(x,), dtype="f32") if self.behind and computed_half(x):
                return self.ours("tanh_approx", x)
            case Op(name="add", args=(Const(value=0.5), Op(name="mul", args=(Op(name="erf", args=(x,)), Const(value=0.5)))),
                    dtype="f32") if self.behind:
                return self.ours("normal_share", x)
            case Op(name="sub", dtype="f32") if self.near and (found := tangent(e, self.flat)):
                x, k = found
                return self.ours("tanh_approx", x if abs(k - 1.0) < 1e-9 else Op("mul", (x, Const(k, "f32")), "f32"))
            case Op(name="div", args=(x, Const(value=c)), dtype="f16" | "bf16" as d) if (parts := self.parts(d, c)):
                single = self.ours("quotient", Cast(x, "f32"), *(Const(p, "f32") for p in parts))
                if self.pairs is not None and self.pairs.on(x):
                    return self.pairs.keep(e, single, f'T.cast({self.pairs.here}, "{self.spelled[d]}")')
                return f'T.cast({single}, "{self.spelled[d]}")'
            case Op(name="div", args=(x, y), dtype="f32" | "f16" | "bf16" as d) if self.divides and by_row(x, y):
                single = self.ours("divided", *(a if d == "f32" else Cast(a, "f32") for a in (x, y)))
                return single if d == "f32" else f'T.cast({single}, "{self.spelled[d]}")'
            case Op(name="div", args=(x, Op() as y), dtype="f32") if self.kernel.exact != "all" and _at_least_one(y):
                text = f"{self.expr(x, 6)} * {self.reciprocal(y)}"
                return f"({text})" if level > 6 else text
            case Op(name=n, args=args, dtype="f32" | "f16" | "bf16" as d) if n in self.dialect.functions:
                return self.by_name(self.dialect.functions[n], d, args)
            case Op(name="sub_rn", args=args):
                return self.ours("sub_rn", *args)
            case Op(name="rsqrt", args=(x,), dtype="f32") if self.many and self.near:
                return self.ours("rsqrt_approx", x)
            case Op(name="rsqrt", args=(x,), dtype="f32"):
                return f"T.ieee_frsqrt({self.expr(x)})"
            case Op(name=n, args=(x, y)) if n in LEVEL and n not in _FUNCTIONS:
                mine, reckoned = LEVEL[n], self.reckoned
                self.reckoned = reckoned or (self.valued and e.dtype == "i64" and n in ("add", "sub", "mul"))
                text = f"{self.of(e, x, mine)} {BINARY[n]} {self.of(e, y, mine + 1)}"
                self.reckoned = reckoned
                return f"({text})" if mine < level or (mine == 4 and level == 4) else text
            case Op(name=n, args=args) if n in _FUNCTIONS:
                return f"{_FUNCTIONS[n]}({', '.join(self.expr(a) for a in args)})"
        raise LoweringError("RF495", f"TileLang has no spelling for {e}")

    def of(self, e: Op, x: Expr, level: int) -> str:
        """An operand of arithmetic. Beside a bare number TileLang computes in float32, and rounds what it stores alone."""
        text = self.expr(x, level)
        return f'T.{self.spelled[e.dtype]}({text})' if isinstance(x, Const) and e.dtype in ("f16", "bf16") else text

    @property
    def near(self) -> bool:
        """May a tangent be the hardware's?"""
        stored = {p.dtype for p in self.kernel.params if p.out}
        return "tanh_approx" in self.dialect.prelude and near(bool(self.kernel.exact), stored)

    @property
    def behind(self) -> bool:
        """Is it the map behind a product with roles, where nothing hides instructions, as memory does elsewhere?"""
        return self.near and role_kernel(self.kernel)

    def parts(self, dtype: str, c: float) -> tuple[float, float] | None:
        """The reciprocal of a divisor, where a quotient of half precision is a product with it."""
        return reciprocal(dtype, float(c)) if "quotient" in self.dialect.prelude else None

    def single(self, e: Expr) -> str:
        """A number of bfloat16 as single precision has it; empty where it is no rounding of one."""
        match e:
            case Cast(arg=x) if x.dtype == "f32":
                return self.ours("rounded_bf16", x)
            case Op(name="add" | "sub" | "mul" as n, args=(x, y)):
                wide = tuple(Const(a.value, "f32") if isinstance(a, Const) else Cast(a, "f32") for a in (x, y))
                exact = n == "mul" and any(map(power_of_two, (x, y)))
                done = Op(n, wide, "f32")
                return self.expr(done) if exact else self.ours("rounded_bf16", done)
        return ""

    def by_name(self, name: str, dtype: str, args: tuple[Expr, ...]) -> str:
        """A call of C's function, in single precision, where the dialect's own spelling means a rougher one."""
        self.called |= {name} & set(self.dialect.prelude)
        wide = (a if a.dtype == "f32" else Cast(a, "f32") if not isinstance(a, Const) else Const(a.value, "f32") for a in args)
        text = f'T.call_extern("float32", "{name}", {", ".join(map(self.expr, wide))})'
        return text if dtype == "f32" else f'T.cast({text}, "{self.spelled[dtype]}")'

    def to_byte(self, e: Expr, dtype: str) -> str:
        """A number of 8 bits as its byte."""
        self.called.add(f"to_{dtype}")
        return f'T.call_extern("uint8", "to_{dtype}", {self.expr(e if e.dtype == "f32" else Cast(e, "f32"))})'

    def ours(self, name: str, *args: Expr) -> str:
        """A call of a function in the prelude."""
        self.called.add(name)
        return f'T.call_extern("float32", "{name}", {", ".join(map(self.expr, args))})'

    def reciprocal(self, e: Op) -> str:
        """Of a number and a power of two: what is lost of a tiny power is lost beside one, but not of a tiny reciprocal."""
        more, power = e.args
        name = "reciprocal_small" if self.kernel.exact else "reciprocal_approx"
        self.called.add(name)
        assert isinstance(power, Op)
        return f'T.call_extern("float32", "{name}", {self.expr(more, 5)} + {self.ours("exp2_approx", *power.args)})'

    def narrow(self, e: Expr) -> bool:
        """Is it of fewer bits than 64 and of data, of which sums and products may need more? Those of kernels' own do not."""
        return e.dtype != "i64" and any(isinstance(x, Load) and x.tensor not in self.numbers.spans for x in walk(e))

    def hidden(self, e: Expr, level: int = 0) -> str:
        """An index behind an operation through which TVM's simplifier of iterators does not see, and nobody simplifies."""
        return f"T.bitwise_or({self.expr(e)}, 0)" if indices_of(e) else self.expr(e, level)

    def eight_bits(self, e: Expr) -> str:
        """A value about to be rounded to e4m3: NaN beyond its range, as torch has it; the GPU's conversion saturates."""
        return self.ours("within_e4m3", e if e.dtype == "f32" else Cast(e, "f32"))

    def typed(self, e: Expr, dtype: str) -> str:
        """A branch of a select: a literal needs its element type spelled when it is not fp32 or an index."""
        if isinstance(e, Const) and dtype in EIGHT and self.dialect.bytes:
            return f"T.uint8({byte(e.value, dtype)})"
        if isinstance(e, Const) and dtype in ("f16", "bf16", *EIGHT):
            return f"T.cast({_const(e)}, \"{self.spelled[dtype]}\")"
        return self.expr(e)


def widened(e: Expr) -> Expr:
    """A number of single precision that is ``e`` where it is rounded as ``e`` is. Rounding keeps the order: of two numbers the
    greater, rounded, is the greater of the rounded ones, and the GPU's own instruction for halves drops NaN."""
    if e.dtype == "f32":
        return e
    match e:
        case Const(value=v, dtype=d):
            return Const(float(NUMPY_DTYPES[d].type(v)), "f32")
        case Op(name="max" | "min" as n, args=args):
            return Op(n, tuple(map(widened, args)), "f32")
        case Cast(arg=x) if x.dtype == "f32":
            return x
    return Cast(e, "f32")


def _singly(text: str) -> bool:
    """Does TileLang compute it element by element?"""
    return "T.call_extern" in text or "T.if_then_else" in text


def _word(e: Expr) -> Expr:
    """A number of 8 bits as C computes with it, whatever TileLang says; the result is to be cut to 8 bits again."""
    return Const(e.value, "i32") if isinstance(e, Const) else Cast(e, "i32")


def _at_least_one(e: Expr) -> bool:
    """``1 + exp2(x)``, the denominator of a sigmoid: neither zero nor denormal."""
    match e:
        case Op(name="add", args=(Const(value=v), Op(name="exp2"))):
            return v >= 1
    return False


def _through(e: Expr, dtype: str) -> Expr:
    """``e``, or what it is in between: CUTLASS's half types are made of no 64-bit integer, torch's by way of float32."""
    wide = dtype in ("f16", "bf16") and any(isinstance(x, Load) and x.dtype == e.dtype == "i64" for x in walk(e))
    return Cast(e, "f32") if wide else e


def _const(e: Const) -> str:
    if isinstance(e.value, bool) or e.dtype == "bool":
        return "True" if e.value else "False"
    if e.dtype in ("f64", "f32", "f16", "bf16", "e4m3", "e5m2"):
        v = float(e.value)
        kind = CUDA.dtypes["f32" if e.dtype not in ("f64", "f32") else e.dtype]
        if math.isinf(v):
            return f"{'-' if v < 0 else ''}T.infinity(\"{kind}\")"
        if math.isnan(v):
            return f"T.{kind}(float(\"nan\"))"
        return repr(v)
    return str(int(e.value))
