"""A compiled model as one file: a zip that loads with torch and tvm-ffi alone.

Members: ``manifest.json`` (format, versions, SHA-256 of every other member), ``graph.py`` (the outer graph),
``model.json`` (signature, constants' dtypes and shapes, which kernel serves which architecture, report, stages),
``constants/N`` (raw little-endian elements), ``kernels/N/...`` (see :func:`redfuser.artifact.to_files`). No pickle. The
same model gives the same bytes (what the report says of this compile alone is left out for that).

What is checked before anything is used: the zip, the format, that exactly the manifest's members are there, every hash,
and the graph's grammar (:mod:`redfuser.runtime.guard`). A hash guards against damage, not against an author: kernels are
native code, so load files from people whose wheels you would install.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from redfuser.artifact import KernelSpec, from_files, to_files
from redfuser.errors import ArtifactError
from redfuser.report import Report
from redfuser.runtime.host import cpu_architectures, gpu_architectures
from redfuser.runtime.model import CompiledModel, Graph
from redfuser.runtime.signature import Signature, torch_dtype

FORMAT = 1
"""Version of the file's layout; a reader refuses a higher one."""

MAX_MEMBERS = 1_000_000
_AGAIN = "copy the file again, or save the model again"


def save(model: CompiledModel, path: str | Path, others: Iterable[CompiledModel] = ()) -> None:
    """Write ``model`` atomically. ``others`` are the same model compiled for further architectures: the file then holds all
    their kernels, and loading picks. Raises :class:`ArtifactError` RF607 when the file cannot be written or the models
    differ in more than their kernels."""
    members = _members([model, *others])
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".redfuser-")
        try:
            with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, content in members.items():
                    data = _raw(content) if isinstance(content, torch.Tensor) else memoryview(content)
                    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                    info.external_attr = 0o644 << 16
                    with archive.open(info, "w", force_zip64=data.nbytes >= 1 << 31) as member:
                        member.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ArtifactError("RF607", f"cannot write {path}", why=str(error)) from error


def load(path: str | Path, *, arch: str | None = None, device: torch.device | str | None = None) -> CompiledModel:
    """Read what :func:`save` wrote. Constants arrive on ``device``: by default the CPU for CPU kernels, the current GPU
    for GPU kernels when there is one. ``arch`` picks kernels; by default those that this machine can run.

    Raises :class:`ArtifactError`: RF601 not such a file, or damaged; RF602 newer format; RF603 hash; RF604 members;
    RF605 no kernels for this machine; RF606 graph; RF607 unreadable; RF609 unknown type in the signature.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, arch, device)
    except FileNotFoundError as error:
        raise ArtifactError("RF607", f"no such file: {path}") from error
    except zipfile.BadZipFile as error:
        raise ArtifactError("RF601", f"{path} is not a RedFuser artifact, or is cut short", why=str(error),
                            help=_AGAIN) from error
    except (EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ArtifactError("RF607", f"{path} cannot be read", why=str(error), help=_AGAIN) from error


# -- writing -----------------------------------------------------------------------------------------------------------


def _members(models: list[CompiledModel]) -> dict[str, bytes | torch.Tensor]:
    """Every member by name; constants stay tensors, so that no second copy of the weights is held."""
    first = models[0]
    members: dict[str, bytes | torch.Tensor] = {}
    hashes: dict[str, str] = {}
    described = []
    blobs: dict[str, str] = {}  # content -> member: tied weights are stored once
    constants = _digests(first)
    for name, digest in constants.items():
        tensor = getattr(first, f"c_{name}")
        member = blobs.setdefault(digest, f"constants/{len(blobs)}")
        members[member], hashes[member] = tensor, digest
        described.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), member])
    variants: list[dict[str, Any]] = []
    folders = 0
    for model in models:
        if model._graph.inputs != first._graph.inputs or (model is not first and _digests(model) != constants):
            raise ArtifactError("RF607", "the models to save together are not the same model",
                                help="compile one model for several targets, and save those")
        kernels = {}
        for name, spec in model._kernels.items():
            kernels[name], folders = f"kernels/{folders}", folders + 1
            members.update({f"{kernels[name]}/{file}": data for file, data in to_files(spec).items()})
        graph = f"graph_{len(variants)}.py" if variants else "graph.py"
        members[graph] = model._graph.source.encode("utf-8")
        variants.append({"arch": _arch(model), "kernels": kernels, "graph": graph, "outputs": model._graph.outputs,
                         "names": dict(model._graph.kernels), "report": model.report.lasting().to_json(),
                         "stages": [[kernel, list(dumps.items())] for kernel, dumps in model._stages.items()]})
    members["model.json"] = _json({"inputs": list(first._graph.inputs), "signature": first._signature.to_json(),
                                   "constants": described, "variants": variants})
    for name, content in members.items():
        if not isinstance(content, torch.Tensor):
            hashes[name] = hashlib.sha256(content).hexdigest()
    manifest = {"format": FORMAT, "redfuser": _version(), "torch": str(torch.__version__), "sha256": hashes}
    return {"manifest.json": _json(manifest), **dict(sorted(members.items()))}


def _json(data: Any) -> bytes:
    return json.dumps(data, indent=1, sort_keys=True).encode("utf-8")


def _arch(model: CompiledModel) -> str:
    """The architecture of a model's kernels; ``any`` for a model without kernels."""
    found = {spec.arch for spec in model._kernels.values()}
    if len(found) > 1:
        raise ArtifactError("RF607", f"one model has kernels for {sorted(found)}")
    return found.pop() if found else "any"


