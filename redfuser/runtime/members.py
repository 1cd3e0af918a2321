"""The members of an artifact, read: each by name, stored as it lies, and held to its hash before it is looked at."""

from __future__ import annotations

import hashlib
import json
import zipfile
from typing import Any

import torch

from redfuser import strict
from redfuser.artifact import KernelSpec, from_files
from redfuser.errors import ArtifactError
from redfuser.runtime.shapes import Refused, shaped
from redfuser.runtime.signature import torch_dtype

FORMAT = 2
"""Version of the file's layout; a reader refuses any other. 2: structures in a grammar of ours, for torch's text of them."""
MAX_MEMBERS = 100_000
MAX_JSON_BYTES = 256 << 20
AGAIN = "copy the file again, or save the model again"


class Members:
    """An open file's members, after checking the format and that the zip holds exactly those of its manifest, as they lie
    there: stored, and together no larger than the file of ``size`` bytes."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self.archive = archive
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        if len(names) > MAX_MEMBERS or len(set(names)) != len(names):
            raise ArtifactError("RF604", "the artifact has members of the same name, or far too many")
        if "manifest.json" not in names:
            raise ArtifactError("RF601", "not a RedFuser artifact", why="it has no manifest.json")
        if any(e.compress_type != zipfile.ZIP_STORED or e.file_size != e.compress_size or e.flag_bits & 1 for e in entries):
            raise ArtifactError("RF601", "the artifact has compressed or encrypted members", why="none are written", help=AGAIN)
        if sum(entry.file_size for entry in entries) > size:
            raise ArtifactError("RF601", "the artifact's members are larger than the file", help=AGAIN)
        manifest = _parse(self._bytes("manifest.json"), "manifest.json")
        try:
            version, self.hashes = strict.whole(manifest["format"], 0, 1 << 31), strict.texts(manifest["sha256"])
        except (KeyError, ValueError) as error:
            raise ArtifactError("RF601", "the artifact's manifest is damaged", why=str(error), help=AGAIN) from error
        if version > FORMAT:
            raise ArtifactError("RF602", f"artifact of format {version}", why=f"this RedFuser reads {FORMAT}",
                                help="upgrade RedFuser, or save the model with this version")
        if version < FORMAT:
            raise ArtifactError("RF610", f"artifact of format {version}", why=f"this RedFuser reads {FORMAT}",
                                help="compile the model again, and save it with this version")
        difference = set(names) ^ ({"manifest.json"} | set(self.hashes))
        if difference:
            raise ArtifactError("RF604", "the artifact's members are not those of its manifest",
                                why=", ".join(sorted(difference)[:5]), help=AGAIN)

    def _bytes(self, name: str) -> bytes:
        """A member by name (never as a path on this machine). Its size is at most the file's: that was seen to."""
        try:
            return self.archive.read(name)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:  # its own checksum, or headers
            raise ArtifactError("RF603", f"{name} is damaged", why=str(error), help=AGAIN) from error

    def bytes(self, name: str) -> bytes:
        """A member, held to its hash."""
        if name not in self.hashes:
            raise ArtifactError("RF604", f"{name} is missing from the artifact", help=AGAIN)
        data = self._bytes(name)
        if hashlib.sha256(data).hexdigest() != self.hashes[name]:
            raise ArtifactError("RF603", f"{name} does not match its hash", help=AGAIN)
        return data

    def table(self, name: str) -> dict[str, Any]:
        """A member that is a JSON object."""
        return _parse(self.bytes(name), name)

    def kernel(self, folder: str) -> KernelSpec:
        prefix = folder + "/"
        return from_files({name[len(prefix):]: self.bytes(name) for name in self.hashes if name.startswith(prefix)})

    def constant(self, name: str, dtype: str, shape: Any) -> torch.Tensor:
        """A constant, in torch's own allocation: aligned as kernels want it. Sizes are compared before anything is made."""
        try:
            kind = shaped(torch_dtype(dtype), [strict.whole(n, 0, 1 << 48) for n in strict.items(shape)])
        except Refused as error:
            raise ValueError(str(error)) from error
        data = self.bytes(name)
        if kind.bytes != len(data):
            raise ArtifactError("RF601", f"{name} has {len(data)} bytes, its shape says otherwise", help=AGAIN)
        out = torch.empty(kind.shape, dtype=kind.dtype, device="cpu")
        if data:
            out.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return out


def table(data: Any) -> dict[str, Any]:
    """What has to be a JSON object. Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"a table is a {type(data).__name__}")
    return data


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        if len(data) > MAX_JSON_BYTES:
            raise ValueError(f"{len(data)} bytes")
        return table(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ArtifactError("RF601", f"the artifact's {name} is damaged", why=str(error), help=AGAIN) from error
