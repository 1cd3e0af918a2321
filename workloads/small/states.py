"""One step of models with a state, at the sizes of a decoder's batch; a norm of time under a mask, a weight that is rounded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.correctness import states
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()
HEADS = (64, 16)
KEY = In((*HEADS, 64))
GATE = In(HEADS)

P(In((*HEADS, 64, 64)), KEY, KEY, KEY, GATE, GATE)(states.delta)
P(In((*HEADS, 64, 64)), KEY, KEY, GATE, GATE)(states.gated_delta)
P(In((*HEADS, 64, 64)), KEY, KEY, KEY, KEY)(states.transposed_delta)
P(In((*HEADS, 64, 64)), KEY, KEY, KEY, KEY)(states.normalised)
P(In((32, 16, 64, 64)), *(In((32, 16, 64)),) * 3, In((16, 64)), In((16, 64)))(states.time_mixed)
P(In((64, 64, 64, 16)), In((64, 64, 64)), In((64, 64)), In((64,)), In((64, 16)), In((64, 16)))(states.selective)
P(In((64, 2048, 16)), *(In((64, 2048)),) * 2, In((2048, 16)), *(In((64, 16)),) * 2, In((64, 2048)))(states.scanned)
P(In((32, 8, 128, 128)), *(In((32, 8, 128), "bf16"),) * 3, In((32, 8, 128)))(states.gated_linear)
P(In((32, 4, 256, 256)), *(In((32, 4, 256)),) * 4, In((32, 4)), In((32, 4)))(states.exponential_gates)
P(In((64, 1024, 512), "f16"), In((64, 1024), likely=0.7))(states.weighted_by_time)
P(In((2048, 4096), "bf16"), In((4096, 4096), "bf16", 0.02))(states.rounded_product)


@P(In((64, 24, 64, 128)), In((64, 24, 64)), In((64, 24)), In((24,)), In((64, 128)), In((64, 128)), In((64, 24, 64), "bf16"),
   In((1536,)))
def selective_and_norm(s: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, z: Tensor, w: Tensor
                       ) -> tuple[Tensor, Tensor]:
    dt = F.softplus(dt)
    s = s * torch.exp(dt * -a.exp())[..., None, None] + torch.einsum("bhp,bn->bhpn", x * dt[..., None], b)
    y = ((torch.einsum("bhpn,bn->bhp", s, c) + x) * F.silu(z.float())).flatten(1)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * w, s


@P(In((512, 40, 40, 32), "f16"), In((512, 40, 32), "f16"), In((512, 40, 40), likely=0.3))
def edge_messages(e: Tensor, q: Tensor, m: Tensor) -> Tensor:
    s = (e * q[:, :, None]).sum(-1).float().masked_fill(~m, -1e9)
    return (s.softmax(-1)[..., None] * e.float()).sum(2)
