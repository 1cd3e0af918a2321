"""Special functions of physics and statistics, and what a quotient leaves."""

from __future__ import annotations

from workloads.correctness import special
from workloads.small.spec import In, Programs

PROGRAMS = P = Programs()

P(In((4, 512, 3)), In((4, 512)))(special.ewald)
P(In((4096, 256, 2)), In((4096, 256)))(special.headings)
P(In((65536, 10)), In((65536, 10)))(special.dirichlet)
P(*[In((4096, 2000))] * 3)(special.counts)
P(In((4096, 2000)))(special.gaussianised)
P(In((64, 20000)), In((64, 20000)), In((64, 1)))(special.improvement)
P(In((65536, 8)), In((16,)))(special.coded)
