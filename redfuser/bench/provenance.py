"""Where a figure comes from: machine, GPU and its state, versions, commit."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from redfuser.autotune.device import here
from redfuser.doctor import installed
from redfuser.runtime.host import gpu_software


def machine(device: str) -> dict[str, Any]:
    """The facts that identify a machine for a figure; they are part of a row's key."""
    facts: dict[str, Any] = {"device": f"{here('cpu')}, {torch.get_num_threads()} threads", "driver": "", "commit": commit(),
                             "versions": {k: v for k, v in installed().items() if k in _MATTER}}
    if device.startswith("cuda"):
        facts["device"] = torch.cuda.get_device_name()
        facts["driver"] = _smi("driver_version")
        facts["versions"] |= gpu_software()
        facts["versions"]["cudnn"] = str(torch.backends.cudnn.version())
    return facts


_MATTER = ("python", "redfuser", "torch", "triton", "apache-tvm-ffi", "tilelang", "apache-tvm", "transformers")


def state() -> dict[str, str]:
    """Clock, power, temperature and throttling of the GPU now; empty without nvidia-smi."""
    fields = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active")
    answer = _smi(",".join(fields))
    return dict(zip(fields, (v.strip() for v in answer.split(",")), strict=False)) if answer else {}


def commit() -> str:
    """The commit of this source tree, with ``+`` when it has changes; empty outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    head = _run(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    if not head:
        return ""
    return head + ("+" if _run(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"]) else "")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _smi(query: str) -> str:
    answer = _run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    return answer.splitlines()[0] if answer else ""


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
