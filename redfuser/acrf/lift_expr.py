"""Lift TensorIR's expressions: nodes by their class, calls by the intrinsic they call."""

from __future__ import annotations

from typing import Any

from redfuser.acrf.expr import COMPARISONS, FLOATS, Cast, Const, Expr, Load, Op, children, walk
from redfuser.dtypes import INTS, SHORT, TABLE

_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "FloorDiv": "floordiv", "FloorMod": "mod", "Max": "max",
           "Min": "min", "EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge", "And": "and", "Or": "or"}
_CALLS = {"exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh",
          "sigmoid": "sigmoid", "erf": "erf", "floor": "floor", "ceil": "ceil", "nearbyint": "round", "sin": "sin",
          "cos": "cos", "fabs": "abs", "pow": "pow", "isnan": "isnan", "if_then_else": "select"}


_BITS = {"bitwise_and": "mod", "shift_left": "mul", "shift_right": "floordiv"}


class Unliftable(ValueError):
    """A construct that has no counterpart in the Expression IR; ``construct`` names it."""

    def __init__(self, construct: str) -> None:
        super().__init__(construct)
        self.construct = construct


def short_dtype(name: str) -> str:
    """``float16 -> f16``. Raises :class:`Unliftable` for a dtype outside the Expression IR."""
    if str(name) not in SHORT:
        raise Unliftable(f"dtype {name}")
    return SHORT[str(name)]


def static(extent: Any) -> int:
    """A static extent as an int; :class:`Unliftable` for a symbolic one."""
    if hasattr(extent, "value"):
        return int(extent.value)
    if isinstance(extent, int):
        return extent
    raise Unliftable(f"symbolic extent {extent}")


class Expressions:
    """vars: what a variable of a block stands for; lets: expressions of let-bound ones; names: of buffers."""

    def __init__(self) -> None:
        self.vars: dict[Any, Expr] = {}
        self.lets: dict[Any, Any] = {}
        self.names: dict[Any, str] = {}

    def name(self, buffer: Any) -> str:
        if buffer not in self.names:
            self.names[buffer] = f"v{len(self.names)}"
        return self.names[buffer]

    def expr(self, e: Any) -> Expr:
        kind = type(e).__name__
        if kind in _BINARY:
            name = _BINARY[kind]
            args = (self.expr(e.a), self.expr(e.b))
            dtype = "bool" if name in COMPARISONS or name in ("and", "or") else args[0].dtype
            if name == "div" and dtype not in FLOATS:
                raise Unliftable("integer division that truncates")
            return Op(name, args, dtype)
        return getattr(self, f"expr_{kind}", self.unknown)(e)

    def unknown(self, e: Any) -> Expr:
        raise Unliftable(f"expression {type(e).__name__}")

    def expr_Var(self, e: Any) -> Expr:
        if e in self.vars:
            return self.vars[e]
        if e in self.lets:
            return self.expr(self.lets[e])
        raise Unliftable(f"variable {e.name} (a symbolic extent)")

    expr_SizeVar = expr_Var

    def expr_IntImm(self, e: Any) -> Expr:
        dtype = short_dtype(e.dtype)
        return Const(bool(e.value) if dtype == "bool" else int(e.value), dtype)

    def expr_FloatImm(self, e: Any) -> Expr:
        return Const(float(e.value), short_dtype(e.dtype))

    def expr_Cast(self, e: Any) -> Expr:
        arg, dtype = self.expr(e.value), short_dtype(e.dtype)
        return arg if arg.dtype == dtype else Cast(arg, dtype)

    def expr_Not(self, e: Any) -> Expr:
        return Op("not", (self.expr(e.a),), "bool")

    def expr_Select(self, e: Any) -> Expr:
        args = (self.expr(e.condition), self.expr(e.true_value), self.expr(e.false_value))
        return Op("select", args, args[1].dtype)

    def expr_BufferLoad(self, e: Any) -> Expr:
        return Load(self.name(e.buffer), tuple(self.expr(i) for i in e.indices), short_dtype(e.buffer.dtype))

    def expr_Let(self, e: Any) -> Expr:
        self.lets[e.var] = e.value
        return self.expr(e.body)

    def expr_Call(self, e: Any) -> Expr:
        name = str(e.op.name).rsplit(".", 1)[-1]
        if name in ("bitwise_and", "bitwise_or", "bitwise_not") and str(e.dtype) == "bool":
            args = tuple(self.expr(a) for a in e.args)
            return Op({"bitwise_and": "and", "bitwise_or": "or", "bitwise_not": "not"}[name], args, "bool")
        if name in _BITS and len(e.args) == 2 and (whole := self._bits(name, *e.args)) is not None:
            return whole
        if name not in _CALLS:
            raise Unliftable(f"call to {name}")
        args = tuple(self.expr(a) for a in e.args)
        ours = _CALLS[name]
        dtype = "bool" if ours == "isnan" else args[1].dtype if ours == "select" else args[0].dtype
        return Op(ours, args, dtype)

    def _bits(self, name: str, x: Any, by: Any) -> Expr | None:
        """A shift by a number, or the last bits, as arithmetic with a power of two that the dtype holds."""
        arg, n = self.expr(x), getattr(by, "value", None)
        if arg.dtype not in INTS or not isinstance(n, int) or n < 0:
            return None
        power = n + 1 if name == "bitwise_and" else 1 << min(n, 64)
        if power & (power - 1) or power > TABLE[arg.dtype].largest:
            return None
        return Op(_BITS[name], (arg, Const(power, arg.dtype)), arg.dtype)


def data_dependent(e: Expr) -> bool:
    """True when a load's position depends on data (a gather)."""
    return any(isinstance(x, Load) and any(isinstance(y, Load) for i in x.indices for y in walk(i)) for x in walk(e)
               if children(x))