def _version() -> str:
    try:
        return metadata.version("redfuser")
    except metadata.PackageNotFoundError:
        return "source"


def _digests(model: CompiledModel) -> dict[str, str]:
    """SHA-256 of every constant's elements, by name."""
    return {name: hashlib.sha256(_raw(getattr(model, f"c_{name}"))).hexdigest() for name in model._constants}


def _raw(tensor: torch.Tensor) -> memoryview:
    """The elements in order, without a copy where the tensor is on the CPU and contiguous."""
    if sys.byteorder != "little":
        raise ArtifactError("RF607", "artifacts are written on little-endian machines only")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy() if flat.numel() else b"")


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(archive: zipfile.ZipFile, arch: str | None, device: torch.device | str | None) -> CompiledModel:
    hashes = _manifest(archive)
    data = _parse(_member(archive, "model.json", hashes), "model.json")
    try:
        variant, where = _choose(data["variants"], arch, device)
        source = _member(archive, variant["graph"], hashes).decode("utf-8")
        graph = Graph(source, tuple(map(str, data["inputs"])), int(variant["outputs"]),
                      {str(k): str(v) for k, v in variant["names"].items()})
        signature = Signature.from_json(data["signature"])
        kernels = {str(name): _kernel(archive, str(folder), hashes) for name, folder in variant["kernels"].items()}
        constants = {}
        for name, dtype, shape, member in data["constants"]:
            constants[str(name)] = _tensor(_member(archive, member, hashes), dtype, shape, name).to(where)
        report = Report.from_json(variant["report"])
        stages = {str(kernel): {str(k): str(v) for k, v in dumps} for kernel, dumps in variant["stages"]}
        if set(graph.kernels.values()) - set(kernels) or not all(n.isidentifier() for n in constants):
            raise ValueError("the graph uses kernels that are not there")
    except (KeyError, TypeError, ValueError, AttributeError, UnicodeDecodeError) as error:
        raise ArtifactError("RF601", "the artifact's description is damaged", why=f"{type(error).__name__}: {error}",
                            help=_AGAIN) from error
    return CompiledModel(graph, constants, kernels, signature, report, stages)


