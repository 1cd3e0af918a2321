"""Mutated artifacts: whatever a file holds, loading it gives a model or a coded error, and soon.

``python -m tests.runtime.fuzz_archive 100000 [SEED]`` loads so many files and prints what came of them. A mutant is a small
artifact with damaged bytes, another zip around its members, other values in its JSON, or other words in its graph; the
last two with hashes that agree again, as an attacker would write them.
"""

from __future__ import annotations

import collections
import copy
import faulthandler
import hashlib
import io
import json
import multiprocessing
import random
import re
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from redfuser.artifact import ArgSpec, KernelSpec, LaunchSpec, ParamSpec, TmaSpec
from redfuser.errors import ArtifactError
from redfuser.report import Report
from redfuser.reported import CascadeReport, OpRef, Reason, Traffic
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import Graph
from redfuser.runtime.signature import Signature, TensorSpec, Value

CHUNK = 2000
OTHER = "sm_80"
SLOW_S = 5.0
SOURCE = '''def forward(x, bias):
    v0 = F.linear(x, w, bias)
    v1, v2 = k_soft(v0)
    v3 = torch.where(v1 > 0.5, v1, float("-inf")).clamp(min=0.25)
    v4 = torch.topk(v3[:, 0:4], 2, 1)[0].reshape((2, 4)).transpose(0, 1)
    v5 = torch.cat([v4, v4 * scale], 1) - torch.arange(0, 4, 1, dtype=torch.float32, device=device)
    v6 = torch.sum(v5, (1,), keepdim=True)
    del v4, v5
    return (v6, v2)
'''


def base() -> dict[str, bytes]:
    """The members of a small artifact that has a little of everything, for two architectures."""
    args = (ArgSpec("x", "f32", (4, 8), "in", 4), ArgSpec("y", "f32", (4, 8), "out", 4), ArgSpec("t", "f32", (4,), "out", 4),
            ArgSpec("scratch", "f32", (8,), "workspace", 4))
    tma = TmaSpec("x", 7, 2, (8, 4), (32,), (8, 4), (1, 1), 0, 0, 0, 0)
    launch = LaunchSpec("soft", 0, (1, 2, 3), (32, 1, 1), 128, (ParamSpec("ptr", "x"), ParamSpec("tma", "x", tma)))
    spec = KernelSpec("soft", "cpu", "cpu", args, (launch,), (b"\x7fELF and so on",), "# source", {"splits": 2}, ({"registers": 3},))
    x = torch.zeros(1)
    signature = Signature((TensorSpec("x", "float32", (4, 8)), TensorSpec("bias", "float32", (8,))), (0, 1, Value(True)),
                          (0, 1, Value(None)), pytree.tree_structure(((x,), {"bias": x, "flag": True})),
                          pytree.tree_structure({"y": x, "rest": [(x, None)]}))
    cascade = CascadeReport("softmax.0", (OpRef("aten.softmax.int", "toy.py:3"),), True, strategy="single", traffic=Traffic(2, 1))
    refused = CascadeReport("norm.0", (OpRef("aten.mean.dim"),), False, Reason("RF301", "mean"))
    model, other = (
        CompiledModel(Graph(SOURCE, ("x", "bias"), 2, {"k_soft": "soft"}), {"w": torch.ones(8, 8), "scale": torch.tensor(2.0)},
                      {"soft": s}, signature, Report("toy", s.arch, (cascade, refused)), {"soft": {"fused": "a form"}})
        for s in (spec, replace(spec, kind="cuda", arch=OTHER)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.rf"
        model.save(path, [other])
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def packed(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", how) as archive:
        warnings.simplefilter("ignore")
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, how)
    return buffer.getvalue()


def rehashed(members: dict[str, bytes]) -> dict[str, bytes]:
    """The same with hashes that agree: those of stored kernels, then the manifest's."""
    members = dict(members)
    for name in members:
        folder, _, file = name.rpartition("/")
        if file == "spec.json":
            try:
                header = json.loads(members[name])
                header["sha256"] = {n: hashlib.sha256(members[f"{folder}/{n}"]).hexdigest() for n in header["sha256"]}
                members[name] = json.dumps(header).encode()
            except (ValueError, KeyError, TypeError):
                continue
    manifest = json.loads(members["manifest.json"])
    manifest["sha256"] = {n: hashlib.sha256(d).hexdigest() for n, d in members.items() if n != "manifest.json"}
    return {**members, "manifest.json": json.dumps(manifest).encode()}


# -- mutations ---------------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 1 << 31, 1 << 40, (1 << 62) - 1, 1 << 63, 1 << 64, 1 << 200, -(1 << 63), 0.5, 1e308, -1e-320,
    float("nan"), float("inf"), "", "x", "0", "w", "x" * 300, "../../x", "/dev/zero", "graph.py", "manifest.json", "kernels/0",
    "constants/0", "float16", "float99", "f16", "leaf", "tuple", "dict", "__import__", "torch", "os.system", "\0", "\ud800", "é", "any",
    "cuda", "hip", "out", "in", "tma", [], {}, [[]], [None], ["leaf"], ["tuple"], ["dict", ["a", "leaf"]], {"value": 3}, {"value": []},
    [1, 2], [-1], [1 << 40, 1 << 40], [0], {"a": 1}, json.loads("[" * 60 + "]" * 60))
WORDS = (
    "x", "bias", "w", "scale", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "k_soft", "torch", "F", "device", "float", "0", "1", "-1", "2",
    "3", "4", "8", "99999999999", "9223372036854775807", "0.5", "1e308", "None", "True", "(", ")", "[", "]", ",", ":", ".", "=", "+", "-",
    "*", "**", "/", "//", "%", "@", "<", "==", "&", "<<", "~", "\n    ", "\n", "del ", "return ", "lambda: ", "import os", "torch.float16",
    "torch.matmul", "torch.as_strided", "torch.load", "torch.ops.aten.histc.default", "torch.ops.aten.set_.source_Tensor",
    ".expand((1099511627776,))", ".reshape((-1,))", ".unbind(0)", ".t()", ".values", ".data", ".__class__", "__import__('os')", "'a'",
    "torch.full((9, 9), 1, dtype=torch.float32, device=device)", "*", "**{}", "if", "else", "for", "x[", "0:9", "::2", "await", "f''")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, inserted, moved or zeroed."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, kind = rng.randrange(len(out) or 1), rng.randrange(6)
        size = rng.choice((1, 2, 4, 30, 200))
        if kind == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at:at + size] = rng.randbytes(size)
        elif kind == 2:
            del out[at:at + size]
        elif kind == 3:
            out[at:at] = out[rng.randrange(len(out) or 1):][:size]
        elif kind == 4:
            out[at:at + size] = rng.choice((b"\0", b"\xff", b"\x7f")) * size
        else:
            out = out[:at] if rng.random() < 0.2 else out
    return bytes(out)


