"""A kernel is tried against the torch code it stands for where it runs, and not used where it is wrong."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import redfuser
from redfuser import numerics, perturbed
from redfuser.cli.check import check
from redfuser.errors import ArtifactError
from redfuser.runtime import patience, trial
from redfuser.runtime.extents import FREE, Bounded, extents, fixed
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
    assert trial.outcome(spec, kernel.tolerant, unfused, CPU) == trial.Outcome("right")
    for wrong in (lambda *a: kernel.tolerant(*a) * 1.02, lambda *a: kernel.tolerant(a[1], a[0], *a[2:]),
                  lambda *a: kernel.tolerant(*a).roll(1, 0), lambda *a: torch.full_like(kernel.tolerant(*a), float("nan"))):
        assert trial.outcome(spec, wrong, unfused, CPU).verdict == "wrong"


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
    found = trial.outcome
    monkeypatch.setattr(trial, "outcome", lambda s, k, u, d, fixed: found(s, k, u, CPU, fixed))
    with pytest.warns(RuntimeWarning, match="RF807"):
        trusted = trial.trusted(Wrong(), model.reference_of(name), Gpu())  # type: ignore[arg-type]
    assert "normal inputs" in trusted.why
    report = model.report.without({name: trusted.why})
    (cascade,) = report.cascades
    assert not cascade.fused and cascade.reason is not None and cascade.reason.code == "RF807"


def test_a_kernel_that_does_not_end_is_used_by_nobody_after(model: redfuser.runtime.model.CompiledModel,
                                                              monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process that tried it is told; the next one uses torch's code, and tries nothing."""
    ((name, spec),) = model.kernels.items()
    kernel = launcher(spec)
    kernel.prepare(CPU)

    class Gpu:
        type = "cuda"

    def hang(device: Any, limit_s: float | None = None) -> None:
        raise patience.Hang(20.0)

    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(trial, "_key", lambda *a: "0" * 64)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda d: "a GPU")
    found = trial.outcome
    monkeypatch.setattr(trial, "outcome", lambda s, k, u, d, fixed: found(s, k, u, CPU, fixed))
    monkeypatch.setattr(patience, "ended", hang)
    with pytest.raises(ArtifactError, match="RF808"):
        trial.trusted(kernel, model.reference_of(name), Gpu())  # type: ignore[arg-type]
    path = tmp_path / "model.rf"
    model.save(path)
    command = "import sys; from redfuser.runtime import patience\n" + \
        "def hang(*a): raise patience.Hang(20.0)\npatience.ended = hang\n" + \
        "from redfuser.cli.check import check; check([sys.argv[1], '--json'])"
    done = subprocess.run([sys.executable, "-c", command, str(path)], capture_output=True, text=True, timeout=120)
    rows = json.loads(done.stdout)
    assert done.returncode == 4 and [r["verdict"] for r in rows] == ["wrong"] and "did not end" in rows[0]["why"]
    monkeypatch.setattr(trial, "outcome", None)
    with pytest.warns(RuntimeWarning, match="RF807.*did not end"):
        assert trial.trusted(kernel, model.reference_of(name), Gpu()).why  # type: ignore[arg-type]


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


def tried(function: Callable[..., Any], *args: torch.Tensor, wrong: Sequence[Callable[..., Any]] = ()) -> list[trial.Outcome]:
    """Trials of the one kernel of ``function`` built for the CPU, and of what each of ``wrong`` makes of its results."""
    made = redfuser.compile(function, args, target="cpu")
    ((name, spec),) = made.kernels.items()
    kernel = launcher(spec)
    kernel.prepare(CPU)
    unfused = trial.function(str(made.reference_of(name)))

    def changed(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: torch.Tensor) -> Any:
            got = kernel.tolerant(*tensors)
            return change(*(got if isinstance(got, tuple) else (got,)))

        return call

    return [trial.outcome(spec, call, unfused, CPU) for call in (kernel.tolerant, *map(changed, wrong))]


