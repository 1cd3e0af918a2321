"""What holds of every tile program: names defined where they are used, types, scopes and sizes that agree, and no buffer
read before something is in it. A pass that breaks one of these is wrong whatever the program computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from redfuser.acrf.expr import FLOATS, Index
from redfuser.errors import InternalError
from redfuser.tensorize.ir.effects import every, loads, writes
from redfuser.tensorize.ir.flight import Arrive, Await, Drain, Fetch, Let, Send, Turn
from redfuser.tensorize.ir.nodes import (
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Parallel,
    ReduceTile,
    Role,
    Roles,
    ScanTile,
    Stop,
    TileKernel,
    TileProgram,
    TileStmt,
)
from redfuser.tensorize.ir.parts import LANES, RUN, SCANS, At, Buffer, Param, Slice
from redfuser.tensorize.ir.spans import broken
from redfuser.tensorize.ir.symbols import bound
from redfuser.tensorize.ir.tangents import HALF
from redfuser.tensorize.ir.uses import Uses

MATRIX = ("f16", "bf16", "e4m3", "e5m2", "f32", "i8")
"""Element types that a product reads."""


def verify(program: TileProgram) -> list[str]:
    """What is wrong with ``program``, as sentences that name the kernel and the statement; empty when nothing is. One with
    symbols is asked at both ends of their ranges."""
    found: list[str] = []
    if symbols := program.symbols:
        taken = {n for k in program.kernels for n in (*_names(k), *_variables(k.body))}
        found += [f"symbol {s}: another thing has this name" for s in symbols if s.name in taken]
        found += [f"{k.name}: symbols of its own" for k in program.kernels if k.symbols != symbols]
        for at in ({s.name: s.low for s in symbols}, {s.name: s.high for s in symbols}):
            found = found or verify(bound(program, at))
        return found
    sizes = {a.name: (a.dtype, prod(a.shape), a.role) for a in program.args}
    for k in program.kernels:
        found += [f"{k.name}: {what}" for what in verify_kernel(k)]
        if not 1 <= len(k.grid) <= 3:
            found.append(f"{k.name}: a launch of {len(k.grid)} grid variables")
        for p in k.params:
            if sizes.get(p.name, ("",))[:2] != (p.dtype, prod(p.shape)):
                found.append(f"{k.name}: {p} is no view of an argument")
            elif p.out and sizes[p.name][2] == "in":
                found.append(f"{k.name}: {p} is an input")
    found += broken(program)
    return found + [f"output {n}: no argument {a}" for n, a in program.outputs if a not in sizes]


def require(program: TileProgram, after: str) -> None:
    """Raises InternalError RF900 naming the pass (``after``) that left ``program`` ill-formed."""
    if found := verify(program):
        raise InternalError("RF900", f"after {after}: {found[0]}")


def verify_kernel(kernel: TileKernel) -> list[str]:
    """What is wrong with one kernel."""
    checker = _Checker(kernel)
    checker.kernel_head()
    checker.block(kernel.body)
    written = {n for s in every(kernel.body) for n in writes(s)}
    return checker.found + [f"nothing is written to {p.name}" for p in kernel.params if p.out and p.name not in written]


class _Checker(Uses):
    """The statements."""

    def kernel_head(self) -> None:
        k = self.kernel
        names = _names(k)
        if len(set(names)) != len(names):
            self.say("a name is given twice", k)
        if k.cluster > 1 and (k.grid[0][1] % k.cluster or not any(isinstance(s, Roles) for s in k.body)):
            self.say(f"clusters of {k.cluster}", k)
        self.vars = {v for v, _ in k.grid}
        for n, e in k.lets:
            self.index(e, f"let {n}")
            self.vars.add(n)

    # -- statements ----------------------------------------------------------------------------------------------------

    def block(self, body: Iterable[TileStmt]) -> None:
        for s in body:
            self.stmt(s)

    def stmt(self, s: TileStmt) -> None:
        match s:
            case Copy(src, dst) | Fetch(src, dst) | Send(src, dst):
                a, b = self.slice(src, s), self.slice(dst, s)
                if a is not None and b is not None and _bare(a) != _bare(b):
                    self.say(f"{list(a)} elements copied to {list(b)}", s)
                self.reads(src.buffer, s)
                self.writes(dst.buffer, s)
                if isinstance(s, Fetch):
                    self.at(s.at, s)
                    self.placed(src, "param", dst, "shared", s)
                elif isinstance(s, Send):
                    self.placed(src, "shared", dst, "param", s)
            case Gemm():
                self.gemm(s)
            case ReduceTile(op, src, dst, clear, lanes=lanes, nan=nan, at_once=many):
                a, b = self.shape(src, s), self.shape(dst, s)
                each = LANES if lanes else 1
                if op not in ("sum", "max", "min") or a is None or b is None or prod(a[:-1]) * each != prod(b):
                    self.say("a reduction over the last dimension", s)
                elif lanes and (len(a) != 2 or b[-1] != LANES or a[-1] % (LANES * RUN)):
                    self.say("a reduction by lane", s)
                elif nan and (op == "sum" or not {self.homes[n].dtype for n in (src, dst)} <= HALF):
                    self.say("a reduction that keeps NaN: a maximum or minimum of halves", s)
                elif many > 1 and (lanes or len(a) != 2 or a[0] % many):
                    self.say("a reduction of several rows at once", s)
                self.reads(src, s)
                if not clear:
                    self.reads(dst, s)
                self.writes(dst, s)
            case ScanTile(op, src, dst, carry, n):
                homes = [self.homes.get(n) for n in (src, dst, *((carry,) if carry else ()))]
                first, shapes = homes[0], [h.shape for h in homes if isinstance(h, Buffer) and h.scope == "shared"]
                if op not in SCANS or len(shapes) < len(homes) or len(shapes[0]) != 2 or n > shapes[0][1] or (
                        shapes[1] != shapes[0]) or any(shape != shapes[0][:1] for shape in shapes[2:]) or any(
                        h is not None and first is not None and h.dtype != first.dtype for h in homes):
                    self.say("a scan along the last dimension", s)
                for n in (src, *((carry,) if carry else ())):
                    self.reads(n, s)
                self.writes(dst, s)
            case Fill(buffer, value):
                if (home := self.homes.get(buffer)) is not None and (home.dtype in FLOATS) != (value.dtype in FLOATS):
                    self.say(f"{home.dtype} filled with a {value.dtype}", s)
                self.writes(buffer, s)
            case Parallel():
                self.parallel(s)
            case For(var, start, stop, body):
                self.index(start, s)
                self.index(stop, s)
                if var in self.vars:
                    self.say(f"{var} is a variable already", s)
                outside, self.vars = self.vars, {*self.vars, var}
                self.block(body)
                self.vars = outside
            case If(cond, body):
                if self.expr(cond, s) != "bool":
                    self.say("a condition that is no bool", s)
                before = set(self.full)
                self.block(body)
                self.full = before  # may not have run
            case Stop(cond):
                asked = {self.homes.get(n) for n in loads(cond)}
                if s is not self.kernel.body[0] or self.kernel.cluster > 1 or not all(isinstance(h, Param) for h in asked):
                    self.say("what is first of a block alone, and asks what it was given,", s)
                if self.expr(cond, s) != "bool":
                    self.say("a condition that is no bool", s)
            case Roles(roles):
                self.roles(roles, s)
            case Await(at, phase):
                self.at(at, s)
                self.index(phase, s)
            case Arrive(at):
                self.at(at, s)
            case Drain(left, done):
                if left < 0 or any(self.shape(n, s) is None for n in done):
                    self.say("what is drained", s)
            case Let(var, value):
                self.index(value, s)
                self.vars = {*self.vars, var}

    def roles(self, roles: tuple[Role, ...], where: TileStmt) -> None:
        """Warp groups of roles: those of the first are the kernel's threads, and a role fills what another reads."""
        if self.kernel.body[-1] is not where or not roles or roles[0].groups * 128 != self.kernel.threads:
            self.say("roles", where)
        copies = [s for s in every((where,)) if isinstance(s, Fetch)]
        arrivals = {(s.at.barrier, s.each) for s in every((where,)) if isinstance(s, Arrive)}
        if {s.at.barrier for s in copies} & {n for n, _ in arrivals}:
            self.say("a barrier of copies at which groups arrive", where)
        if len(arrivals) != len({n for n, _ in arrivals}):
            self.say("a barrier at which both one thread of a group arrives and each", where)
        if any(s.each and s.all for s in every((where,)) if isinstance(s, Arrive)):
            self.say("a barrier of all blocks at which each thread arrives", where)
        wide = {(s.at.barrier, s.all) for s in every((where,)) if isinstance(s, (Arrive, Fetch))}
        if len(wide) != len({n for n, _ in wide}) or (self.kernel.cluster == 1 and any(all for _, all in wide)):
            self.say("a barrier of all blocks", where)
        filled = {s.dst.buffer for s in every((where,)) if isinstance(s, Copy)} & {
            b.name for b in self.kernel.buffers if b.scope == "shared"}
        before, outside = {s.dst.buffer for s in copies} | filled | self.full, self.vars
        for role in roles:
            self.full, self.vars = set(before), outside
            self.block(role.body)
            if role.groups != 1 and any(isinstance(s, Fetch) for s in every(role.body)):
                self.say("one group alone starts copies, not each", role)
            turns = [s.take for s in every(role.body) if isinstance(s, Turn)]
            if sum(turns) * 2 != len(turns):
                self.say("turns taken and passed", role)

    def at(self, at: At, where: object) -> None:
        if at.barrier not in {b.name for b in self.kernel.barriers}:
            self.say(f"no barrier {at.barrier}", where)
        self.index(at.slot, where)

    def placed(self, src: Slice, of: str, dst: Slice, to: str, where: object) -> None:
        """A copy engine moves between global and shared memory, and converts nothing."""
        homes = [self.homes.get(x.buffer) for x in (src, dst)]
        found = ["param" if isinstance(h, Param) else h.scope for h in homes if h is not None]
        if found != [of, to] or len({h.dtype for h in homes if h is not None}) != 1:
            self.say(f"a copy engine from {' to '.join(found)}", where)

    def gemm(self, s: Gemm) -> None:
        a, b, c = self.slice(s.a, s), self.slice(s.b, s), self.shape(s.c, s)
        kinds = {self.homes[x.buffer].dtype for x in (s.a, s.b) if x.buffer in self.homes}
        if len(kinds) != 1 or not kinds <= set(MATRIX):
            self.say(f"operands of types {sorted(kinds)}", s)
        if any(x is not None and len(x) != 2 for x in (a, b, c)):
            self.say("a product of what is no matrix", s)
        elif a is not None and b is not None and c is not None:
            (m, k) = reversed(a) if s.transpose_a else a
            (j, n) = reversed(b) if s.transpose_b else b
            if (m, k, n) != (c[0], j, c[1]):
                self.say(f"a product of {m}x{k} and {j}x{n} into {list(c)}", s)
        if isinstance(home := self.homes.get(s.c), Buffer) and home.scope != "fragment":
            self.say(f"a product into {home.scope} memory", s)
        for x in (s.a, s.b):
            self.reads(x.buffer, s)
        if not s.clear:
            self.reads(s.c, s)
        self.writes(s.c, s)

    def parallel(self, s: Parallel) -> None:
        if len(s.vars) != len(s.extents) or self.vars & set(s.vars) or len(set(s.vars)) != len(s.vars):
            self.say("loop variables", s)
        extents = dict(zip(s.vars, s.extents, strict=False))
        self.vars |= set(s.vars)
        for a in s.body:
            shape = self.shape(a.target, a)
            if shape is not None and len(shape) != len(a.indices):
                self.say(f"{len(a.indices)} indices of {len(shape)}", a)
            for i, n in zip(a.indices, shape or (), strict=False):
                self.index(i, a)
                if isinstance(i, Index) and extents.get(i.axis, 0) > n and a.target in {b.name for b in self.kernel.buffers}:
                    self.say(f"{i.axis} leaves {a.target}", a)
            value, home = self.expr(a.expr, a), self.homes.get(a.target)
            if home is not None and value and (home.dtype == "bool") != (value == "bool"):
                self.say(f"a {value} stored as {home.dtype}", a)
            self.writes(a.target, a)
        self.vars -= set(s.vars)


def _names(k: TileKernel) -> list[str]:
    """What a kernel calls its parameters, its storage and its scalars."""
    return [*(p.name for p in k.params), *(b.name for b in k.buffers), *(b.name for b in k.barriers),
            *(v for v, _ in k.grid), *(n for n, _ in k.lets)]


def _variables(body: tuple[TileStmt, ...]) -> list[str]:
    """What its statements call theirs."""
    own = [(s.var,) if isinstance(s, (For, Let)) else s.vars for s in every(body) if isinstance(s, (For, Let, Parallel))]
    return [n for names in own for n in names]


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)
