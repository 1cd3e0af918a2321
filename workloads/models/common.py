"""What the model cases share: weights drawn in a second, an attention without masks that hide nothing, and the case itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from workloads.case import DTYPES, Case, Inputs

NOISE = (1 << 20) + 7
"""Random numbers that weights are cut from: an odd stretch, so that no two rows of a weight begin alike."""


class Result(torch.nn.Module):
    """A transformers model as a function of one tensor to its last hidden state."""

    def __init__(self, model: torch.nn.Module, argument: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.argument, self.fixed = model, argument, fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(**{self.argument: x}, **self.fixed).last_hidden_state


# -- weights -----------------------------------------------------------------------------------------------------------


class Undrawn(TorchFunctionMode):
    """Random initialisation clears instead of drawing: most of a model's construction, for numbers that are drawn anew. It does
    clear: torch draws a truncated normal until every value is in its bounds, which memory as it is found may never be."""

    DRAWS = (torch.Tensor.normal_, torch.Tensor.uniform_, torch.nn.init.normal_, torch.nn.init.uniform_,
             torch.nn.init.kaiming_uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in self.DRAWS:
            return func(*args, **kwargs)
        drawn = args[0] if args else kwargs["tensor"]
        with torch.no_grad():
            return drawn.zero_()


def drawn(make: Callable[[], torch.nn.Module], dtype: str) -> torch.nn.Module:
    """The module in evaluation mode with weights of ``dtype`` fixed by a seed: matrices keep the size of what they are
    applied to, vectors are what the module says (ones of a norm, zeros of a bias) and a little noise."""
    with Undrawn():
        module = make().eval()
    noise = torch.randn(NOISE, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    convolutions = {id(m.weight) for m in module.modules() if isinstance(m, torch.nn.modules.conv._ConvNd)}
    start = 0
    for p in module.parameters():
        fan = prod(p.shape[1:]) if id(p) in convolutions else p.shape[-1]
        values = noise.roll(start).repeat(-(-p.numel() // NOISE))[:p.numel()].view(p.shape)
        p.data = values.mul_(fan ** -0.5) if p.dim() > 1 else (p.data + 0.02 * values).to(DTYPES[dtype])
        p.requires_grad_(False)
        start += 7919
    return module.to(DTYPES[dtype])


# -- attention ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def unmasked() -> str:
    """The name of an attention for transformers' models whose tokens all count: plain SDPA, causal where the module says so.
    Where a graph is traced or captured, transformers' own writes its mask out, and with it every baseline loses its fast
    attention kernel. Soft-capped scores, which SDPA cannot say, are written out as transformers writes them."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    def attend(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scaling: float | None = None,
               is_causal: bool | None = None, softcap: float | None = None, sliding_window: int | None = None,
               position_bias: torch.Tensor | None = None, **_: Any) -> tuple[torch.Tensor, None]:
        causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
        if softcap is not None:
            out = capped(q, k, v, scaling or q.shape[-1] ** -0.5, softcap, sliding_window)
        else:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=position_bias, scale=scaling, is_causal=causal,
                                                          enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("redfuser_unmasked", attend)
    AttentionMaskInterface.register("redfuser_unmasked", lambda *_, **__: None)
    return "redfuser_unmasked"


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, cap: float, window: int | None) -> torch.Tensor:
    """Causal attention of q [b, h, i, d] with scores ``cap * tanh(s / cap)``, seen ``window`` positions back."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = cap * torch.tanh(q @ k.mT * scale / cap)
    at = torch.arange(q.shape[2], device=q.device)
    seen = at[None, :] <= at[:, None]
    if window is not None and window < q.shape[2]:
        seen = seen & (at[None, :] > at[:, None] - window)
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), -1, dtype=torch.float32).to(q.dtype) @ v


# -- cases -------------------------------------------------------------------------------------------------------------


def model_case(name: str, dtype: str, batch: int, build: Callable[[], torch.nn.Module], inputs: Callable[[str, int], Inputs],
               flops: int, moved: int, params: dict[str, Any], sets: tuple[str, ...], batch_dims: tuple[int, ...] = (0,),
               out_dims: tuple[int, ...] = (0,)) -> Case:
    """A model case whose float64 sample is the first ``keep`` entries of the batch; the dims say where each argument and
    result carries the batch."""
    keep = min(batch, 2)

    def narrow(values: Any, dims: tuple[int, ...]) -> tuple[Any, ...]:
        values = values if isinstance(values, tuple) else (values,)
        return tuple(v.narrow(d, 0, keep) for v, d in zip(values, dims, strict=True))

    def pick(out: Any) -> Any:
        return narrow(out, out_dims)

    return Case("models", name, dtype, params, build=lru_cache(maxsize=1)(build), inputs=inputs, flops=flops, bytes=moved,
                sets=sets, sample=lambda args: narrow(args, batch_dims), pick=pick,
                sample_note="all" if keep == batch else f"batch 0:{keep} of {batch}")


def flops_of(rows: int, weights: int, pairs: int, width: int) -> int:
    """Operations of a transformer's contractions: ``rows`` tokens that meet ``weights`` each, and ``pairs`` of query and key
    over ``width`` columns of all heads, twice."""
    return 2 * rows * weights + 4 * pairs * width


def tokens_of(batch: int, length: int, vocabulary: int) -> Callable[[str, int], Inputs]:
    """Token ids [batch, length]."""
    def inputs(device: str, seed: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        return (torch.randint(0, vocabulary, (batch, length), generator=generator, device=device),)

    return inputs
