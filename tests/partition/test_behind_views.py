"""What lies between kernels: what one keeps to itself is not computed anew by torch for another that reads it behind a view, what
a library does to its own product stays with it, and nothing outside lies between two parts of one kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from redfuser import outer
from tests.partition.helpers import execute, flat, partitioned, source

W = torch.linspace(0.5, 1.5, 16)


def normed(x):
    """Per-head norms [b, l, h, d] as Qwen3 has them, and heads first."""
    x = x.unflatten(-1, (4, 16))
    return (W * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).transpose(1, 2)


def turned(x, c, s):
    a, b = x.chunk(2, -1)
    return x * c + torch.cat((-b, a), -1) * s


def rotary(q, k, v):
    """Maps read the transposed norms."""
    c, s = torch.linspace(0, 1, 24)[:, None].cos() * v[0, 0, 0], torch.linspace(0, 1, 24)[:, None].sin() * v[0, 0, 1]
    return turned(normed(q), c, s), turned(normed(k), c, s)


def attention(q, k, v):
    """A cascade, which is found first, reads them."""
    return F.scaled_dot_product_attention(normed(q), normed(k), v.unflatten(-1, (4, 16)).transpose(1, 2))


@pytest.mark.parametrize("f", [rotary, attention], ids=lambda f: f.__name__)
def test_what_a_kernel_keeps_to_itself_is_read_by_no_other(f):
    args = tuple(torch.randn(2, 24, 64) for _ in range(3))
    imported, p = partitioned(f, args)
    text = source(imported, p)
    assert sum("mean" in str(o.op) for r in p.regions for o in r.ops) and "mean" not in text and "rsqrt" not in text, text
    assert all(r.name.replace(".", "_") in text for r in p.parts), "a kernel that nothing reads"
    for got, want in zip(execute(imported, p, args), flat(f(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5)


class Residual(nn.Module):
    """A padded convolution in half precision with a time embedding and a group norm, as a UNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32)

    def forward(self, x, t):
        return F.silu(self.norm(self.conv(x) + t[:, :, None, None]))


def test_a_padded_convolution_keeps_its_rounding_and_leaves_its_bias_to_the_norm():
    """A library adds the bias in a kernel of its own, to what it has rounded."""
    model = Residual().half()
    imported, p = partitioned(model, (torch.randn(2, 32, 6, 6).half(), torch.randn(2, 32).half()))
    text = source(imported, p)
    assert "F.conv2d(x, p_conv_weight, padding=(1, 1))" in text and "float32" not in text
    assert " + " not in text, "the bias and the embedding are the norm's to add"


def test_a_convolutions_bias_is_part_of_the_map_behind_it():
    args = (torch.randn(2, 32, 6, 6).half(), torch.randn(32, 32, 3, 3).half(), torch.randn(32).half())
    imported, p = partitioned(lambda x, w, b: F.gelu(F.conv2d(x, w, b, padding=1)), args)
    text = source(imported, p)
    assert "F.conv2d(x, w, padding=(1, 1))" in text and "F.gelu" not in text and " + " not in text, text


@pytest.mark.parametrize("dtype, map_too, own", [(torch.float32, True, True), (torch.float32, False, False), (torch.float16, True, False)])
def test_a_bias_in_single_precision_belongs_to_what_reads_the_product(dtype, map_too, own):
    """cuBLAS has a slower kernel for it; where nothing else is to be done the library has it all the same, and in half precision."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Hardtanh() if map_too else nn.Flatten()).to(dtype)
    model = model if map_too else model[0]
    args = (torch.randn(32, 64, dtype=dtype),)
    imported, p = partitioned(model, args)
    text = source(imported, p)
    assert text.split("F.linear(")[1].split(")")[0].endswith("bias") is not own and len(p.parts) == map_too, text
    for got, want in zip(execute(imported, p, args), flat(model(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


class Gated(nn.Module):
    """A product times a gate, added to the row and normalised, as a DiT block has it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(512, 512)

    def forward(self, x, y, gate):
        x = x + gate[:, None] * self.out(y)
        return x, F.layer_norm(x, (512,))


def test_a_gate_behind_a_product_is_the_cascades():
    args = (torch.randn(2, 64, 512).half(), torch.randn(2, 64, 512).half(), torch.randn(2, 512).half())
    imported, p = partitioned(Gated().half(), args)
    (region,) = p.parts
    text = outer.emit(imported, p.parts, {region.name: "k"}).source
    assert len(region.outputs) == 2 and " * " not in text and text.count("F.") == 1, text


class GatedFeedForward(nn.Module):
    """A product, a residual, a norm, GEGLU and two products behind it, all narrow enough to be one kernel's."""

    def __init__(self) -> None:
        super().__init__()
        self.o, self.norm, self.up = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 512)
        self.down, self.out = nn.Linear(256, 64), nn.Linear(64, 64)

    def forward(self, x, a):
        x = x + self.o(a)
        h, gate = self.up(self.norm(x)).chunk(2, -1)
        return self.out(x + self.down(h * F.gelu(gate)))


def test_reductions_that_join_together_have_nothing_outside_between_them():
    """What is read beside the first product joins it; the gate between two of those did not."""
    model, args = GatedFeedForward(), (torch.randn(2, 36, 64), torch.randn(2, 36, 64))
    imported, p = partitioned(model, args)
    with torch.no_grad():
        want = model(*args)
    torch.testing.assert_close(execute(imported, p, args)[0], want, rtol=2e-4, atol=2e-5)


def twice(q, k, v):
    """One value is two results, in two orders of axes."""
    a = F.scaled_dot_product_attention(q, k, v)
    return a, a.transpose(1, 2)


def again(q, k, v):
    """A cascade's result, turned, is all that the next one reads."""
    a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    return F.scaled_dot_product_attention(a, a, a).transpose(1, 2)


@pytest.mark.parametrize(("f", "kernels", "results"), [(twice, 1, 2), (again, 2, 2)], ids=["twice", "again"])
def test_a_result_and_its_view_are_two_results_or_one(f, kernels, results):
    """In half precision the value is a rounding of its own, and both had its name: the second took the first one's place."""
    args = tuple(torch.randn(2, 3, 5, 16).bfloat16() for _ in range(3))
    imported, p = partitioned(f, args)
    text = source(imported, p)
    assert len(p.regions) == kernels and sum(len(r.outputs) for r in p.regions) == results and "F." not in text, text
    for got, want in zip(execute(imported, p, args), flat(f(*args)), strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=0.02, atol=0.02)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.less = nn.ConvTranspose2d(4, 8, 3, stride=2), nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x):
        return F.avg_pool2d(torch.tanh(self.conv(x) - self.less), 2, divisor_override=4).exp() * 2


def test_a_transposed_convolutions_bias_is_the_next_kernels():
    """cuDNN takes none; and what torch has allocated is no copy's to align."""
    model, args = Transposed().eval(), (torch.randn(2, 4, 9, 9),)
    imported, p = partitioned(model, args)
    text = source(imported, p)
    assert " + " not in text and "clone" not in text and text.count(".contiguous()") == 2, text
    for got, want in zip(execute(imported, p, args), flat(model(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
