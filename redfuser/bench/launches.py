"""What one call starts on a GPU, as the profiler saw it: kernels, copies and fills, by whose they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

LIBRARY = re.compile(r"gemm|gemv|cutlass|cublas|nvjet|xmma|cudnn|splitk|conv|flash|fmha|winograd|mma_", re.IGNORECASE)
"""Names of a library's products, convolutions and attention. Read where ours and Triton's are told apart already."""
WHAT = re.compile(r"\w*(?:[Kk]ernel(?:Impl)?|Functor|Copy|gather|copy|clamp)\w*")
SHELL = re.compile(r"^(?:void )?at::native::\w*elementwise_kernel<")
"""torch's shell around a pointwise operation, which stands among its template arguments."""


@dataclass(frozen=True, slots=True)
class Launches:
    """``count`` of one call; ``made``: of kernels that a compiler wrote (ours, or Triton's); ``library``: of a library's
    products and attention; ``rest``: the others by name, what torch runs one by one."""

    count: int
    made: int
    library: int
    rest: dict[str, int]


def count(call: Callable[..., Any], args: tuple[Any, ...]) -> Launches:
    """Launches of one call of a variant that has been called before."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call(*args)
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sorted_out(names, written(call))


def written(call: Any) -> frozenset[str]:
    """The functions of a compiled model's kernels."""
    kernels = getattr(call, "_kernels", {})
    return frozenset(launch.entry for spec in kernels.values() for launch in spec.launches)


def sorted_out(names: Iterable[str], ours: frozenset[str]) -> Launches:
    """Names of launches by whose they are."""
    made, library, rest = 0, 0, Counter[str]()
    for name in names:
        if name in ours or name.startswith("triton_"):
            made += 1
        elif LIBRARY.search(name):
            library += 1
        else:
            rest[named(name)] += 1
    return Launches(made + library + sum(rest.values()), made, library, dict(rest.most_common()))


def named(name: str) -> str:
    """``void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(...)`` --> ``GeluCUDAKernelImpl``."""
    inner = SHELL.sub("", name).replace("(anonymous namespace)::", "").replace("at::native::", "")
    found = [w for w in WHAT.findall(inner) if w != "gpu_kernel_impl_nocast"]
    return found[0] if found else name[:60]
