"""Roles of warp groups in TileLang's manual primitives: barriers, copies that signal, products that are waited for.

TileLang must neither add barriers of its own, which would wait in one branch for threads of another, nor specialise a second
time: PASS_CONFIGS of such a kernel turn both off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from redfuser.acrf.expr import BYTES, Const, Expr, Index, Op
from redfuser.acrf.index import i64, iadd, ifloordiv, imul
from redfuser.tensorize.ir.effects import every
from redfuser.tensorize.ir.flight import Arrive, Await, Drain, Fetch, Flight, Let, Meet, Send, Sent, Turn
from redfuser.tensorize.ir.nodes import For, Gemm, ReduceTile, Role, Roles, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import LANES, RUN, At, Dim, Slice
from redfuser.tensorize.model.told import led

OPTIONS = {"tl.disable_thread_storage_sync": True, "tl.disable_warp_specialized": True}
ARRIVE = """#include <tl_templates/cuda/barrier.h>
static __device__ __forceinline__ void arrive_if(Barrier &bar, int on) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&bar));
  asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}"
               :: "r"(at), "r"(on) : "memory");
}"""
"""One arrival of a warp group, predicated in the assembly: a branch would part the products before it from those after."""
ARRIVE_ALL = """static __device__ __forceinline__ void arrive_all(Barrier &bar, int on, int block) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&bar));
  asm volatile("{.reg .pred p; .reg .b32 far; setp.ne.s32 p, %1, 0; @p mapa.shared::cluster.u32 far, %0, %2;"
               "@p mbarrier.arrive.shared::cluster.b64 _, [far];}" :: "r"(at), "r"(on), "r"(block) : "memory");
}"""
"""The same at the barrier of each block of a cluster, by one thread for each (``arrive.release.cluster`` is a third slower)."""
BY_LANE = "forward_fn=lambda i, c: (i // 16 * 32 + i % 8 * 4 + c, i % 16 // 8)"
"""The layout of a value for each row and each of the four threads that hold the row in a product's result: thread, and place in
it."""
AS_SUM = "forward_fn=lambda i, j: (i // 16 * 32 + i % 8 * 4 + j % 8 // 2, j // 8 * 4 + i % 16 // 8 * 2 + j % 2)"
"""The layout of a product's sum, 16 rows a warp: thread, and place in it."""
GROUP = 128
POLICIES = {"rows": "FullRow", "cols": "FullCol", "square": "Square"}
"""How warps share a product, as TileLang has it."""
SWIZZLE = "from tilelang.layout import make_swizzled_layout"


def role_kernel(kernel: TileKernel) -> bool:
    return any(isinstance(s, Roles) for s in kernel.body)


def arriving(kernel: TileKernel) -> frozenset[str]:
    """Tiles that a role brings to shared memory."""
    return frozenset(s.dst.buffer for s in every(kernel.body) if isinstance(s, Fetch))