def top(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.topk(torch.softmax(x, -1), 3)
    return values, places


def test_nan_is_as_good_as_an_infinity_where_torch_has_no_number_and_nowhere_else() -> None:
    """A sum of exponentials that half precision has no number for; a kernel's is NaN, or the largest number."""
    compiled = redfuser.compile(lambda x: torch.logsumexp(x.float() * 4, -1).exp().half(), (torch.randn(8, 64).half(),), target="cpu")
    ((name, spec),) = compiled.kernels.items()
    kernel = launcher(spec)
    kernel.prepare(CPU)
    unfused = trial.function(str(compiled.reference_of(name)))
    large = torch.randn(8, 64).half() * 8
    assert kernel.tolerant(large).isinf().any()

    def instead(number: float, where: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x: torch.where(where(y := kernel.tolerant(x)), number, y).half()

    assert trial.outcome(spec, instead(float("nan"), torch.isinf), unfused, CPU) == trial.Outcome("right")
    for number, where in ((65504.0, torch.isinf), (float("inf"), lambda y: y > 100)):
        assert trial.outcome(spec, instead(number, where), unfused, CPU).verdict == "wrong"


def test_places_are_judged_by_what_they_are_places_of() -> None:
    """A kernel of right values and wrong places was let through."""
    right, *others = tried(top, torch.randn(8, 65), wrong=(
        lambda v, j: (v, (j + 1) % 65), lambda v, j: (v, torch.zeros_like(j)), lambda v, j: (v, j + 65)))
    assert right.verdict == "right" and len(others) == 3
    assert all(found.verdict == "wrong" and "misplaced" in found.why for found in others)


def test_a_table_of_positions_is_computed_in_the_torch_code() -> None:
    """Masks of positions, and the weights of a norm without weights, are constants of the model: those were not tried."""
    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i, j = torch.arange(24)[:, None], torch.arange(24)[None, :]
        return torch.softmax((q @ k.mT).masked_fill(j > i, -torch.inf), -1) @ v

    found = tried(causal, *torch.randn(3, 2, 24, 16), wrong=[lambda o: o * 1.01])
    assert [f.verdict for f in found] == ["right", "wrong"]
    assert tried(lambda x: torch.nn.functional.layer_norm(x, (64,)), torch.randn(8, 64))[0].verdict == "right"


def test_results_of_few_values_are_counted() -> None:
    """Of 8-bit floats and integers alike; the float64 results of the former are 8-bit floats themselves."""
    few = [torch.arange(4000).remainder(250).sub(120).to(torch.int8), torch.arange(4000).div(100).to(torch.float8_e4m3fn)]
    for x in few:
        other = x.clone()
        other[::100] = x[::100].double().mul(1.3).add(1).to(x.dtype)
        assert trial._check(x, x, x, None, []).passed and not trial._check(other, x, x, None, []).passed


def test_what_cannot_be_tried_is_said_and_not_remembered(model: redfuser.runtime.model.CompiledModel) -> None:
    ((_, spec),) = model.kernels.items()

    def lacking(device: torch.device, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise torch.OutOfMemoryError("too large")

    kernel = launcher(spec)
    assert trial.outcome(spec, kernel.tolerant, lacking, CPU) == trial.Outcome(
        "not tried", "the torch code does not run: OutOfMemoryError: too large")


def test_bad_luck_on_one_draw_is_no_defect(model: redfuser.runtime.model.CompiledModel) -> None:
    """Outside the rule on the first draw alone: the draws are held to it together. A defect recurs."""
    ((name, spec),) = model.kernels.items()
    kernel, unfused = launcher(spec), trial.function(str(model.reference_of(name)))
    kernel.prepare(CPU)
    first: list[int] = []

    def unlucky(*args: torch.Tensor) -> torch.Tensor:
        first.append(len(first))
        return unfused(CPU, *args)[0] * (1.0012 if len(first) == 1 else 1.0)

    got = trial.outcome(spec, unlucky, unfused, CPU)
    assert len(first) > len(trial.DRAWS) and got.verdict == "right", got
    assert trial.outcome(spec, lambda *a: unfused(CPU, *a)[0] * 1.0012, unfused, CPU).verdict == "wrong"


def test_wide_draws_are_no_wider_than_the_program_has_numbers() -> None:
    """Exponentials of 300 leave the range in a sum before it is scaled, and after it they do not: a step of a delta rule, whose
    decays are inputs of its kernel, was refused. What is wrong in range is still seen."""
    def step(s: torch.Tensor, k: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return (s * g.exp()[:, None, None] * (k / k.norm(dim=-1, keepdim=True))[..., None]).sum(1)

    shapes = ((2000, 8, 6), (2000, 8), (2000,))
    model = redfuser.compile(step, tuple(map(torch.randn, shapes)), target="cpu")
    ((name, spec),) = model.kernels.items()
    unfused = trial.function(str(model.reference_of(name)))
    beyond: list[bool] = []

    def deferred(*args: torch.Tensor, most: float = 1e9) -> torch.Tensor:
        """Divided behind the sum."""
        s, k, g = (next(x for x in args if x.numel() == math.prod(n)).reshape(n) for n in shapes)
        beyond.append(bool((g.isfinite() & (g > 69)).any()))
        return (s * g.clamp(max=most).exp()[:, None, None] * k[..., None]).sum(1) / k.norm(dim=-1, keepdim=True)

    assert trial.outcome(spec, deferred, unfused, CPU) == trial.Outcome("right") and not any(beyond)
    assert trial.outcome(spec, lambda *a: deferred(*a) * (1 + 2.0**-16), unfused, CPU).verdict == "wrong"
    assert trial.outcome(spec, lambda *a: deferred(*a, most=7), unfused, CPU).verdict == "wrong"


def test_digits_that_cancel_in_the_program_are_not_asked_of_a_kernel() -> None:
    """About a mean of weights of both signs, which may lie anywhere: a kernel that visits the row once is off by more than eager
    in every third draw, and by no more than eager is in others. Less than what sums are off by is still a defect."""
    def about(m: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        centre = (m[..., None] * x).sum(1) / m.sum(-1)[:, None]
        return (m * ((x - centre[:, None]) ** 2).sum(-1)).sum(-1)

    model = redfuser.compile(about, (torch.rand(32, 512), torch.randn(32, 512, 3)), target="cpu")
    ((name, spec),) = model.kernels.items()
    unfused = trial.function(str(model.reference_of(name)))

    def added(x: torch.Tensor) -> torch.Tensor:
        """In turn, as threads add up."""
        total = torch.zeros_like(x[:, :32])
        for part in x.split(32, 1):
            total = total + part
        return total.sum(1)

    def once(m: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = x - x[:, :1]
        first, second = added(m[..., None] * x), added(m * (x ** 2).sum(-1))
        return torch.where(added(m) == 0, torch.nan, second - (first * first).sum(-1) / added(m))

    assert trial.outcome(spec, once, unfused, CPU) == trial.Outcome("right")
    for wrong in (lambda m, x: once(m, x) * (1 + 2.0**-16), lambda m, x: once(m, x.bfloat16().float()),
                  lambda m, x: once(torch.cat([m[:, :-1], m[:, :1]], 1), x)):
        assert trial.outcome(spec, wrong, unfused, CPU).verdict == "wrong"


def test_what_a_sum_of_nothing_divides_is_asked_of_no_kernel() -> None:
    """Terms that cancel leave 0 or a rounding, as they are taken in order: an infinity or a huge number. What does not cancel is
    asked for as ever."""
    x = torch.randn(4096, 4, generator=torch.Generator().manual_seed(0)).round() / torch.tensor([3.0, 3.0, 3.0, 1.5])

    def program(_device: torch.device, x: torch.Tensor) -> torch.Tensor:
        return x / (x[:, :1] + x[:, 1:2] + (x[:, 2:3] + x[:, 3:]))

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x / (x[:, 3:] + x[:, :1] + x[:, 2:3] + x[:, 1:2])

    device = torch.device("cpu")
    theirs, truth = program(device, x), program(device, x.double())
    near = [t[0] for t in perturbed.moved(program, (device, x))]
    assert numerics.compare(kernel(x), theirs, truth).ours.misplaced > numerics.compare(kernel(x), theirs, truth).limit.misplaced
    assert trial._check(kernel(x), theirs, truth, None, near).passed
    lost = perturbed.digitless(truth, near)
    assert 0 < lost.sum() < lost.numel() / 8
    assert not trial._check(torch.where(lost | (x < 1), kernel(x), torch.inf), theirs, truth, None, near).passed
    assert not trial._check(torch.where(lost, kernel(x), kernel(x) * 1.001), theirs, truth, None, near).passed


def test_labels_are_drawn_as_far_as_they_reach() -> None:
    """They were all 0, so a kernel that ignored them passed."""
    def loss(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return -torch.log_softmax(x, -1).gather(-1, where[:, None])[:, 0]

    made = redfuser.compile(loss, (torch.randn(12, 33), torch.randint(33, (12,))), target="cpu")
    ((name, spec),) = made.kernels.items()
    unfused, kernel = trial.function(str(made.reference_of(name))), launcher(spec)
    kernel.prepare(CPU)
    assert trial.outcome(spec, kernel.tolerant, unfused, CPU) == trial.Outcome("right")
    order = [a.dtype for a in spec.args if a.role == "in"]
    ignoring = lambda *a: kernel.tolerant(*(torch.zeros_like(t) if d == "i64" else t for t, d in zip(a, order)))  # noqa: E731
    assert trial.outcome(spec, ignoring, unfused, CPU).verdict == "wrong"


@pytest.mark.parametrize(("function", "wanted"), [
    (lambda d, x, i: x.gather(1, torch.where(i < 7, i, 0)[:, None]), 9), (lambda d, x, i: x[:, i], 9), (lambda d, x, i: x[i], 5),
    (lambda d, x, i: x.gather(1, i[:, None] + 1), 1), (lambda d, x, i: x.index_select(0, i.view(-1)), 5),
    (lambda d, x, i: torch.nn.functional.embedding(i, x), 5), (lambda d, x, i: torch.where(i == 3, 0.0, x.sum()), FREE),
    (lambda d, x, i: x.index_add(0, i, x), 5), (lambda d, x, i: x.nonzero().float() + i.sum(), 1)])
def test_how_far_an_integer_reaches(function: Callable[..., Any], wanted: int) -> None:
    assert extents(function, [(torch.float32, (5, 9)), (torch.int64, (5,))])[1] == wanted


def test_what_decides_where_nan_goes_is_tried() -> None:
    """NaN is not above 0, nor is its opposite below or at it: what takes the one for the other is right on every number."""
    def above(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(x, -1)
        return (p * (1 - (y > 0).float())).sum(-1)

    made = redfuser.compile(above, (torch.randn(12, 33), torch.randn(12, 33)), target="cpu")
    ((name, spec),) = made.kernels.items()
    unfused, kernel = trial.function(str(made.reference_of(name))), launcher(spec)
    kernel.prepare(CPU)
    assert trial.outcome(spec, kernel.tolerant, unfused, CPU) == trial.Outcome("right")
    turned = lambda x, y: unfused(CPU, x, torch.where(y.isnan(), 1.0, y))[0]  # noqa: E731
    assert trial.outcome(spec, turned, unfused, CPU).verdict == "wrong"


@pytest.mark.parametrize("read", [
    lambda x, i: x.gather(1, i[:, None]), lambda x, i: x.index_select(0, i), lambda x, i: torch.nn.functional.embedding(i, x),
    lambda x, i: x.scatter(1, i[:, None], 0.0), lambda x, i: x.scatter_add(1, i[:, None], x), lambda x, i: x.index_add(0, i, x)])
def test_places_before_the_first_are_caught_before_a_gpu_sees_them(read: Callable[..., Any]) -> None:
    """``k - 1`` of a k that is drawn as 0: an assertion on the device, behind which nothing of the process runs there. Only an
    index in brackets counts from the end."""
    x, i = torch.randn(5, 9), torch.tensor([0, 1, -1, 2, 3])
    with Bounded():
        read(x, i.clamp(min=0))
        assert x[i].shape == x.shape and x.index_put((i,), x).shape == x.shape
        with pytest.raises(IndexError, match="places -1 to 3 of"):
            read(x, i)


def near(x: torch.Tensor) -> torch.Tensor:
    n, w, away = x.shape[-1], 7, 1000
    start = (torch.arange(n) - w // 2 + away).clamp(away, away + n - w)
    return torch.softmax(x[:, start[:, None] + torch.arange(w) - away], -1)


def test_places_that_arithmetic_made_are_the_models_own() -> None:
    """Zeros for the windows' starts are places outside the row: on a GPU an assertion, and the process's last."""
    model = redfuser.compile(near, (torch.randn(3, 60),), target="cpu")
    known = fixed(model.parts())
    assert [t.dtype for places in known.values() for t in places.values()] == [torch.int64]
    assert [(verdict, why) for _, verdict, why in trial.all_of(model, "cpu")] == [("right", "")]
    ((name, spec),) = model.kernels.items()
    unfused = trial.function(str(model.reference_of(name)))
    kernel = launcher(spec)
    kernel.prepare(CPU)
    found = trial.outcome(spec, kernel.tolerant, unfused, CPU)
    assert found.verdict == "not tried" and "IndexError: places" in found.why, found


def picked(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.softmax(t.gather(1, x.clamp(max=7.0).floor().long()), -1)


def test_places_that_floats_make_are_drawn_where_they_are_places() -> None:
    """No input is an integer, and numbers below 0 are places outside: on a GPU an assertion, and the process's last. Draws of
    what is positive judge the kernel, and what is wrong there is found."""
    model = redfuser.compile(picked, (torch.rand(3, 60), torch.randn(3, 8)), target="cpu")
    assert [(verdict, why) for _, verdict, why in trial.all_of(model, "cpu")] == [("right", "")]
    ((name, spec),) = model.kernels.items()
    unfused = trial.function(str(model.reference_of(name)))
    found = trial.outcome(spec, lambda x, t: unfused(CPU, x.ceil(), t)[0], unfused, CPU)
    assert found.verdict == "wrong" and "positive inputs" in found.why, found


@pytest.mark.parametrize("read", [lambda t, i: t[i], lambda t, i: t[:, i], lambda t, i: t.gather(0, i[:, None]),
                                  lambda t, i: t.index_select(1, i), lambda t, i: torch.nn.functional.embedding(i, t)])
def test_places_outside_are_refused_before_a_device_sees_them(read: Callable[..., torch.Tensor]) -> None:
    t = torch.randn(5, 5)
    with Bounded():
        assert read(t, torch.tensor([0, 4])).numel()
        for wrong in (5, -6):
            with pytest.raises(IndexError, match="places"):
                read(t, torch.tensor([0, wrong]))
