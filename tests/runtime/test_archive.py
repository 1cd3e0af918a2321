"""The model artifact: round trip, the bare loading process, determinism, and every way a file can be wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import models
import pytest
import torch
from recorded import split_spec
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import redfuser
from redfuser.artifact import KernelSpec, from_files, load_kernel, save_kernel, to_files
from redfuser.errors import ArtifactError, InputError
from redfuser.report import Report
from redfuser.runtime import archive, host
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import Graph
from redfuser.runtime.signature import Signature, TensorSpec, Value
from tests.runtime import fuzz_archive


@pytest.fixture
def saved(cpu_spec: KernelSpec, tmp_path: Path) -> Path:
    path = tmp_path / "model.rf"
    models.make(cpu_spec).save(path)
    return path


def test_round_trip(cpu_spec: KernelSpec, saved: Path) -> None:
    model, loaded, (x, bias) = models.make(cpu_spec), CompiledModel.load(saved), models.inputs()
    a, b = model(x, bias=bias, flag=True), loaded(x, bias=bias, flag=True)
    assert torch.equal(a["y"], b["y"]) and torch.equal(a["total"], b["total"]) and list(a) == list(b)
    assert loaded.source() == model.source() and loaded.stages() == model.stages() and loaded.kernels == model.kernels
    assert list(loaded.stages()) == list(model.stages())
    assert loaded.report == dataclasses.replace(model.report, timings={})


def test_equal_models_give_equal_bytes(cpu_spec: KernelSpec, saved: Path, tmp_path: Path) -> None:
    other = models.make(cpu_spec)
    other._report = dataclasses.replace(other.report, timings={"import": 2.0})
    other.save(tmp_path / "again.rf")
    assert (tmp_path / "again.rf").read_bytes() == saved.read_bytes()
    CompiledModel.load(saved).save(tmp_path / "reloaded.rf")
    assert (tmp_path / "reloaded.rf").read_bytes() == saved.read_bytes()


BARE = '''
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tvm", "tilelang", "sympy", "z3", "onnx", "transformers", "click", "rich", "pickle5"):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocked())
import subprocess
def refuse(*a, **k): raise OSError("no process may be started")
subprocess.Popen = refuse
import torch, redfuser
from redfuser.runtime.model import CompiledModel
model = CompiledModel.load(sys.argv[1])
g = torch.Generator().manual_seed(1)
x, bias = torch.randn(4, 8, generator=g), torch.randn(8, generator=g)
out = model(x, bias=bias, flag=True)
torch.save(out["y"], sys.argv[2])
assert not {"tvm", "tilelang", "sympy", "z3"} & set(sys.modules)
'''


def test_loads_without_tvm_tilelang_or_a_compiler(cpu_spec: KernelSpec, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "y.pt"
    done = subprocess.run([sys.executable, "-c", BARE, str(saved), str(out)], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])})
    assert done.returncode == 0, done.stderr
    x, bias = models.inputs()
    torch.testing.assert_close(torch.load(out), models.original(x, bias=bias)["y"])


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None], rehash: bool = False) -> None:
    """Change members; with ``rehash`` the manifest agrees again, as an attacker would make it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    if rehash:
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"] = {n: hashlib.sha256(d).hexdigest() for n, d in members.items() if n != "manifest.json"}
        members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def edit(member: str, change: Callable[[Any], None]) -> Callable[[dict[str, bytes]], None]:
    def apply(members: dict[str, bytes]) -> None:
        data = json.loads(members[member])
        change(data)
        members[member] = json.dumps(data).encode()
    return apply


