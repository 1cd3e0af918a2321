"""What holds of every use of a name in a tile program: it is defined, with the type and the dimensions it is used with, and
nothing is read before something is in it, nor what may only be written."""

from __future__ import annotations

from dataclasses import dataclass, field

from redfuser.acrf.expr import COMPARISONS, Cast, Const, Expr, Index, Load, Op, print_expr
from redfuser.tensorize.ir.nodes import TileKernel
from redfuser.tensorize.ir.parts import Buffer, Param, Slice

_LOGICAL = ("and", "or", "not")


@dataclass
class Uses:
    """What was found wrong with a kernel so far, and what is defined where the walk over it is."""

    kernel: TileKernel
    found: list[str] = field(default_factory=list)
    vars: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    """Buffers that something has been written to."""

    def __post_init__(self) -> None:
        self.homes = self.kernel.homes

    def say(self, what: str, where: object) -> None:
        self.found.append(f"{what} in {str(where).splitlines()[0].strip()}")

    # -- storage -------------------------------------------------------------------------------------------------------

    def shape(self, name: str, where: object) -> tuple[int, ...] | None:
        if name not in self.homes:
            self.say(f"no buffer or parameter {name}", where)
            return None
        return self.homes[name].shape

    def slice(self, s: Slice, where: object) -> tuple[int, ...] | None:
        """The sizes of a slice."""
        shape = self.shape(s.buffer, where)
        if shape is None or not s.dims:
            return shape
        if len(s.dims) != len(shape):
            self.say(f"{len(s.dims)} dimensions of {len(shape)}", where)
        for d in s.dims:
            self.index(d.start, where)
        return s.sizes

    def reads(self, name: str, where: object) -> None:
        home = self.homes.get(name)
        if isinstance(home, Buffer) and name not in self.full:
            self.say(f"{name} is read before it is written", where)
        if isinstance(home, Param) and home.out:
            self.say(f"the result {name} is read", where)

    def writes(self, name: str, where: object) -> None:
        home = self.homes.get(name)
        if isinstance(home, Param) and not home.out:
            self.say(f"the operand {name} is written", where)
        self.full.add(name)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def index(self, e: Expr, where: object) -> None:
        if self.expr(e, where) not in ("i64", "i32", ""):
            self.say(f"{print_expr(e)} is no index", where)

    def expr(self, e: Expr, where: object) -> str:
        """The type of an expression; empty where it has none that is known."""
        match e:
            case Const(dtype=d):
                return d
            case Index(axis=a):
                if a not in self.vars:
                    self.say(f"no variable {a}", where)
                return "i64"
            case Load(tensor=n, indices=indices, dtype=d):
                shape = self.shape(n, where)
                if shape is not None and (len(shape) != len(indices) or self.homes[n].dtype != d):
                    self.say(f"{n} has {len(shape)} dimensions of {self.homes[n].dtype}, read as {print_expr(e)} of {d}", where)
                for i in indices:
                    self.index(i, where)
                self.reads(n, where)
                return d
            case Cast(arg=x, dtype=d):
                self.expr(x, where)
                return d
            case Op():
                return self.op(e, where)
        self.say(f"{print_expr(e)} has no place in a tile program", where)
        return ""

    def op(self, e: Op, where: object) -> str:
        kinds = [self.expr(a, where) for a in e.args]
        if e.name == "select":
            if kinds[0] != "bool":
                self.say(f"{print_expr(e.args[0])} is no condition", where)
            kinds = kinds[1:]
        want = {"bool"} if e.name in _LOGICAL else set(kinds)
        if len(want) != 1 or set(kinds) - want:
            self.say(f"{e.name} of {' and '.join(kinds)}: {print_expr(e)}", where)
        if e.dtype != ("bool" if e.name in COMPARISONS or e.name in (*_LOGICAL, "isnan") else kinds[-1]):
            self.say(f"{print_expr(e)} called {e.dtype}", where)
        return e.dtype