def rezipped(members: dict[str, bytes], rng: random.Random) -> bytes:
    """Other members, another compression, or fields of the zip's headers that lie."""
    members, kind = dict(members), rng.randrange(8)
    name = rng.choice(list(members))
    if kind == 0:
        del members[name]
    elif kind == 1:
        members[rng.choice(("../evil", "/etc/x", "extra", "", "a/" * 500, "é", "kernels/0/x", "con\0"))] = rng.randbytes(9)
    elif kind == 2:
        members[name] = rng.choice((b"", b"{}", b"[]", b"null", rng.randbytes(40), members[rng.choice(list(members))]))
    elif kind == 3:
        members = rehashed({n: d for n, d in members.items() if n != name or n == "manifest.json"})
    elif kind == 4:
        return packed(members, rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)))
    elif kind == 5:  # a member twice
        buffer = io.BytesIO(packed(members))
        with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
            warnings.simplefilter("ignore")
            archive.writestr(name, rng.randbytes(5))
        return buffer.getvalue()
    data = bytearray(packed(members))
    if kind >= 6:  # headers: local ones begin PK\3\4, those of the directory PK\1\2, its end PK\5\6
        places = [m.start() for m in re.finditer(rb"PK(\x03\x04|\x01\x02|\x05\x06)", bytes(data))]
        at = rng.choice(places) + rng.randrange(4, 46)
        value = rng.choice((b"\0", b"\xff", b"\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", rng.randbytes(4), rng.randbytes(1)))
        data[at:at + len(value)] = value
    return bytes(data)


def _paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at] * bool(at) + [p for key, value in below for p in _paths(value, (*at, key))]


