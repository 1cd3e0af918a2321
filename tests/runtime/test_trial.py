"""A kernel is tried against the torch code it stands for where it runs, and not used where it is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import redfuser
from redfuser.cli.check import check
from redfuser.runtime import trial
from redfuser.runtime.launcher import launcher

CPU = torch.device("cpu")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT).float() / 5.7
    return torch.softmax(scores.masked_fill(~keep, -1e4), -1).to(q.dtype) @ v


@pytest.fixture(scope="module")
def model() -> redfuser.runtime.model.CompiledModel:
    q, k, v = torch.randn(3, 2, 24, 32).half()
    return redfuser.compile(attention, (q, k, v, torch.rand(24, 24) < 0.8), target="cpu")


def test_a_right_kernel_passes_and_a_changed_one_does_not(model: redfuser.runtime.model.CompiledModel) -> None:
    ((name, spec),) = model.kernels.items()
    kernel = launcher(spec)
    kernel.prepare(CPU)
    text = model.reference_of(name)
    assert (text is not None and "masked_fill" in text) or "where" in str(text)
    unfused = trial.function(str(text))
    assert trial.failure(spec, kernel.tolerant, unfused, CPU) is None
    for wrong in (lambda *a: kernel.tolerant(*a) * 1.02, lambda *a: kernel.tolerant(a[1], a[0], *a[2:]),
                  lambda *a: kernel.tolerant(*a).roll(1, 0), lambda *a: torch.full_like(kernel.tolerant(*a), float("nan"))):
        assert trial.failure(spec, wrong, unfused, CPU)


def test_a_kernel_that_fails_gives_way_to_torch(model: redfuser.runtime.model.CompiledModel, monkeypatch: pytest.MonkeyPatch,
                                                tmp_path: Path) -> None:
    """As on a GPU, with a kernel that loses a factor."""
    ((name, spec),) = model.kernels.items()

    class Wrong:
        def __init__(self) -> None:
            self.spec = spec

        def tolerant(self, *tensors: torch.Tensor) -> torch.Tensor:
            return torch.ones(2, 24, 32, dtype=torch.float16)

    class Gpu:
        type = "cuda"

    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(trial, "_key", lambda *a: "0" * 64)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda d: "a GPU")
    found = trial.failure
    monkeypatch.setattr(trial, "failure", lambda s, k, u, d: found(s, k, u, CPU))
    with pytest.warns(RuntimeWarning, match="RF807"):
        trusted = trial.trusted(Wrong(), model.reference_of(name), Gpu())  # type: ignore[arg-type]
    assert "normal inputs" in trusted.why
    report = model.report.without({name: trusted.why})
    (cascade,) = report.cascades
    assert not cascade.fused and cascade.reason is not None and cascade.reason.code == "RF807"


def test_the_command_says_what_it_found(model: redfuser.runtime.model.CompiledModel, tmp_path: Path) -> None:
    path = tmp_path / "model.rf"
    model.save(path)
    assert redfuser.load(path).reference_of(*model.kernels) == model.reference_of(*model.kernels)
    done = CliRunner().invoke(check, [str(path)])
    assert done.exit_code == 0 and "right" in done.output
    graph = model._graph
    ((name, text),) = graph.references.items()
    try:
        model._graph = replace(graph, references={name: text.replace("5.7", "5.0")})
        model.save(path)
    finally:
        model._graph = graph
    done = CliRunner().invoke(check, [str(path), "--json"])
    assert done.exit_code == 4 and '"wrong"' in done.output
