"""Points of the grid shared out to torch's threads: the same bits on one thread as on several."""

from __future__ import annotations

import time

import pytest
import torch

from redfuser.acrf.state import Fused
from redfuser.runtime import launcher
from redfuser.strategies import cpu, realise
from redfuser.strategies.tir import shared_axis
from tests import fused_examples as examples


@pytest.mark.parametrize(("fused", "strategy"), [
    (examples.softmax(700, 90), "resident"), (examples.attention(1, 4, 2, 70, 90, 20), "single"),
    (examples.attention(1, 4, 2, 70, 90, 20, "f16"), "multi")])
def test_any_number_of_threads(fused: Fused, strategy: str) -> None:
    program = realise(fused, strategy, 3 if strategy == "multi" else 1)  # type: ignore[arg-type]
    assert "T.parallel(" in cpu.source(program)
    run = launcher(cpu.build(program))
    generator = torch.Generator().manual_seed(0)
    dtypes = {"f32": torch.float32, "f16": torch.float16}
    inputs = [torch.randn(t.shape, generator=generator).to(dtypes[t.dtype]) for t in fused.cascade.inputs]
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3, 7):
            torch.set_num_threads(n)
            results.append(run(*inputs))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], r) for r in results[1:])


def test_threads_are_torchs() -> None:
    """With TVM in the process as without it. Processor time of ten calls: how soon the other thread wakes is not ours."""
    run = launcher(cpu.build(realise(examples.softmax(1 << 14, 256), "resident")))
    x = torch.randn(1 << 14, 256)
    run(x)
    threads, others = torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            process, thread = time.process_time(), time.thread_time()
            for _ in range(10):
                run(x)
            own = time.thread_time() - thread
            others.append((time.process_time() - process - own) / own)
    finally:
        torch.set_num_threads(threads)
    assert others[0] < 0.25 < others[1]  # .000 (.10 on a busy machine) and .6 to 1.2


def test_what_is_shared_out() -> None:
    """An axis of enough points, and little work not at all; of symbolic extents it is one axis for all sizes."""
    def axis(fused: Fused) -> str | None:
        program = realise(fused, "single")
        return shared_axis(program, program.kernels[0])

    assert axis(examples.softmax(3, 40)) is None
    assert axis(examples.softmax(512, 4096)) == "i"
    assert axis(examples.attention(1, 12, 2, 90, 70, 20)) == axis(examples.attention(3, 12, 2, 90, 70, 20)) == "h"