def revalued(members: dict[str, bytes], rng: random.Random) -> bytes:
    """Another value somewhere in the manifest, the model's or a kernel's description."""
    name = rng.choice(("manifest.json", "model.json", "model.json", "model.json", "kernels/0/spec.json", "kernels/1/spec.json"))
    data = json.loads(members[name])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *way, last = rng.choice(_paths(data))
        holder = data
        for key in way:
            holder = holder[key]
        kind = rng.randrange(8)
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(rng.choice(VALUES)))
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice(("x", "w", "", "name", "__class__"))] = holder.pop(last)
        elif kind == 3 and isinstance(holder, list):
            rng.shuffle(holder)
        elif kind == 4 and isinstance(holder[last], int):
            holder[last] += rng.choice((-1, 1, 1 << 31, -(1 << 31)))
        else:
            holder[last] = copy.deepcopy(rng.choice(VALUES))
        if not _paths(data):
            break
    text = json.dumps(data)
    if rng.random() < 0.02:
        text = text.replace("1", "1" + "0" * rng.choice((20, 400, 5000)), 1)
    changed = {**members, name: text.encode("utf-8", "surrogatepass")}
    return packed(changed if name == "manifest.json" else rehashed(changed))


def reworded(members: dict[str, bytes], rng: random.Random) -> bytes:
    """Other words in the graph of one architecture."""
    graph = rng.choice(("graph.py", "graph_1.py"))
    words = re.findall(r"\w+|\s+|[^\w\s]", members[graph].decode())
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at, kind = rng.randrange(len(words)), rng.randrange(5)
        if kind == 0:
            del words[at]
        elif kind == 1:
            words.insert(at, rng.choice(WORDS))
        elif kind == 2:
            words[at] = words[rng.randrange(len(words))]
        elif kind == 3:
            words[at:at] = words[at:at + rng.randrange(20)] * rng.choice((1, 1, 40))
        else:
            words[at] = rng.choice(WORDS)
    return packed(rehashed({**members, graph: "".join(words).encode("utf-8", "surrogatepass")}))


MUTATIONS: tuple[Callable[[dict[str, bytes], random.Random], bytes], ...] = (
    lambda members, rng: damaged(packed(members), rng), rezipped, revalued, revalued, reworded,
    lambda members, rng: packed(rehashed({**members, (n := rng.choice(["model.json", "graph.py", "kernels/0/spec.json"])):
                                          damaged(members[n], rng)})))


def mutant(members: dict[str, bytes], seed: int) -> bytes:
    rng = random.Random(seed)
    return rng.choice(MUTATIONS)(members, rng)


# -- trials ------------------------------------------------------------------------------------------------------------


def trial(path: Path, data: bytes) -> str:
    """``loaded`` for both architectures, a code, ``net: cause`` for a code that only the last resort gave, or ``UNCODED: error``."""
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for arch in (None, OTHER):
                CompiledModel.load(path, arch=arch)
    except ArtifactError as error:
        if error.what != f"{path} is damaged":
            return error.code
        return f"net: {type(error.__cause__).__name__}: {str(error.__cause__)[:100]}"
    except Exception as error:
        return f"UNCODED: {type(error).__name__}: {str(error)[:100]}"
    return "loaded"


def run(seeds: range) -> collections.Counter[str]:
    """What became of the mutants of these seeds; a slow one is counted as ``SLOW`` besides."""
    members, found = base(), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            data, start = mutant(members, seed), time.perf_counter()
            outcome = trial(Path(folder) / "m.rf", data)
            found[outcome if not outcome.startswith(("net", "UNCODED")) else f"{outcome} (seed {seed})"] += 1
            if time.perf_counter() - start > SLOW_S:
                found[f"SLOW (seed {seed})"] += 1
    return found


def _child(seeds: range, pipe: Any) -> None:
    faulthandler.enable()
    pipe.send(run(seeds))


def main(count: int, first: int = 0) -> int:
    """Trials in child processes of a few thousand each, so that a crash is counted and named."""
    total, start = collections.Counter[str](), time.perf_counter()
    context = multiprocessing.get_context("fork")
    for at in range(first, first + count, CHUNK):
        seeds = range(at, min(at + CHUNK, first + count))
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(seeds, theirs))
        child.start()
        theirs.close()
        try:
            total += mine.recv()
        except EOFError:
            total[f"CRASH in seeds {seeds}"] += 1
        child.join()
        print(f"{at + len(seeds) - first} files, {time.perf_counter() - start:.0f} s", flush=True)
    seconds = time.perf_counter() - start
    for outcome, n in sorted(total.items()):
        print(f"{n:8d}  {outcome}")
    bad = sum(n for outcome, n in total.items() if outcome.startswith(("UNCODED", "CRASH", "SLOW")))
    print(f"{count} files in {seconds:.0f} s, {1e3 * seconds / count:.2f} ms each; {bad} uncoded, crashed or slow; "
          f"{sum(n for o, n in total.items() if o.startswith('net'))} caught by the last resort alone")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