def _manifest(archive: zipfile.ZipFile) -> dict[str, str]:
    """The manifest's hashes, after checking the format and that the zip holds exactly its members."""
    names = archive.namelist()
    if len(names) > MAX_MEMBERS or len(set(names)) != len(names):
        raise ArtifactError("RF604", "the artifact has members of the same name, or far too many")
    if "manifest.json" not in names:
        raise ArtifactError("RF601", "not a RedFuser artifact", why="it has no manifest.json")
    manifest = _parse(archive.read("manifest.json"), "manifest.json")
    try:
        version, hashes = int(manifest["format"]), dict(manifest["sha256"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError("RF601", "the artifact's manifest is damaged", why=str(error), help=_AGAIN) from error
    if version > FORMAT:
        raise ArtifactError("RF602", f"artifact of format {version}", why=f"this RedFuser reads up to {FORMAT}",
                            help="upgrade RedFuser, or save the model with this version")
    difference = set(names) ^ ({"manifest.json"} | set(hashes))
    if difference:
        raise ArtifactError("RF604", "the artifact's members are not those of its manifest",
                            why=", ".join(sorted(difference)[:5]), help=_AGAIN)
    return hashes


def _member(archive: zipfile.ZipFile, name: str, hashes: Mapping[str, str]) -> bytes:
    """A member by name (never as a path on this machine), held to its hash."""
    if name not in hashes:
        raise ArtifactError("RF604", f"{name} is missing from the artifact", help=_AGAIN)
    try:
        data = archive.read(name)
    except zipfile.BadZipFile as error:  # the zip's own checksum
        raise ArtifactError("RF603", f"{name} is damaged", why=str(error), help=_AGAIN) from error
    if hashlib.sha256(data).hexdigest() != hashes[name]:
        raise ArtifactError("RF603", f"{name} does not match its hash", help=_AGAIN)
    return data


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError("RF601", f"the artifact's {name} is damaged", why=str(error), help=_AGAIN) from error
    if not isinstance(found, dict):
        raise ArtifactError("RF601", f"the artifact's {name} is damaged", help=_AGAIN)
    return found


def _kernel(archive: zipfile.ZipFile, folder: str, hashes: Mapping[str, str]) -> KernelSpec:
    prefix = folder + "/"
    return from_files({name[len(prefix):]: _member(archive, name, hashes) for name in hashes if name.startswith(prefix)})


def _tensor(data: bytes, dtype: str, shape: list[int], name: str) -> torch.Tensor:
    kind, extents = torch_dtype(dtype), tuple(map(int, shape))
    if any(extent < 0 for extent in extents) or math.prod(extents) * kind.itemsize != len(data):
        raise ArtifactError("RF601", f"constant {name} has {len(data)} bytes, its shape says otherwise", help=_AGAIN)
    if not data:
        return torch.empty(extents, dtype=kind)
    out = torch.empty(extents, dtype=kind)  # torch's own allocation: aligned as kernels want it
    out.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return out


def _choose(variants: list[dict[str, Any]], arch: str | None,
            device: torch.device | str | None) -> tuple[dict[str, Any], torch.device]:
    """The variant to load and where its constants go: a GPU's when there is one and ``device`` does not say otherwise."""
    offered = [str(v["arch"]) for v in variants]
    kind = torch.device(device).type if device is not None else None
    gpu = gpu_architectures() if kind in (None, "cuda") else ()
    wanted = [arch] if arch is not None else [*gpu, *(cpu_architectures() if kind in (None, "cpu") else ())]
    for name in [*wanted, "any"]:
        if name in offered:
            here = device if device is not None else "cuda" if name in gpu else "cpu"
            return variants[offered.index(name)], torch.device(here)
    raise ArtifactError("RF605", f"the artifact holds kernels for {', '.join(offered)}",
                        why=f"this machine runs {', '.join(wanted)}" if wanted else "there is no GPU here",
                        help="compile the model for this machine; load(path, arch=...) opens it all the same, to look at")
