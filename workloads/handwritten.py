"""Hand-written TileLang attention, as a baseline: what a kernel author would write today, at its best of a few
configurations. Generated kernels are compared with it; nothing in the compiler reads it.

Q, K, V, O are [batch, heads, length, dim] fp16. One block computes ``bm`` query rows of one head; scores in base 2 with the
scale folded in; P goes from registers into the second matrix product; O leaves through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.artifact import ArgSpec

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Config:
    """bm, bn: rows of a query and a key tile. stages: tiles in flight. threads: of the consumers. specialised: whether
    TileLang may split the block into a producer and consumers."""

    bm: int
    bn: int
    stages: int
    threads: int
    specialised: bool = True

    @property
    def build_config(self) -> dict[str, object]:
        flags = {} if self.specialised else {"tl.disable_warp_specialized": True}
        return {"pass_configs": flags, "label": self.label}

    @property
    def label(self) -> str:
        return f"m{self.bm}n{self.bn}s{self.stages}t{self.threads}{'' if self.specialised else 'c'}"


CONFIGS = (
    Config(128, 128, 2, 256),
    Config(128, 64, 2, 256),
    Config(64, 64, 2, 128, specialised=False),
    Config(64, 128, 2, 128, specialised=False),
    Config(128, 128, 1, 256),
)
"""The few configurations of which the best one is the bar."""

_SOURCE = '''import tilelang.language as T

B, H, S, L, D = {b}, {h}, {s}, {l}, {d}
BM, BN, STAGES, THREADS = {bm}, {bn}, {stages}, {threads}
SCALE = {scale!r}


def make():
    @T.prim_func
    def main(Q: T.Tensor((B, H, S, D), "float16"), K: T.Tensor((B, H, L, D), "float16"),
             V: T.Tensor((B, H, L, D), "float16"), O: T.Tensor((B, H, S, D), "float16")):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=THREADS) as (bx, by, bz):
            q_tile = T.alloc_shared((BM, D), "float16")
            k_tile = T.alloc_shared((BN, D), "float16")
            v_tile = T.alloc_shared((BN, D), "float16")
            o_tile = T.alloc_shared((BM, D), "float16")
            s = T.alloc_fragment((BM, BN), "float32")
            p = T.alloc_fragment((BM, BN), "float16")
            o = T.alloc_fragment((BM, D), "float32")
            m = T.alloc_fragment((BM,), "float32")
            m_old = T.alloc_fragment((BM,), "float32")
            fix = T.alloc_fragment((BM,), "float32")
            part = T.alloc_fragment((BM,), "float32")
            t = T.alloc_fragment((BM,), "float32")
            T.copy(Q[bz, by, bx * BM:(bx + 1) * BM, :], q_tile)
            T.fill(o, 0)
            T.fill(t, 0)
            T.fill(m, -T.infinity("float32"))
            for k in T.Pipelined({stop}, num_stages=STAGES):
                T.copy(K[bz, by, k * BN:(k + 1) * BN, :], k_tile)
                {start}
                T.gemm(q_tile, k_tile, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(m, m_old)
                T.reduce_max(s, m, dim=1, clear=False)
                for i in T.Parallel(BM):
                    fix[i] = T.exp2(m_old[i] * SCALE - m[i] * SCALE)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.exp2(s[i, j] * SCALE - m[i] * SCALE)
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(BM):
                    t[i] = t[i] * fix[i] + part[i]
                T.copy(s, p)
                for i, j in T.Parallel(BM, D):
                    o[i, j] *= fix[i]
                T.copy(V[bz, by, k * BN:(k + 1) * BN, :], v_tile)
                T.gemm(p, v_tile, o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BM, D):
                o[i, j] /= t[i]
            T.copy(o, o_tile)
            T.copy(o_tile, O[bz, by, bx * BM:(bx + 1) * BM, :])

    return main
'''
_CAUSAL = """for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.if_then_else(bx * BM + i >= k * BN + j, 0, -T.infinity("float32"))"""


def attention_source(b: int, h: int, s: int, l: int, d: int, config: Config, causal: bool = False) -> str:
    """The text of one kernel. The key length must be a multiple of the key tile: this baseline masks no tail."""
    if l % config.bn:
        raise ValueError(f"{l} keys are not a multiple of the tile {config.bn}")
    return _SOURCE.format(b=b, h=h, s=s, l=l, d=d, bm=config.bm, bn=config.bn, stages=config.stages, threads=config.threads,
                          scale=LOG2_E / d**0.5, stop="T.ceildiv((bx + 1) * BM, BN)" if causal else "T.ceildiv(L, BN)",
                          start=_CAUSAL if causal else "T.clear(s)")


def attention_args(b: int, h: int, s: int, l: int, d: int) -> tuple[ArgSpec, ...]:
    """The kernel's tensors, in the order it is called."""
    return (ArgSpec("Q", "f16", (b, h, s, d), "in"), ArgSpec("K", "f16", (b, h, l, d), "in"),
            ArgSpec("V", "f16", (b, h, l, d), "in"), ArgSpec("O", "f16", (b, h, s, d), "out"))
