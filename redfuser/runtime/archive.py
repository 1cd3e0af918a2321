"""A compiled model as one file: a zip that loads with torch and tvm-ffi alone.

Members: ``manifest.json`` (format, versions, SHA-256 of every other member), ``graph.py`` (the outer graph),
``model.json`` (signature, constants' dtypes and shapes, which kernel serves which architecture, report, stages),
``constants/N`` (raw little-endian elements), ``kernels/N/...`` (see :func:`redfuser.artifact.to_files`). No pickle. The
same model gives the same bytes (what the report says of this compile alone is left out for that).

What is checked before anything is used: the zip (stored members only, so that nothing unpacks to more than the file), the
format, that exactly the manifest's members are there, every hash, the type of every value, the graph's grammar
(:mod:`redfuser.runtime.guard`), and that graph, signature, constants and kernels fit each other
(:mod:`redfuser.runtime.rehearsal`). Nothing in a file is a name that is resolved or imported. A hash guards against damage,
not against an author: kernels are native code, so load files from people whose wheels you would install.

Readers ignore keys of ``manifest.json`` and ``model.json`` that they do not know.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from redfuser import strict
from redfuser.artifact import KernelSpec, to_files
from redfuser.errors import ArtifactError
from redfuser.report import Report
from redfuser.runtime.check import TORCH_DTYPE, inputs_of, outputs_of
from redfuser.runtime.guard import check_graph, is_name
from redfuser.runtime.host import cpu_architectures, gpu_architectures
from redfuser.runtime.members import AGAIN, FORMAT, MAX_MEMBERS, Members, table
from redfuser.runtime.parts import Graph, Parts
from redfuser.runtime.rehearsal import rehearse
from redfuser.runtime.shapes import Shaped
from redfuser.runtime.signature import Signature


def write(path: str | Path, models: Sequence[Parts]) -> None:
    """Write one model atomically. ``models`` is that model compiled for one architecture or several: the file then holds all
    their kernels, and reading picks. Raises :class:`ArtifactError` RF607 when the file cannot be written or the models
    differ in more than their kernels."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArtifactError("RF607", f"not a path but a {type(path).__name__}", help="name the file to write")
    members = _members(models)
    path = Path(path)
    try:
        path = path.resolve()  # a link stays one, and what it names is written
        if path.exists() and not path.is_file():
            raise ArtifactError("RF607", f"cannot write {path}", why="it is a device, a pipe or a folder, and no file")
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
            os.chmod(temporary, 0o666 & ~_umask() if not path.exists() else stat.S_IMODE(path.stat().st_mode))
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:  # the latter for a path that no system has
        raise ArtifactError("RF607", f"cannot write {path}", why=str(error)) from error


def _umask() -> int:
    """What new files of this process are not for; there is no way to ask but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read(path: str | os.PathLike[str], *, arch: str | None = None,
         device: torch.device | str | None = None) -> Parts:
    """Read what :func:`write` wrote. Constants arrive on ``device``: by default the CPU for CPU kernels, the current GPU
    for GPU kernels when there is one. ``arch`` picks kernels; by default those that this machine can run.

    Raises :class:`ArtifactError`, whatever the file holds: RF601 not such a file, or damaged; RF602 newer format; RF603
    hash; RF604 members; RF605 no kernels for this machine; RF606 graph; RF607 unreadable; RF610 older format.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArtifactError("RF607", f"not a path but a {type(path).__name__}", help="name a file that compiled.save wrote")
    try:
        where = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArtifactError("RF607", f"there is no device {device!r}", why=str(error).strip().splitlines()[0]) from error
    with blaming(path), open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        return _read(Members(archive, os.fstat(file.fileno()).st_size), arch, where)


