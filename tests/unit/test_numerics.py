"""The numerics rule must pass what is right, fail what is wrong, and compute its reference in float64 throughout."""

from __future__ import annotations

import math

import pytest
import torch

from redfuser import numerics, perturbed
from redfuser.errors import InputError, NumericsError
from redfuser.testing import assert_within_rule, inputs


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def streamed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wrong: float = 0.0) -> torch.Tensor:
    """Attention over segments of 16 keys with float32 accumulators; ``wrong`` plants an error in the correction factor."""
    q32 = q.float() / math.sqrt(q.shape[-1])
    m = torch.full((*q.shape[:-1], 1), -math.inf)
    t, o = torch.zeros_like(m), torch.zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, k.shape[-2], 16):
        s = q32 @ k[..., start:start + 16, :].float().mT
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        factor = torch.exp((m - new) * (1 + wrong))
        p = torch.exp(s - new)
        t = t * factor + p.sum(-1, keepdim=True)
        o = o * factor + p @ v[..., start:start + 16, :].float()
        m = new
    return (o / t).to(q.dtype)


@pytest.mark.parametrize(("dtype", "planted"), [(torch.float16, 0.02), (torch.bfloat16, 0.2)])
def test_a_right_fusion_passes_and_a_planted_error_fails(dtype: torch.dtype, planted: float) -> None:
    args = inputs((2, 3, 32, 64), (2, 3, 96, 64), (2, 3, 96, 64), dtype=dtype, scale=1.5)
    checks = assert_within_rule(streamed, attention, args)
    assert checks[0].ratio <= 2
    with pytest.raises(NumericsError, match="RF801"):
        assert_within_rule(lambda *a: streamed(*a, wrong=planted), attention, args)


