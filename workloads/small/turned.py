"""Results that lie across what they are made of."""

from __future__ import annotations

from workloads.correctness import turned
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()
SHAPE = (4096, 4096)

P(In(SHAPE, "bf16"))(turned.copied)
P(In(SHAPE))(turned.read_across)
P(In(SHAPE, "bf16"), In(SHAPE, "bf16"))(turned.with_another)
P(In((32, 1000, 513), "bf16"))(turned.narrowed)
P(In(SHAPE, "bf16"))(turned.quantised)
P(In((8, 512, 32, 32), "f16"), In((512,), "f16"))(turned.channels_last)
P(In((32, 512, 512, 3)), In((3,)), In((3,)))(turned.channels_first)
P(In((8, 1024, 12, 64), "f16"))(turned.heads)
