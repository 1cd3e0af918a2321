"""What a user would run instead, as plug-ins: a name, and a function from a case to callables of the case's inputs.

A plug-in that cannot serve a case raises :class:`Missing` with the reason, which becomes a labelled row. Add one with
``@baseline("name")``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from redfuser.bench.thin import load_thin, thin_path
from workloads.case import Case

Variant = Callable[..., Any]


class Missing(Exception):
    """The baseline does not exist here, and why."""


Plugin = Callable[[Case, str, "Path | None"], "Variant | Mapping[str, Variant]"]
"""From a case, a device and a folder of artifacts to what is called; by their names where one plug-in has several."""
BASELINES: dict[str, Plugin] = {}


def baseline(name: str) -> Callable[[Plugin], Plugin]:
    def register(plugin: Plugin) -> Plugin:
        BASELINES[name] = plugin
        return plugin

    return register


def artifact_path(folder: Path, case: Case) -> Path:
    """Where ``bench build`` puts the compiled case, and ``bench run --artifacts`` looks for it."""
    return _artifact(folder, case.workload, case.name)


def _artifact(folder: Path, workload: str, name: str) -> Path:
    return folder / f"{workload}-{name}.rf"


def is_built(folder: Path, workload: str, name: str) -> bool:
    path = _artifact(folder, workload, name)
    return path.exists() or thin_path(path).exists()


def handwritten_folder(folder: Path, case: Case) -> Path:
    return folder / f"{case.workload}-{case.name}.handwritten"


# -- of any case -------------------------------------------------------------------------------------------------------


@baseline("eager")
def eager(case: Case, device: str, artifacts: Path | None) -> Variant:
    return case.build().to(device)


@baseline("inductor")
def inductor(case: Case, device: str, artifacts: Path | None) -> Variant:
    """torch.compile with its defaults; its compile time is the first call's."""
    torch._dynamo.reset()
    return torch.compile(case.build().to(device), dynamic=False)


@baseline("max-autotune")
def max_autotune(case: Case, device: str, artifacts: Path | None) -> Variant:
    """torch.compile that tries templates for products as well; without its own CUDA graphs, since calls are timed in ours."""
    torch._dynamo.reset()
    return torch.compile(case.build().to(device), dynamic=False, mode="max-autotune-no-cudagraphs")


# -- of attention ------------------------------------------------------------------------------------------------------


def _sdpa(backend_name: str, case: Case, device: str, artifacts: Path | None) -> Variant:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    a = case.attention
    if a is None:
        raise Missing("not an attention case")
    if not a.plain:
        raise Missing("scaled_dot_product_attention cannot say this mask or score")
    if backend_name == "CUDNN_ATTENTION" and not device.startswith("cuda"):
        raise Missing("needs a CUDA GPU")
    backend = getattr(SDPBackend, backend_name)
    grouped = a.kv_heads != a.heads

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=a.causal and q.shape[2] > 1, scale=a.scale,
                                                           enable_gqa=grouped)

    return call


for _name, _backend in {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}.items():
    baseline(_name)(partial(_sdpa, _backend))


@baseline("flex")
def flex(case: Case, device: str, artifacts: Path | None) -> Variant:
    """flex_attention, compiled; its block mask is built outside the timing."""
    return _flex(case, device, inside=False)


@baseline("flex+mask")
def flex_with_mask(case: Case, device: str, artifacts: Path | None) -> Variant:
    """flex_attention with the building of its block mask in every call, both compiled."""
    return _flex(case, device, inside=True)


def _flex(case: Case, device: str, inside: bool) -> Variant:
    a = case.attention
    if a is None:
        raise Missing("not an attention case")
    if not device.startswith("cuda"):
        raise Missing("needs a CUDA GPU")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q_length, kv_length = case.params["q"], case.params["kv"]
    offset = kv_length - q_length
    slopes = 2.0 ** (-8.0 * torch.arange(1, a.heads + 1, device=device) / a.heads)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if a.softcap:
            s = a.softcap * torch.tanh(s / a.softcap)
        return s + slopes[h] * (j - i - offset) if a.alibi else s

    def masking(document: torch.Tensor | None) -> Callable[..., Any]:
        def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
            if document is not None:
                return document[b, i] == document[b, j]
            seen = j <= i + offset
            if a.prefix:
                return seen | (j < a.prefix)
            return seen & (j > i + offset - a.window) if a.window else seen

        return mask

    def blocks(document: torch.Tensor | None = None) -> Any:
        batch = document.shape[0] if document is not None else None
        return create_block_mask(masking(document), batch, None, q_length, kv_length, device=device)

    masked = (a.causal and q_length > 1) or a.window or a.prefix or a.documents
    if inside and not masked:
        raise Missing("no mask to build")
    torch._dynamo.reset()
    compiled, building = torch.compile(flex_attention, dynamic=False), torch.compile(blocks, dynamic=False)
    modified = score if (a.softcap or a.alibi) else None
    grouped = a.kv_heads != a.heads
    built: dict[int, Any] = {}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *document: torch.Tensor) -> Any:
        block_mask = None
        if masked and inside:
            block_mask = building(*document)
        elif masked:
            key = document[0].data_ptr() if document else 0
            block_mask = built[key] if key in built else built.setdefault(key, building(*document))
        return compiled(q, k, v, score_mod=modified, block_mask=block_mask, scale=a.scale, enable_gqa=grouped)

    return call


@baseline("handwritten")
def handwritten(case: Case, device: str, artifacts: Path | None) -> Mapping[str, Variant]:
    """The hand-written TileLang kernels, each configuration a variant of its own; the table shows the best."""
    folder = handwritten_folder(artifacts, case) if artifacts else None
    if folder is None or not folder.is_dir():
        raise Missing("no pre-built kernels; redfuser bench build writes them")
    from redfuser.artifact import load_kernel
    from redfuser.runtime.launcher import launcher

    return {f"handwritten:{p.name}": launcher(load_kernel(p)).call for p in sorted(folder.iterdir()) if p.is_dir()}


# -- ours --------------------------------------------------------------------------------------------------------------


@baseline("redfuser")
def ours(case: Case, device: str, artifacts: Path | None) -> Variant:
    """The compiled case: loaded from the artifacts, or compiled here when there are none."""
    return _compiled(case, device, artifacts)


@baseline("redfuser+inductor")
def ours_under_inductor(case: Case, device: str, artifacts: Path | None) -> Variant:
    """The compiled case under torch.compile, which fuses the pointwise operators that are left between our kernels."""
    torch._dynamo.reset()
    return torch.compile(_compiled(case, device, artifacts), dynamic=False)


def _compiled(case: Case, device: str, artifacts: Path | None) -> Any:
    import redfuser

    if artifacts is None:
        target = "cuda" if device.startswith("cuda") else "cpu"
        return redfuser.compile(case.build().cpu(), case.inputs("cpu", 0), target=target, casts=case.casts).to(device)
    path = artifact_path(artifacts, case)
    if path.exists():
        return redfuser.load(str(path)).to(device)
    if thin_path(path).exists():
        return load_thin(thin_path(path), case.build()).to(device)
    raise Missing(f"no {path.name} among the artifacts; redfuser bench build writes it")
