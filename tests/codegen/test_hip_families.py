"""What gfx942 is given of the first small program of every family: the text in ``tilelang.rocm``'s spelling, golden. That it holds
is the lane's matter (`bench targets`, with every check); that TileLang and clang take it, docs/results' targets table's."""

from __future__ import annotations

from typing import Any

import pytest

from redfuser.bench.correctness.build import compiled
from tests.listed import all_programs
from workloads.correctness import Program

FIRST: dict[str, Program] = {}
for program in all_programs():
    FIRST.setdefault(program.family, program)


@pytest.mark.parametrize("family", sorted(FIRST))
def test_golden(family: str, golden: Any) -> None:
    done = compiled(FIRST[family], "gfx942", build=False, verify="0")
    made = {p.name: p for p in done.produced.values()}
    texts = [p.stages.get("source") or f"# {p.reason.code if p.reason else ''}\n" for p in made.values()]
    golden(f"kernels/gfx942/families/{family}.txt", "\n".join(texts) or "# torch has it\n")