def architectures(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """What a file has kernels for. Raises as :func:`read`."""
    with blaming(path), open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        data = Members(archive, os.fstat(file.fileno()).st_size).table("model.json")
        return tuple(strict.text(table(v)["arch"]) for v in strict.items(data["variants"]))


def here(offered: Sequence[str]) -> str:
    """Which of a file's architectures loading takes on this machine; empty for none."""
    return next((name for name in (*gpu_architectures(), *cpu_architectures(), "any") if name in offered), "")


@contextmanager
def blaming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong in here is the file's doing, and said as :func:`read` says it."""
    try:
        yield
    except ArtifactError as error:  # of one member, or of the whole: which file it is in is known here
        if str(path) in str(error):
            raise
        where = f"{path}, {error.where}" if error.where else str(path)
        raise ArtifactError(error.code, error.what, where=where, why=error.why, help=error.help) from error
    except FileNotFoundError as error:
        raise ArtifactError("RF607", f"no such file: {path}") from error
    except (OSError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError) as error:
        raise ArtifactError("RF607", f"{path} cannot be read", why=str(error) or "out of memory", help=AGAIN) from error
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:  # the zip itself, its names included
        raise ArtifactError("RF601", f"{path} is not a RedFuser artifact, or is cut short", why=str(error),
                            help=AGAIN) from error
    except Exception as error:  # a file may hold anything: what the checks below do not name is damage all the same
        raise ArtifactError("RF601", f"{path} is damaged", why=f"{type(error).__name__}: {str(error)[:300]}",
                            help=AGAIN) from error


# -- writing -----------------------------------------------------------------------------------------------------------


def _members(models: Sequence[Parts]) -> dict[str, bytes | torch.Tensor]:
    """Every member by name; constants stay tensors, so that no second copy of the weights is held."""
    first = models[0]
    members: dict[str, bytes | torch.Tensor] = {}
    hashes: dict[str, str] = {}
    described = []
    blobs: dict[str, str] = {}  # content -> member: tied weights are stored once
    constants, signature = _digests(first), first.signature.to_json()
    for name, digest in constants.items():
        tensor = first.constants[name]
        member = blobs.setdefault(digest, f"constants/{len(blobs)}")
        members[member], hashes[member] = tensor, digest
        described.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), member])
    variants: list[dict[str, Any]] = []
    written: dict[str, Parts] = {}
    folders = 0
    for model in models:
        same = model is first or (model.signature.to_json() == signature and _digests(model) == constants)
        if not same or model.graph.inputs != first.graph.inputs:
            raise ArtifactError("RF607", "the models to save together are not the same model",
                                help="compile one model for several targets, and save those")
        arch = _arch(model)
        if (earlier := written.setdefault(arch, model)) is not model:
            if (arch != "any" or earlier.report.target == model.report.target) and _runs(earlier) != _runs(model):
                raise ArtifactError("RF607", f"two of the models to save together are for {arch}, and differ",
                                    why="loading picks by the architecture alone", help="save each in a file of its own")
            continue  # two targets for which nothing fused, or one twice
        kernels = {}
        for name, spec in model.kernels.items():
            kernels[name], folders = f"kernels/{folders}", folders + 1
            members.update({f"{kernels[name]}/{file}": data for file, data in to_files(spec).items()})
        graph = f"graph_{len(variants)}.py" if variants else "graph.py"
        members[graph] = model.graph.source.encode("utf-8")
        _writable(model)
        variants.append({"arch": arch, "kernels": kernels, "graph": graph, "outputs": model.graph.outputs,
                         "names": dict(model.graph.kernels),
                         "references": dict(model.graph.references), "report": model.report.lasting().to_json(),
                         "stages": [[kernel, list(dumps.items())] for kernel, dumps in model.stages.items()]})
    members["model.json"] = _json({"inputs": list(first.graph.inputs), "signature": signature,
                                   "constants": described, "variants": variants})
    for name, content in members.items():
        if not isinstance(content, torch.Tensor):
            hashes[name] = hashlib.sha256(content).hexdigest()
    manifest = {"format": FORMAT, "redfuser": _version(), "torch": str(torch.__version__), "sha256": hashes}
    return {"manifest.json": _json(manifest), **dict(sorted(members.items()))}


def _runs(model: Parts) -> tuple[Any, ...]:
    """What a call of the model runs."""
    return model.graph.source, dict(model.graph.kernels), {name: to_files(spec) for name, spec in model.kernels.items()}


def _writable(model: Parts) -> None:
    """What loading would refuse is refused before it is written."""
    try:
        check(model.graph, model.signature, model.constants, model.kernels)
    except ArtifactError as error:
        raise ArtifactError("RF607", "the model cannot be written to a file", where=error.where, why=error.why,
                            help="a file holds the operators of redfuser.runtime.operators; use the model in this process, or "
                            "leave the operator out of it") from error


def _json(data: Any) -> bytes:
    return json.dumps(data, indent=1, sort_keys=True).encode("utf-8")


def _arch(model: Parts) -> str:
    """The architecture of a model's kernels; ``any`` for a model without kernels."""
    found = {spec.arch for spec in model.kernels.values()}
    if len(found) > 1:
        raise ArtifactError("RF607", f"one model has kernels for {sorted(found)}")
    return found.pop() if found else "any"


def _version() -> str:
    try:
        return metadata.version("redfuser")
    except metadata.PackageNotFoundError:
        return "source"


def _digests(model: Parts) -> dict[str, str]:
    """SHA-256 of every constant's elements, by name."""
    return {name: hashlib.sha256(_raw(tensor)).hexdigest() for name, tensor in model.constants.items()}


