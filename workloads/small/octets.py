"""Results of one byte: quantisers, masks, pictures."""

from __future__ import annotations

from workloads.correctness import octets
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()
SHAPE = (2048, 5120)

for fn in (octets.whole_int8, octets.whole_fp8, octets.whole_fp8_times, octets.gelu_fp8, octets.relu_and_mask):
    P(In(SHAPE, "bf16"))(fn)
P(In(SHAPE, "bf16"), In(()))(octets.static_fp8)
P(In(SHAPE, "bf16"), In(()))(octets.static_int8)
P(In(SHAPE, "bf16"), In((5120,)), In((5120,)))(octets.static_uint8)
P(In(SHAPE, "bf16"), In(SHAPE, "bf16"))(octets.gate_e5m2)
P(In((8, 3, 512, 512)))(octets.pixels)
P(In((4096, 8192), "bf16"), In((4096, 8192), "bf16"), In((8192,), "bf16"))(octets.residual_norm_fp8)
