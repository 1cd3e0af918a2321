"""Compiled models without their weights, so that a model of gigabytes travels to the measuring machine as megabytes.

Random weights can be drawn where they are needed: ``save_thin`` writes a compiled model whose constants that equal a
parameter of the original module are zeros (and compress to nothing), with the list of which constant is which parameter;
``load_thin`` fills them from the module as it stands on the measuring machine, which its baselines run too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from redfuser.errors import ArtifactError

SUFFIX = ".thin"


def thin_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def save_thin(compiled: torch.nn.Module, module: torch.nn.Module, path: Path) -> Path:
    """Write ``compiled`` (anything with ``save(path)`` whose constants are its buffers) without the weights of ``module``;
    returns the path, ``path`` plus ``.thin``. ``compiled`` loses those constants: do not call it afterwards."""
    owners = {_digest(t): name for name, t in _tensors(module).items()}
    filled = {}
    for name, tensor in dict(compiled.named_buffers()).items():
        owner = owners.get(_digest(tensor))
        if owner is not None and tensor.numel() > 1:
            filled[name] = owner
            setattr(compiled, name, torch.zeros_like(tensor))
    out = thin_path(path)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / path.name
        compiled.save(str(whole))
        with whole.open("rb") as source, gzip.open(out, "wb", compresslevel=3) as target:
            header = json.dumps(filled).encode()
            target.write(len(header).to_bytes(8, "little") + header)
            shutil.copyfileobj(source, target, 1 << 22)
    return out


def load_thin(path: Path, module: torch.nn.Module) -> Any:
    """Read what :func:`save_thin` wrote and fill its constants from ``module``. Raises ArtifactError RF601 for a damaged file
    and RF604 when the module lacks a parameter or has another shape for it."""
    import redfuser

    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "model.rf"
        try:
            with gzip.open(path, "rb") as source, whole.open("wb") as target:
                filled = json.loads(source.read(int.from_bytes(source.read(8), "little")))
                shutil.copyfileobj(source, target, 1 << 22)
        except (OSError, EOFError, ValueError) as e:
            raise ArtifactError("RF601", f"{path.name} is damaged", why=str(e), help="build it again") from e
        compiled = redfuser.load(str(whole))
    given, wanted = _tensors(module), dict(compiled.named_buffers())
    for name, owner in filled.items():
        if owner not in given or name not in wanted or given[owner].shape != wanted[name].shape:
            raise ArtifactError("RF604", f"{path.name} needs {owner}, which this model does not have in that shape",
                                help="build the artifact with the same configuration")
        compiled.own(name, given[owner].detach().to(wanted[name].dtype))
    return compiled


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _digest(t: torch.Tensor) -> str:
    data = t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(f"{t.dtype}{tuple(t.shape)}".encode() + bytes(memoryview(data))).hexdigest()