def _raw(tensor: torch.Tensor) -> memoryview:
    """The elements in order, without a copy where the tensor is on the CPU and contiguous."""
    if sys.byteorder != "little":
        raise ArtifactError("RF607", "artifacts are written on little-endian machines only")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy() if flat.numel() else b"")


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(members: Members, arch: str | None, device: torch.device | None) -> Parts:
    data = members.table("model.json")
    try:
        variant, where = _choose([table(v) for v in strict.items(data["variants"])], arch, device)
        source = members.bytes(strict.text(variant["graph"])).decode("utf-8")
        graph = Graph(source, tuple(strict.text(n) for n in strict.items(data["inputs"])),
                      strict.whole(variant["outputs"], 0, MAX_MEMBERS), strict.texts(variant["names"]),
                      strict.texts(variant["references"]))
        signature = Signature.from_json(data["signature"])
        kernels = {name: members.kernel(folder) for name, folder in strict.texts(variant["kernels"]).items()}
        constants: dict[str, torch.Tensor] = {}
        for name, dtype, shape, member in strict.items(data["constants"]):
            if not is_name(name) or name in constants:
                raise ValueError(f"a constant named {str(name)[:40]!r}")
            constants[name] = members.constant(strict.text(member), dtype, shape)
        report = Report.from_json(variant["report"])
        stages = {strict.text(kernel): {strict.text(k): strict.text(v) for k, v in strict.items(dumps)}
                  for kernel, dumps in strict.items(variant["stages"])}
        _agree(variant, graph, signature, kernels)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError("RF601", "the artifact's description is damaged", why=f"{type(error).__name__}: {error}",
                            help=AGAIN) from error
    check(graph, signature, constants, kernels)
    return Parts(graph, {n: t.to(where) for n, t in constants.items()}, kernels, signature, report, stages)


def check(graph: Graph, signature: Signature, constants: Mapping[str, torch.Tensor],
          kernels: Mapping[str, KernelSpec]) -> None:
    """Raise :class:`ArtifactError` RF606 unless the graph is one that a file may hold, and fits what it is given."""
    tree = check_graph(graph.source, {*constants, *graph.kernels})
    rehearse(tree, graph.inputs, signature.shapes(), {n: Shaped(t.dtype, tuple(t.shape)) for n, t in constants.items()},
             {name: kernels[kernel] for name, kernel in graph.kernels.items()}, graph.outputs)
    for name, source in graph.references.items():
        if name not in kernels:
            raise ArtifactError("RF606", f"torch code for a kernel {name[:40]!r} that is not there")
        given = [Shaped(TORCH_DTYPE[a.dtype], tuple(a.shape)) for a in inputs_of(kernels[name])]
        text = check_graph(source, ())
        rehearse(text, [a.arg for a in text.body[0].args.args], given, {}, {}, len(outputs_of(kernels[name])))  # type: ignore[attr-defined]


def _agree(variant: Mapping[str, Any], graph: Graph, signature: Signature, kernels: Mapping[str, KernelSpec]) -> None:
    """Raise ValueError unless the parts of the description are of one model."""
    if len(graph.inputs) != len(signature.inputs):
        raise ValueError(f"{len(graph.inputs)} parameters, and {len(signature.inputs)} inputs in the signature")
    if not all(map(is_name, graph.kernels)) or set(graph.kernels.values()) - set(kernels):
        raise ValueError("the graph uses kernels that are not there")
    if any(spec.symbols for spec in kernels.values()):
        raise ValueError("a kernel of many sizes, where every shape is a number")
    if any(spec.arch != variant["arch"] for spec in kernels.values()):
        raise ValueError("a kernel is for another architecture")
    if any(isinstance(leaf, int) and leaf >= graph.outputs for leaf in signature.out_leaves):
        raise ValueError("the result has more tensors than the graph")


def _choose(variants: list[dict[str, Any]], arch: str | None,
            device: torch.device | None) -> tuple[dict[str, Any], torch.device]:
    """The variant to load and where its constants go: a GPU's when there is one and ``device`` does not say otherwise."""
    offered = [strict.text(v["arch"]) for v in variants]
    kind = device.type if device is not None else None
    gpu = gpu_architectures() if kind in (None, "cuda") else ()
    wanted = [arch] if arch is not None else [*gpu, *(cpu_architectures() if kind in (None, "cpu") else ())]
    for name in [*wanted, "any"]:
        if name in offered:
            here = device if device is not None else "cuda" if name in gpu else "cpu"
            return variants[offered.index(name)], torch.device(here)
    raise ArtifactError("RF605", f"the artifact holds kernels for {', '.join(offered)}",
                        why=f"this machine runs {', '.join(wanted)}" if wanted else "there is no GPU here",
                        help="compile the model for this machine; load(path, arch=...) opens it all the same, to look at")