def swap(member: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    def apply(members: dict[str, bytes]) -> None:
        assert old in members[member]
        members[member] = members[member].replace(old, new)
    return apply


WRONG: list[tuple[str, str, bool, Callable[[dict[str, bytes]], None]]] = [
    ("newer format", "RF602", False, edit("manifest.json", lambda m: m.update(format=3))),
    ("older format", "RF610", False, edit("manifest.json", lambda m: m.update(format=1))),
    ("no manifest", "RF601", False, lambda m: m.pop("manifest.json") and None),
    ("manifest not JSON", "RF601", False, lambda m: m.update({"manifest.json": b"{"})),
    ("manifest a list", "RF601", False, lambda m: m.update({"manifest.json": b"[]"})),
    ("manifest without hashes", "RF601", False, edit("manifest.json", lambda m: m.pop("sha256"))),
    ("changed graph", "RF603", False, swap("graph.py", b"* scale", b"+ scale")),
    ("changed constant", "RF603", False, lambda m: m.update({"constants/0": bytes(len(m["constants/0"]))})),
    ("changed binary", "RF603", False, lambda m: m.update({"kernels/0/kernel_0.so": b"x"})),
    ("missing member", "RF604", False, lambda m: m.pop("constants/0") and None),
    ("extra member", "RF604", False, lambda m: m.update({"extra": b""})),
    ("path traversal", "RF604", False, lambda m: m.update({"../../evil": b"x"})),
    ("missing and not in the manifest", "RF604", True, lambda m: m.pop("graph.py") and None),
    ("kernel without a binary", "RF604", True, lambda m: m.pop("kernels/0/kernel_0.so") and None),
    ("binary that is not the kernel's", "RF603", True, lambda m: m.update({"kernels/0/kernel_0.so": b"x"})),
    ("graph that imports", "RF606", True, lambda m: m.update({"graph.py": b"import os\ndef forward(x, bias): return x"})),
    ("graph that loads", "RF606", True, swap("graph.py", b"torch.matmul(v1, w)", b"torch.load('f')")),
    ("graph not UTF-8", "RF601", True, lambda m: m.update({"graph.py": b"\xff\xfe"})),
    ("constant of another size", "RF601", True, lambda m: m.update({"constants/0": b"1234"})),
    ("no signature", "RF601", True, edit("model.json", lambda m: m.pop("signature"))),
    ("unknown dtype", "RF601", True, edit("model.json", lambda m: m["constants"][0].__setitem__(1, "load"))),
    ("signature that does not add up", "RF601", True, edit("model.json", lambda m: m["signature"]["in_leaves"].pop())),
    ("inputs that do not add up", "RF601", True, edit("model.json", lambda m: m["signature"]["inputs"].pop())),
    ("structure of another type", "RF601", True, edit("model.json", lambda m: m["signature"].update(
        in_structure=json.loads(json.dumps(m["signature"]["in_structure"]).replace("dict", "collections.OrderedDict"))))),
    ("text of a pytree", "RF601", True, edit("model.json", lambda m: m["signature"].update(
        out_structure=json.loads(pytree.treespec_dumps(pytree.tree_structure({"y": 1})))))),
    ("structure without end", "RF601", True, edit("model.json", lambda m: m["signature"].update(
        out_structure=json.loads('["list",' * 200 + '"leaf"' + "]" * 200)))),
    ("kernel of a newer format", "RF602", True, edit("kernels/0/spec.json", lambda m: m.update(format=9))),
    ("kernel description cut", "RF601", True, edit("kernels/0/spec.json", lambda m: m["kernel"].pop("args"))),
    ("kernel the graph does not have", "RF601", True, edit("model.json", lambda m: m["variants"][0]["kernels"].clear())),
    ("another architecture", "RF605", True, edit("model.json", lambda m: m["variants"][0].update(arch="sm_80"))),
    ("constant named like code", "RF601", True, edit("model.json", lambda m: m["constants"][0].__setitem__(0, "a.b"))),
    ("parameters of another signature", "RF606", True, swap("graph.py", b"forward(x, bias)", b"forward(bias, x)")),
    ("operands of another shape", "RF606", True, edit("model.json", lambda m: m["signature"]["inputs"][0].__setitem__(2, [4, 9]))),
    ("operands of another dtype", "RF606", True, edit("model.json", lambda m: m["signature"]["inputs"][0].__setitem__(1, "int64"))),
    ("kernel of another shape", "RF606", True, edit("kernels/0/spec.json", lambda m: m["kernel"]["args"][0].update(shape=[8, 4]))),
    ("kernel of another dtype", "RF606", True, edit("kernels/0/spec.json", lambda m: m["kernel"]["args"][0].update(dtype="f16"))),
    ("kernel of another role", "RF606", True, edit("kernels/0/spec.json", lambda m: m["kernel"]["args"][0].update(role="out"))),
    ("kernel of no dtype", "RF601", True, edit("kernels/0/spec.json", lambda m: m["kernel"]["args"][0].update(dtype="f33"))),
    ("kernel of no role", "RF601", True, edit("kernels/0/spec.json", lambda m: m["kernel"]["args"][0].update(role="inout"))),
    ("entry of no binary", "RF601", True, edit("kernels/0/spec.json", lambda m: m["kernel"]["launches"][0].update(binary=1))),
    ("a grid that overflows", "RF601", True, edit("kernels/0/spec.json", lambda m: m["kernel"]["launches"][0].update(
        grid=[1 << 70, 1, 1]))),
    ("more results than outputs", "RF601", True, edit("model.json", lambda m: m["signature"].update(out_leaves=[0, 7, {"value": 0}]))),
    ("fewer outputs than the graph", "RF606", True, edit("model.json", lambda m: m["variants"][0].update(outputs=3))),
    ("a shape that overflows", "RF601", True, edit("model.json", lambda m: m["constants"][0].__setitem__(2, [1 << 60, 1 << 60]))),
    ("a shape of words", "RF601", True, edit("model.json", lambda m: m["constants"][0].__setitem__(2, ["8", "8"]))),
    ("a report of lists", "RF601", True, edit("model.json", lambda m: m["variants"][0]["report"].update(model=[]))),
    ("a number that is no double", "RF601", True, swap("model.json", b'"numerics": null', b'"numerics": 1' + b"0" * 400)),
    ("report of another schema", "RF601", True, edit("model.json", lambda m: m["variants"][0]["report"].update(schema=99))),
]


@pytest.mark.parametrize(("name", "code", "rehash", "change"), WRONG, ids=[w[0] for w in WRONG])
def test_wrong_files_are_refused(saved: Path, name: str, code: str, rehash: bool,
                                 change: Callable[[dict[str, bytes]], None]) -> None:
    rewrite(saved, change, rehash)
    with pytest.raises(ArtifactError, match=code) as caught:
        CompiledModel.load(saved)
    assert str(saved) in str(caught.value)  # somebody who loads several is told which


def test_unpacked_sizes_are_compared_first(saved: Path) -> None:
    """Members are stored: a few megabytes that unpack to gigabytes are refused before any of it is unpacked."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data + bytes(50 << 20) if name == "constants/0" else data)
    with pytest.raises(ArtifactError, match="RF601 the artifact has compressed"):
        CompiledModel.load(saved)


def test_what_is_no_path_or_device(saved: Path) -> None:
    for path in (None, 3, b"x", [], object()):
        with pytest.raises(ArtifactError, match="RF607"):
            CompiledModel.load(path)  # type: ignore[arg-type]
        with pytest.raises(ArtifactError, match="RF607"):
            CompiledModel.load(saved).save(path)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="RF60"):
        CompiledModel.load("a\0b")
    with pytest.raises(ArtifactError, match="RF607"):
        CompiledModel.load(saved).save("a\0b")
    for device in ("nonsense", 3.5, "cuda:nine"):
        with pytest.raises(ArtifactError, match="RF607 there is no device"):
            CompiledModel.load(saved, device=device)  # type: ignore[arg-type]


def test_reading_resolves_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading looks up no name that the file holds: no module is imported, no attribute of one is taken by text."""
    CompiledModel.load(saved)
    before = set(sys.modules)
    monkeypatch.setattr(pytree, "treespec_loads", None)
    monkeypatch.setattr("importlib.import_module", None)
    CompiledModel.load(saved)
    assert set(sys.modules) == before
    with zipfile.ZipFile(saved) as archive:
        text = archive.read("model.json").decode()
    assert "builtins" not in text and "torch." not in text


class Named(NamedTuple):
    first: torch.Tensor
    rest: Any


def test_structures_come_back_plain(tmp_path: Path) -> None:
    """Named tuples and torch's own named results are tuples after loading, records are dicts; keys keep their order."""
    record = make_dataclass("Record", [("b", Any), ("a", Any), ("none", Any, None)], frozen=True)
    torch.export.register_dataclass(record)
    x = torch.arange(3.0)
    given = Named(x, {"z": [x, None], "a": (x,)})
    result = {"top": torch.topk(x, 1), "named": given, "record": record(x, (x,)), "empty": ((), [], {})}
    in_spec, out_spec = pytree.tree_structure(((given,), {})), pytree.tree_structure(result)
    value = Value(None)
    signature = Signature((TensorSpec("x", "float32", (3,)), TensorSpec("y", "float32", (3,)), TensorSpec("z", "float32", (3,))),
                          (0, 1, value, 2), (0, 1, 0, 0, value, 0, 0, 0), in_spec, out_spec)
    graph = Graph("def forward(x, y, z):\n    i = torch.argmax(x, 0, keepdim=True)\n    return (x, i)\n", ("x", "y", "z"), 2)
    model = CompiledModel(graph, {}, {}, signature)
    assert type(model(given)["named"]) is Named and type(model(given)["record"]) is record
    model.save(tmp_path / "s.rf")
    loaded = CompiledModel.load(tmp_path / "s.rf")
    for argument in (given, (x, {"z": [x, None], "a": (x,)})):
        found = loaded(argument)
        assert type(found["top"]) is tuple and type(found["named"]) is tuple and list(found["named"][1]) == ["z", "a"]
        assert found["record"]["none"] is None and list(found["record"]) == ["b", "a", "none"]
        assert found["named"][1]["z"][1] is None and found["empty"] == ((), [], {})
    with pytest.raises(InputError, match="RF511"):
        loaded([x, {"z": [x, None], "a": (x,)}])
    loaded.save(tmp_path / "again.rf")
    assert (tmp_path / "again.rf").read_bytes() == (tmp_path / "s.rf").read_bytes()


def test_not_an_artifact_at_all(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    for cut in (0, 10, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.rf").write_bytes(data[:cut])
        with pytest.raises(ArtifactError, match=r"RF60[13]"):
            CompiledModel.load(tmp_path / "cut.rf")
    with pytest.raises(ArtifactError, match="RF607 no such file"):
        CompiledModel.load(tmp_path / "absent.rf")
    with pytest.raises(ArtifactError, match="RF607"):
        CompiledModel.load(tmp_path)


def test_every_flipped_byte_is_found_or_harmless(cpu_spec: KernelSpec, saved: Path) -> None:
    data, (x, bias) = saved.read_bytes(), models.inputs()
    wanted = models.make(cpu_spec)(x, bias=bias, flag=True)["y"]
    for position in range(0, len(data), max(1, len(data) // 60)):
        saved.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1:])
        try:
            assert torch.equal(CompiledModel.load(saved)(x, bias=bias, flag=True)["y"], wanted)
        except ArtifactError:
            continue


def test_members_of_one_name(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as archive, pytest.warns(UserWarning):
        archive.writestr("graph.py", b"def forward(x, bias): return (x, x)")
    with pytest.raises(ArtifactError, match="RF604"):
        CompiledModel.load(saved)


def gpu_model(arch: str, constant: float = 1.0) -> CompiledModel:
    spec = dataclasses.replace(split_spec(), arch=arch)
    source = "def forward(q, key):\n    v = k_split(q, key)\n    return (v * w,)\n"
    tensors = (TensorSpec("q", "float16", (4, 64)), TensorSpec("key", "float16", (128, 64)))
    return CompiledModel(Graph(source, ("q", "key"), 1, {"k_split": spec.name}), {"w": torch.tensor(constant)},
                         {spec.name: spec}, Signature(tensors, (0, 1), (0,)), Report("m", arch))


def test_several_architectures_in_one_file(tmp_path: Path) -> None:
    path, made = tmp_path / "many.rf", [gpu_model(arch) for arch in ("sm_80", "sm_86", "sm_90a")]
    made[0].save(path, made[1:])
    for model in made:
        arch = model.report.target
        loaded = CompiledModel.load(path, arch=arch)
        assert loaded.kernels["split"].arch == arch and loaded.report.target == arch
    if not torch.cuda.is_available():
        with pytest.raises(ArtifactError, match="RF605 the artifact holds kernels for sm_80, sm_86, sm_90a"):
            CompiledModel.load(path)
    with pytest.raises(ArtifactError, match="RF605"):
        CompiledModel.load(path, arch="gfx942")
    with pytest.raises(ArtifactError, match="RF607 the models to save together are not the same model"):
        made[0].save(path, [gpu_model("sm_86", 2.0)])


def test_one_architecture_twice_is_one_part_or_an_error(tmp_path: Path) -> None:
    """Loading picks by the architecture alone: of two that differ it would never be the second."""
    path, model = tmp_path / "m.rf", gpu_model("sm_86")
    model.save(path, [gpu_model("sm_80"), gpu_model("sm_86")])
    assert archive.architectures(path) == ("sm_86", "sm_80")
    binary, graph = gpu_model("sm_86"), gpu_model("sm_86")
    binary._kernels["split"] = dataclasses.replace(split_spec(), arch="sm_86", binaries=(b"another",))
    graph._graph = dataclasses.replace(graph._graph, source=graph._graph.source.replace("v * w", "v + w"))
    for other in (binary, graph):
        with pytest.raises(ArtifactError, match="RF607 two of the models to save together are for sm_86, and differ"):
            model.save(path, [gpu_model("sm_80"), other])
    assert archive.architectures(path) == ("sm_86", "sm_80")


def test_two_targets_for_which_nothing_fused_are_one(tmp_path: Path) -> None:
    model = CompiledModel(Graph("def forward(x):\n    return (x,)\n", ("x",), 1), {}, {},
                          Signature((TensorSpec("x", "float32", (3,)),), (0,), (0,)))
    model.save(tmp_path / "m.rf", [model])
    assert archive.architectures(tmp_path / "m.rf") == ("any",) and torch.equal(redfuser.load(tmp_path / "m.rf")(torch.ones(3)),
                                                                                torch.ones(3))
    other = CompiledModel(Graph("def forward(x):\n    return (x + x,)\n", ("x",), 1), {}, {}, model._signature)
    with pytest.raises(ArtifactError, match="RF607 two of the models to save together are for any, and differ"):
        model.save(tmp_path / "m.rf", [other])
    other._report = Report("m", "sm_90a")  # its text may be another, for its target's sake
    model.save(tmp_path / "m.rf", [other])


def test_the_command_line_writes_and_tells_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file and a report for each target, the kernels of all in it; `inspect` says so without running any."""
    from click.testing import CliRunner

    from redfuser.cli.main import cli

    (tmp_path / "toy.py").write_text("def f():\n    return (lambda x: x), (1,)\n")
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr(redfuser, "compile", lambda *_, target, **__: asked.append(target) or gpu_model(target))
    told = CliRunner().invoke(cli, ["compile", "toy:f", "-q", "-o", "m.rf", "--target", "sm_90,sm_80, gfx942,sm_90a", "--json"])
    assert told.exit_code == 0 and asked == ["sm_90a", "sm_80", "gfx942"], told.output
    assert [r["target"] for r in json.loads(told.stdout)] == asked
    found = json.loads(CliRunner().invoke(cli, ["inspect", "m.rf", "--json"]).stdout)
    assert [k["arch"] for k in found["kernels"]] == asked and all(k["kernels"] == 1 for k in found["kernels"])
    assert found["here"] in ("", *asked) and found["inputs"][0][2] == list(gpu_model("sm_80")._signature.inputs[0].shape)
    text = CliRunner().invoke(cli, ["inspect", "m.rf"])
    assert text.exit_code == 0 and all(arch in text.output for arch in asked)
    wrong = CliRunner().invoke(cli, ["compile", "toy:f", "--target", "sm_80,sm_7"])
    assert wrong.exit_code == 1 and "RF496" in wrong.output and len(asked) == 3


def test_constants_follow_the_inputs_to_where_the_kernels_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model for GPUs that was loaded onto the CPU moves at its first call; one that can run where it is stays there."""
    gpu_model("sm_90a").save(tmp_path / "m.rf")
    loaded = redfuser.load(tmp_path / "m.rf", arch="sm_90a", device="cpu")
    moved: list[torch.device] = []
    for model in (loaded, gpu_model("sm_90a").to("meta")):
        with pytest.raises(InputError, match="RF503"):
            model._device_for((torch.empty((4, 64), dtype=torch.float16),))

    def to(self: CompiledModel, device: torch.device) -> CompiledModel:
        moved.append(device)
        self._buffers["c_w"] = torch.empty((), device=device)
        return self

    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty((4, 64), dtype=torch.float16, device="cuda")
        monkeypatch.setattr(CompiledModel, "to", to)
        assert loaded._device_for((x, x)) == x.device and moved == [x.device]
        assert loaded._device_for((x, x)) == x.device and moved == [x.device]


def test_gpu_kernels_that_this_machine_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, first, runs, not_runs in (((9, 0), "sm_90a", "sm_90", "sm_80"), ((8, 6), "sm_86a", "sm_80", "sm_89")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        found = host.gpu_architectures()
        assert found[0] == first and runs in found and not_runs not in found


def test_cpu_levels(cpu_spec: KernelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for a higher level than this processor's is refused rather than left to an illegal instruction."""
    found = host.cpu_architectures()
    assert found[-1] == "cpu" and len(set(found)) == len(found) >= 2
    models.make(dataclasses.replace(cpu_spec, arch="x86-64-v3")).save(tmp_path / "m.rf")
    monkeypatch.setattr("redfuser.runtime.archive.cpu_architectures", lambda: ("x86-64-v2", "x86-64", "generic", "cpu"))
    with pytest.raises(ArtifactError, match="RF605 the artifact holds kernels for x86-64-v3"):
        CompiledModel.load(tmp_path / "m.rf")
    monkeypatch.setattr("redfuser.runtime.archive.cpu_architectures", lambda: ("x86-64-v4", "x86-64-v3", "x86-64"))
    assert CompiledModel.load(tmp_path / "m.rf").kernels["softmax"].arch == "x86-64-v3"


def test_what_cannot_be_written_is_said(cpu_spec: KernelSpec, tmp_path: Path) -> None:
    class Odd:
        pass

    pytree.register_pytree_node(Odd, lambda o: ([], None), lambda c, ctx: Odd())
    model = models.make(cpu_spec)
    model._signature = dataclasses.replace(model._signature, out_spec=pytree.tree_structure([Odd(), 1, 2, 3]))
    with pytest.raises(ArtifactError, match="RF607"):
        model.save(tmp_path / "odd.rf")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="RF607"):
        models.make(cpu_spec).save(tmp_path / "file" / "model.rf")
    assert not list(tmp_path.glob(".redfuser-*"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64])
def test_constants_of_every_kind(cpu_spec: KernelSpec, tmp_path: Path, dtype: torch.dtype) -> None:
    base = (torch.arange(15).reshape(3, 5) % 7 - 3).to(dtype)
    constants = {"a": base, "tied": base, "strided": base.t(), "scalar": base[0, 0], "empty": base[:0]}
    graph = Graph("def forward(x):\n    return (a, tied, strided, scalar, empty)\n", ("x",), 5)
    model = CompiledModel(graph, constants, {}, Signature((TensorSpec("x", "float32", (1,)),), (0,), (0, 1, 2, 3, 4)))
    model.save(tmp_path / "c.rf")
    with zipfile.ZipFile(tmp_path / "c.rf") as archive:
        assert sum(n.startswith("constants/") for n in archive.namelist()) == 4, "tied weights are stored once"
    for found, wanted in zip(CompiledModel.load(tmp_path / "c.rf")(torch.zeros(1)), constants.values(), strict=True):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert torch.equal(found.contiguous().view(torch.uint8) if found.dim() else found.float(),
                           wanted.contiguous().view(torch.uint8) if found.dim() else wanted.float())


def test_stored_kernels(tmp_path: Path) -> None:
    spec = split_spec(workspace=True)
    assert from_files(to_files(spec)) == spec and to_files(spec) == to_files(spec)
    save_kernel(spec, tmp_path / "k")
    assert load_kernel(tmp_path / "k") == spec
    assert KernelSpec.from_json(json.loads(json.dumps(spec.to_json())), spec.binaries, spec.source) == spec
    (tmp_path / "k" / "kernel_1.cubin").write_bytes(b"other")
    with pytest.raises(ArtifactError, match="RF603"):
        load_kernel(tmp_path / "k")
    (tmp_path / "k" / "kernel_1.cubin").unlink()
    with pytest.raises(ArtifactError, match="RF604"):
        load_kernel(tmp_path / "k")
    with pytest.raises(ArtifactError, match="RF604"):
        load_kernel(tmp_path / "absent")
    for damaged in ({}, {**spec.to_json(), "launches": [{}]}, {**spec.to_json(), "args": 3}):
        with pytest.raises(ArtifactError, match="RF601"):
            KernelSpec.from_json(damaged)


def test_mutated_files_give_a_model_or_a_code() -> None:
    """A sample; ``python -m tests.runtime.fuzz_archive 100000`` is the whole."""
    found = fuzz_archive.run(range(900_000_000, 900_000_300))
    assert sum(found.values()) == 300 and found["loaded"] > 5 and len(found) > 4
    assert not [outcome for outcome in found if outcome.startswith(("UNCODED", "SLOW", "net"))], found


def test_cache_why_of_a_hostile_file(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from redfuser.cli.cache import why

    members = fuzz_archive.base()
    for name, data in {"empty": b"", "text": b"hello", "graph": fuzz_archive.packed(fuzz_archive.rehashed(
            {**members, "graph.py": b"import os"})), "structure": fuzz_archive.packed(fuzz_archive.rehashed(
            {**members, "model.json": members["model.json"].replace(b'"leaf"', b'"os.system"')}))}.items():
        (tmp_path / name).write_bytes(data)
        result = CliRunner().invoke(why, [str(tmp_path / name)])
        assert isinstance(result.exception, ArtifactError), name


def test_kernel_dtypes_are_torchs() -> None:
    from redfuser import artifact
    from redfuser.runtime.check import TORCH_DTYPE

    assert set(TORCH_DTYPE) == artifact.DTYPES


def test_a_device_that_failed_before_is_no_damage() -> None:
    with pytest.raises(ArtifactError, match="RF607") as caught, archive.blaming("x.rf"):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    assert "device-side assert" in str(caught.value)
