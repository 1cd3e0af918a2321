"""Kernels as ``torch.library`` operators, so that torch.compile, torch.export and CUDA graphs compose with them.

The dispatcher costs a few microseconds per call, so eager calls use :attr:`Kernel.call` and only tracers see the
operator; both run the same launch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import torch

from redfuser.artifact import KernelSpec
from redfuser.runtime.check import TORCH_DTYPE, check_meta, inputs_of, outputs_of
from redfuser.runtime.launcher import launcher

NAMESPACE = "redfuser"

_TAGS = tuple(getattr(torch.Tag, tag) for tag in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, tag))

_registered: dict[str, Callable[..., Any]] = {}
_library: torch.library.Library | None = None
_lock = threading.Lock()


def op_name(spec: KernelSpec) -> str:
    """``<name>_<hash>``: the hash covers the launch data and the binaries, so equal kernels share one operator."""
    digest = hashlib.sha256(json.dumps(spec.to_json(), sort_keys=True).encode("utf-8"))
    for binary in spec.binaries:
        digest.update(hashlib.sha256(binary).digest())
    return f"{re.sub(r'[^0-9a-zA-Z_]', '_', spec.name).lstrip('_0123456789') or 'kernel'}_{digest.hexdigest()[:12]}"


def schema_of(spec: KernelSpec) -> str:
    """The operator's schema: tensors in, fresh tensors out, nothing mutated."""
    inputs = ", ".join(f"Tensor x{i}" for i in range(len(inputs_of(spec))))
    count = len(outputs_of(spec))
    return f"({inputs}) -> " + ("Tensor" if count == 1 else "(" + ", ".join(["Tensor"] * count) + ")")


def register(spec: KernelSpec) -> Callable[..., Any]:
    """The operator ``torch.ops.redfuser.<name>_<hash>`` of a kernel, defined on first use; registering again returns
    the same one. The kernel itself is loaded when the operator first runs."""
    global _library
    name = op_name(spec)
    with _lock:
        found = _registered.get(name)
        if found is not None:
            return found
        if _library is None:
            _library = torch.library.Library(NAMESPACE, "FRAGMENT")
        _library.define(name + schema_of(spec), tags=_TAGS)
        _library.impl(name, _on_first_call(spec), "CPU" if spec.kind == "cpu" else "CUDA")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(spec), lib=_library)
        op: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default
        _registered[name] = op
        return op


def _on_first_call(spec: KernelSpec) -> Callable[..., Any]:
    @functools.cache
    def loaded() -> Callable[..., Any]:
        return launcher(spec).tolerant

    return lambda *inputs: loaded()(*inputs)


def _fake(spec: KernelSpec) -> Callable[..., Any]:
    outputs = [(arg.shape, TORCH_DTYPE[arg.dtype]) for arg in outputs_of(spec)]

    def fake(*inputs: torch.Tensor) -> Any:
        check_meta(spec, inputs)
        made = tuple(torch.empty(shape, dtype=dtype, device=inputs[0].device) for shape, dtype in outputs)
        return made[0] if len(made) == 1 else made

    return fake