class RolePrinter:
    """Lines of one kernel's roles. text: of an expression; part: of a slice; body: lines of what a role does."""

    def __init__(self, kernel: TileKernel, text: Callable[[Expr], str], part: Callable[[Slice], str],
                 body: Callable[[tuple[TileStmt, ...]], list[str]]) -> None:
        self.kernel, self.text, self.part, self.body = kernel, text, part, body
        self.groups = kernel.threads // GROUP
        self.own = kernel.threads
        """Threads of the role that is printed."""
        self.shapes = {b.name: b.shape for b in kernel.buffers}

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * sum(r.groups for s in self.kernel.body if isinstance(s, Roles) for r in s.roles)

    def head(self) -> list[str]:
        """Barriers, and the layouts of tiles that are sent."""
        signalled = {s.at.barrier for s in every(self.kernel.body) if isinstance(s, Fetch)}
        signalled |= {s.at.barrier for s in every(self.kernel.body) if isinstance(s, Arrive) and s.each}
        out = [f"{b.name} = T.alloc_barrier([{b.arrivals * (GROUP if b.name in signalled else 1)}] * {b.slots})"
               for b in self.kernel.barriers]
        lanes = {s.dst for s in every(self.kernel.body) if isinstance(s, ReduceTile) and s.lanes}
        told = {n: f"make_swizzled_layout({n})" for n in self.swizzled()}
        told |= {n: f"T.Fragment({self.shapes[n]}, {BY_LANE})" for n in sorted(lanes)}
        told |= {n: f"T.Fragment({self.shapes[n]}, {AS_SUM})" for n in sorted(led(self.kernel))}
        if told:
            out.append("T.annotate_layout({" + ", ".join(f"{n}: {layout}" for n, layout in told.items()) + "})")
        return [*out, "tx = T.get_thread_binding()", *self.together_all]

    @property
    def together_all(self) -> list[str]:
        """Blocks of a cluster wait for each other: before one reaches for another's barriers, and before one ends."""
        return ["T.cluster_sync()"] if self.kernel.cluster > 1 else []

    def swizzled(self) -> list[str]:
        """Tiles that are sent: without it four threads of a warp write to the same bank. Tiles that arrive for threads to read
        (masks, biases): without it the eight rows of a warp are read from the same bank, one after another."""
        stmts = list(every(self.kernel.body))
        sent = {s.src.buffer for s in stmts if isinstance(s, Send) and not s.src.dims and len(self.shapes[s.src.buffer]) == 2}
        multiplied = {x.buffer for s in stmts if isinstance(s, Gemm) for x in (s.a, s.b)}
        arriving = {s.dst.buffer for s in stmts if isinstance(s, Fetch) and sum(bool(d.size) for d in s.dst.dims) == 2}
        return sorted(n for n in sent | arriving - multiplied if self.shapes[n][-1] * BYTES[self.kernel.dtypes[n]] % 64 == 0)

    def staged(self, s: Slice) -> bool:
        """Shared memory whose new content products or the copy engine see, behind a fence alone."""
        seen = {x.buffer for k in every(self.kernel.body) if isinstance(k, (Gemm, Send)) for x in (
            (k.a, k.b) if isinstance(k, Gemm) else (k.src,))}
        return s.buffer in seen and any(b.name == s.buffer and b.scope == "shared" for b in self.kernel.buffers)

    def roles(self, s: Roles) -> list[str]:
        out: list[str] = []
        at = 0
        for i, role in enumerate(s.roles):
            self.own = role.groups * GROUP
            at += self.own
            head = "else:" if i == len(s.roles) - 1 else f"{'el' * bool(i)}if tx < {at}:"
            takes = role.registers * self.threads > sum(r.registers * r.groups * GROUP for r in s.roles)
            out += [f"{head}  # {role.name}", *("    " + line for line in self._role(role, takes))]
        return [*out, *self.together_all]

    @property
    def together(self) -> int:
        """The named barrier at which all groups meet: the turns have those from 1 on, then each group has its own to meet at,
        which is free for all of them only where none meets alone before the others come."""
        meets = [s.alone for s in every(self.kernel.body) if isinstance(s, Meet)]
        again = any({s.alone for s in every(loop.body) if isinstance(s, Meet)} == {True, False}
                    for loop in every(self.kernel.body) if isinstance(loop, For))
        others = [r for s in self.kernel.body if isinstance(s, Roles) for r in s.roles[1:]]
        if any(isinstance(s, Meet) for r in others for s in every(r.body)):
            return 1 + self.groups + self.threads // GROUP
        return 1 + self.groups * (2 if again or meets != sorted(meets) else 1)

    def _role(self, role: Role, takes: bool) -> list[str]:
        out = [f"T.{'inc' if takes else 'dec'}_max_nreg({role.registers})"] if role.registers else []
        if any(isinstance(s, Turn) for s in every(role.body)):  # the first group starts with the turn
            out += [f"if tx >= {(role.groups - 1) * GROUP}:", f"    T.named_barrier_arrive(1, {2 * GROUP})"]
        return out + self.body(role.body)

    def product(self, s: Gemm) -> list[str]:
        """A product that is only started."""
        flags = ", transpose_A=True" * s.transpose_a + ", transpose_B=True" * s.transpose_b + ", clear_accum=True" * s.clear
        return [f"T.wgmma_gemm({self.part(s.a)}, {self.part(s.b)}, {s.c}{flags}, "
                f"policy=T.GemmWarpPolicy.{POLICIES[s.policy]})"]

    def by_lane(self, s: ReduceTile) -> list[str]:
        """Every thread adds up its own."""
        combined = f"{s.dst}[i, c] + {s.src}[i, j]" if s.op == "sum" else f"T.{s.op}({s.dst}[i, c], {s.src}[i, j])"
        rows, columns = self.shapes[s.src]
        point = f"j % {LANES * RUN} // {RUN}"
        return [*([f"T.clear({s.dst})"] if s.clear else []), f"for i, j in T.Parallel({rows}, {columns}):",
                f"    {s.dst}[i, {point}] = {combined.replace('c]', point + ']')}"]

    def flight(self, s: Flight) -> list[str]:
        match s:
            case Fetch(src, dst, at, all):
                full, whose = self.at(at), f", cluster_mask={2 ** self.kernel.cluster - 1}" * all
                return [f"T.tma_copy({self.part(src)}, {self.part(dst)}, barrier={full}{whose})", f"T.barrier_arrive({full})"]
            case Arrive(at, all=True):
                return [f'T.call_extern("void", "arrive_all", {self.at(at)}, T.Cast("int32", tx % {GROUP} < '
                        f'{self.kernel.cluster}), tx % {GROUP})']
            case Await(at, phase):
                return [f"T.barrier_wait({self.at(at)}, {self._parity(phase)})"]
            case Arrive(at, each=True):
                return [f"T.barrier_arrive({self.at(at)})"]
            case Arrive(at):
                return [f'T.call_extern("void", "arrive_if", {self.at(at)}, T.Cast("int32", tx % {GROUP} == 0))']
            case Drain(left, done):
                return [f"T.wait_wgmma({left})", *(
                    f"T.warpgroup_fence_operand({n}, num_regs={prod(self.shapes[n]) // self.own})" for n in done)]
            case Turn(take):
                group = f"tx // {GROUP}"
                if take:
                    return [f"T.sync_threads(1 + {group}, {2 * GROUP})"]
                return [f"T.named_barrier_arrive(1 + ({group} + 1) % {self.groups}, {2 * GROUP})"]
            case Meet(alone=True):
                return [f"T.sync_threads({1 + self.groups} + tx // {GROUP}, {GROUP})"]
            case Meet():
                return [f"T.sync_threads({self.together}, {self.own})"]
            case Send(alone=True):
                return self._rows(s)
            case Send(src, dst):
                return [f"T.tma_copy({self.part(src)}, {self.part(dst)})"]
            case Sent(left):
                return [f"T.tma_store_wait({left})"]
            case Let(var, value):
                return [f"{var} = {self.text(value)}"]

    def _rows(self, s: Send) -> list[str]:
        """Each group sends its rows."""
        rows = self.shapes[s.src.buffer][0] // self.groups
        own = imul(ifloordiv(Index("tx"), GROUP), rows)
        at = next(i for i, d in enumerate(s.dst.dims) if d.size)
        dst = [replace(d, start=iadd(d.start, own), size=rows) if i == at else d for i, d in enumerate(s.dst.dims)]
        src = [Dim(own, rows), *(Dim(i64(0), n) for n in self.shapes[s.src.buffer][1:])]
        return [f"T.tma_copy({self.part(Slice(s.src.buffer, tuple(src)))}, {self.part(replace(s.dst, dims=tuple(dst)))}, "
                f"leader_scope_threads={GROUP})"]

    def at(self, at: At) -> str:
        return f"{at.barrier}[{self.text(at.slot)}]"

    def _parity(self, phase: Expr) -> str:
        match phase:
            case Const(value=v):
                return str(int(v) % 2)
            case Op(name="sub", args=(n, Const(value=1))):
                return self.text(Op("mod", (iadd(n, i64(1)), i64(2)), "i64"))
        return self.text(Op("mod", (phase, i64(2)), "i64"))


def options(kernels: tuple[TileKernel, ...]) -> dict[str, Any]:
    """TileLang's options for kernels with roles, empty where there are none."""
    return dict(OPTIONS) if any(map(role_kernel, kernels)) else {}