def test_a_tie_of_few_values_is_right_on_both_sides() -> None:
    """One rounding of the scale decides where 448 x / max x lies between two neighbours; elsewhere nothing does."""
    def quantised(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (x.float() / (x.float().abs().amax(-1, keepdim=True) / 448 * scale)).to(torch.float8_e4m3fn)

    x = inputs((33, 1000), dtype=torch.bfloat16)[0]
    truth, near = numerics.reference(quantised, (x,)), [y for y, in perturbed.moved(quantised, (x,))]
    by_product = (x.float() * (448 / x.float().abs().amax(-1, keepdim=True))).to(torch.float8_e4m3fn)
    assert not perturbed.astep(quantised(x), truth, near).any() and not perturbed.astep(by_product, truth, near).any()
    assert 5 < sum((y.double() != truth.double()) for y in near).count_nonzero() < 0.01 * x.numel()
    assert perturbed.astep(quantised(x, 1 + 1e-3), truth, near).sum() > 20


def test_ties_below_several_largest_elements_are_right_on_both_sides() -> None:
    """Integers: a row has its largest element many times, and moved at random one of them always goes up."""
    def quantised(x: torch.Tensor) -> torch.Tensor:
        h = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        return (h / (h.abs().amax(-1, keepdim=True) / 448)).to(torch.float8_e4m3fn)

    x = inputs((33, 1000), dtype=torch.bfloat16)[0].round()
    truth, near = numerics.reference(quantised, (x,)), [y for y, in perturbed.moved(quantised, (x,))]
    assert not perturbed.astep(quantised(x), truth, near).any()
    exact = 448 * x.double() / x.double().abs().amax(-1, keepdim=True)
    for side in (1 - 2.0**-23, 1 + 2.0**-23):
        assert not perturbed.astep((exact * side).to(torch.float8_e4m3fn), truth, near).any()


def test_ties_below_several_largest_products_are_right_on_both_sides() -> None:
    """Which of them is the largest no one factor tells: equal numbers move alike. A scale that is off by more stays wrong."""
    def quantised(x: torch.Tensor, w: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
        return (y / (y.abs().amax(-1, keepdim=True) / 448 * scale)).to(torch.float8_e4m3fn)

    g = torch.Generator().manual_seed(1)
    args = (torch.randn(2048, 512, generator=g).round(), torch.randn(512, generator=g).round())
    truth = numerics.reference(quantised, args)
    near = [y for y, in perturbed.moved(quantised, args, few=True)]
    assert perturbed.astep(quantised(*args), truth, near[:-2]).any() and not perturbed.astep(quantised(*args), truth, near).any()
    drawn = tuple(torch.randn(n, generator=g) for n in ((64, 512), (512,)))
    near = [y for y, in perturbed.moved(quantised, drawn, few=True)]
    assert perturbed.astep(quantised(*drawn, scale=1 + 1e-3), numerics.reference(quantised, drawn), near).sum() > 20


def test_ties_of_a_residual_are_right_on_both_sides_and_a_step_more_is_not() -> None:
    """A sum of integers with a weight each: equal elements that move alike do not tell of its ties either. A kernel that rounds
    to whole numbers by half a step more is wrong, of fp8 one that cuts off."""
    def normed(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = (x + r).float()
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * w.float()

    def quantised(*args: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        y = normed(*args)
        return (y / (y.abs().amax(-1, keepdim=True) / 448) * by).to(torch.float8_e4m3fn)

    def whole(*args: torch.Tensor, more: float = 0.0) -> torch.Tensor:
        y = normed(*args)
        return (y / (y.abs().amax(-1, keepdim=True) / 127) + more).round().to(torch.int8)

    g = torch.Generator().manual_seed(1)
    args = tuple(torch.randn(n, generator=g).round().bfloat16() for n in ((1024, 512), (1024, 512), (512,)))
    near = [y for y, in perturbed.moved(quantised, args, few=True)]
    for side in (1 - 2.0**-22, 1 + 2.0**-22):
        assert not perturbed.astep(quantised(*args, by=side), numerics.reference(quantised, args), near).any()
    assert perturbed.astep(quantised(*args, by=1 - 2.0**-6), numerics.reference(quantised, args), near).sum() > 20
    near = [y for y, in perturbed.moved(whole, args, few=True)]
    assert not perturbed.astep(whole(*args), numerics.reference(whole, args), near).any()
    assert perturbed.astep(whole(*args, more=0.5), numerics.reference(whole, args), near).sum() > 20


def test_the_reference_is_float64_whatever_the_program_asks_for() -> None:
    x, = inputs((4, 64), dtype=torch.float16)

    def program(x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(64, dtype=torch.float32)
        y = torch.softmax(x.float(), -1, dtype=torch.float32).to(torch.float16) * ones
        acc = torch.zeros(4, 64)
        acc[:, ::2] = y[:, ::2]
        return acc

    ref = numerics.reference(program, (x,))
    exact = torch.softmax(x.double(), -1)
    exact[:, 1::2] = 0
    assert ref.dtype == torch.float64 and torch.equal(ref, exact)


def test_fp8_stays_a_choice_among_few_values() -> None:
    x, = inputs((64,), dtype=torch.float32)
    ref = numerics.reference(lambda x: x.to(torch.float8_e4m3fn).float(), (x,))
    assert torch.equal(ref, x.double().to(torch.float8_e4m3fn).double())


def test_a_module_is_left_as_it_was() -> None:
    module = torch.nn.LayerNorm(32).half()
    x, = inputs((5, 32))
    ref = numerics.reference(module, (x,))
    assert ref.dtype == torch.float64 and module.weight.dtype == torch.float16
    assert torch.allclose(ref, torch.nn.functional.layer_norm(x.double(), (32,), eps=module.eps))


def test_misplaced_infinities_and_nan_fail() -> None:
    ref = torch.tensor([1.0, math.inf, math.nan], dtype=torch.float64)
    good = ref.half()
    assert numerics.compare(good, good, ref).passed
    for bad in (torch.tensor([1.0, math.inf, 0.0]), torch.tensor([1.0, -math.inf, math.nan]), torch.tensor([math.nan] * 3)):
        check = numerics.compare(bad.half(), good, ref)
        assert not check.passed and math.isinf(check.ratio)


def test_integers_have_no_tolerance() -> None:
    ref = torch.tensor([3, 1, 2])
    assert numerics.compare(ref, ref, ref.double()).passed
    assert not numerics.compare(torch.tensor([3, 2, 1]), ref, ref.double()).passed


def test_the_allowance_is_below_one_rounding() -> None:
    """With a perfect baseline, being wrong by one unit in the last place everywhere fails."""
    ref = torch.full((16,), 1.0, dtype=torch.float64)
    perfect = ref.half()
    assert not numerics.compare(perfect + torch.finfo(torch.float16).eps, perfect, ref).passed


def test_shapes_and_structure_are_compared() -> None:
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="shape"):
        numerics.error(x, torch.zeros(4, dtype=torch.float64))
    with pytest.raises(ValueError, match="results"):
        numerics.compare_all((x, x), (x,), (x,))


def test_the_grouped_product_of_experts_has_a_reference() -> None:
    x, w = inputs((10, 32), (3, 32, 16), dtype=torch.bfloat16)
    ends = torch.tensor([4, 4, 9], dtype=torch.int32)
    ref = numerics.reference(lambda x, w: torch.ops.aten._grouped_mm(x, w, ends), (x, w))
    assert ref.dtype == torch.float64 and not ref[9].any()
    assert torch.equal(ref[:4], x[:4].double() @ w[0].double()) and torch.equal(ref[4:9], x[4:9].double() @ w[2].double())


def route(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.topk(torch.softmax((x @ w.mT).float(), -1), 4)
    return values, places.to(torch.int32).unsqueeze(0)


def test_places_are_held_to_the_values_they_are_places_of() -> None:
    x, w = inputs((64, 32), (80, 32))
    twice = torch.cat([w[:40], w[:40]])  # every score is there twice

    def other(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(torch.softmax((x @ w.mT).float(), -1).flip(-1), 4)
        return values, (79 - places).to(torch.int32).unsqueeze(0)

    assert not torch.equal(route(x, twice)[1], other(x, twice)[1])
    for weights in (w, twice):
        values, places = numerics.check(other, route, (x, weights))
        assert values.passed and places.passed
    for wrong in (lambda v: (v + 1) % 80, lambda v: v[..., :1].expand(v.shape), lambda v: v + 80, lambda v: v - 80):
        checks = numerics.check(lambda x, w, f=wrong: (other(x, w)[0], f(other(x, w)[1])), route, (x, twice))
        assert [c.passed for c in checks] == [True, False]


@pytest.mark.parametrize("choose", [
    lambda x: x.argmax(-1), lambda x: x.argmin(0, keepdim=True), lambda x: x.argmax(), lambda x: x.max(1).indices,
    lambda x: x.sort(dim=0, descending=True)[1][:5].T, lambda x: x.argsort(-1), lambda x: x.kthvalue(3, 1)[1]])
def test_of_every_operator_that_chooses(choose: object) -> None:
    """Among equal values another place is as good, among different ones it is wrong."""
    x = torch.randint(0, 9, (24, 40), generator=torch.Generator().manual_seed(1)).float()
    plain, truth, chosen = numerics.references(choose, (x,))  # type: ignore[arg-type]
    ((own, exact),) = chosen  # type: ignore[misc]
    assert torch.equal(own.at(plain), exact.at(plain).float()) and own.rows.shape == plain.shape
    rows, place = exact.values[own.rows.flatten()], plain.flatten()
    if plain.numel() <= 40:  # one place a row: the last of the equal ones
        last = rows.shape[1] - 1 - (rows == rows.gather(1, place[:, None])).float().flip(-1).argmax(-1)
        assert numerics.compare(last.reshape(plain.shape), plain, truth, chosen=(own, exact)).passed
    different = (rows != rows.gather(1, place[:, None])).float().argmax(-1).reshape(plain.shape)
    assert not numerics.compare(different, plain, truth, chosen=(own, exact)).passed


def test_places_may_be_seen_in_another_shape() -> None:
    """As a grouped product of experts reads them: one after another."""
    def flat(x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, 2)[1].reshape(-1)

    assert all(c.passed for c in numerics.check(flat, flat, (torch.randn(6, 8),)))


def test_integers_that_are_no_places_have_no_tolerance() -> None:
    x, = inputs((16, 40))
    count = lambda x: (x > 0.5).sum(-1)  # noqa: E731
    assert numerics.check(count, count, (x,))[0].passed
    assert not numerics.check(lambda x: count(x) + (torch.arange(16) == 3), count, (x,))[0].passed


def test_the_least_float_of_the_scores_is_float64s_in_the_reference() -> None:
    """As XGLM masks: no type is named, and float32 has no such number."""
    def masked(x: torch.Tensor) -> torch.Tensor:
        return torch.max(x, torch.full((), torch.finfo(x.dtype).min, device=x.device)) + torch.scalar_tensor(torch.finfo(x.dtype).eps)

    x = torch.randn(4)
    assert torch.equal(numerics.reference(masked, (x,)), x.double() + torch.finfo(torch.float64).eps)


def test_a_model_that_does_not_run_in_float64_is_told_so() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise TypeError("float32 alone")
        return x

    with pytest.raises(InputError, match=r"(?s)RF516.*TypeError: float32 alone"):
        numerics.check(narrow, narrow, (torch.ones(2),))


def test_a_model_that_does_not_run_as_it_is_keeps_its_own_error() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        numerics.check(torch.abs, broken, (torch.ones(2),))


def test_results_without_digits_may_not_lie_anywhere() -> None:
    """Moved inputs give 1 where the truth is .1: nothing of it is decided, but a thousand is no such result, and no number is one
    only where few are."""
    truth = torch.full((64,), 0.1, dtype=torch.float64)
    near = [truth + 1, truth - 1]
    plain = (truth + 0.5).float()
    assert perturbed.digitless(truth, near).all()
    assert perturbed.decided(plain * 3, plain, truth, near).passed
    assert not perturbed.decided(torch.full((64,), 1000.0), plain, truth, near).passed
    some = plain.clone()
    some[:3] = float("nan")
    assert perturbed.decided(some, plain, truth, near).passed
    assert not perturbed.decided(torch.full((64,), float("nan")), plain, truth, near).passed
