"""The three steps and the one, for real, on the CPU: its kernels are few and its unfused region is torch as anywhere."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import redfuser
from redfuser.autotune import folder, lookup, measure, records
from redfuser.autotune.folder import Kernel
from redfuser.autotune.measure import Measurement
from redfuser.cli.main import cli
from redfuser.errors import TuningError
from tests.autotune.planted import sample

ARGS = (torch.randn(5, 40),)


def softmax() -> tuple[object, tuple[torch.Tensor, ...]]:
    return lambda x: torch.softmax(x, -1), ARGS


def invoke(*args: str) -> str:
    found = CliRunner().invoke(cli, ["tune", *args], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_prepared_measured_adopted_and_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, into = tmp_path / "there", tmp_path / "records"
    monkeypatch.setattr("redfuser.autotune.measure.SECONDS", {"quick": 0.005})
    monkeypatch.setattr("redfuser.autotune.judge.NOISY", 1e9)  # who runs tests beside each other is never alone
    assert "1 kernels, 2 candidates" in invoke(f"{__name__}:softmax", "--target", "cpu", "--prepare", str(there), "-q")
    kernel, = folder.read(there).kernels
    planted = folder.place(there, kernel, kernel.candidates[1].id) / "spec.json"
    planted.write_text("{")  # the second is damaged on its way
    assert "1 kernels: the model's choice takes 1.000 times" in invoke("--measure", str(there), "-q")
    invoke("--adopt", str(there), "--to", str(into))
    path, = into.iterdir()
    made, = records.read(path)
    assert made.candidates == 1 and made.failed == 1 and made.arch == "cpu" and made.command.startswith("redfuser tune")
    before = path.read_bytes()
    invoke("--adopt", str(there), "--to", str(into))
    assert path.read_bytes() == before
    monkeypatch.setenv("REDFUSER_TUNING_RECORDS", str(path))
    report = redfuser.explain(*softmax(), target="cpu", tuning="cached")
    assert report.cascades[0].fused == made.fuse and "explicit record" in report.summary()


def test_quick_measures_once_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Kernel] = []

    def fake(there: Path, kernel: Kernel, without: object, effort: str) -> Measurement:
        asked.append(kernel)
        return Measurement({"unfused": sample(1.0)} | {c.id: sample(0.9 - 0.1 * i) for i, c in enumerate(kernel.candidates)})

    monkeypatch.setattr(lookup, "user_folder", lambda chosen: tmp_path)
    monkeypatch.setattr("redfuser.autotune.measure.measurer_of", lambda arch, given=None: nullcontext(fake))
    for _ in range(2):
        compiled = redfuser.compile(*softmax(), target="cpu", tuning="quick")
        torch.testing.assert_close(compiled(*ARGS), torch.softmax(*ARGS, -1))
        cascade, = compiled.report.cascades
        assert cascade.fused and cascade.config.startswith("user record") and cascade.strategy == "single", "not the model's"
    assert len(asked) == 1 and [c.choice.strategy for c in asked[0].candidates] == ["resident", "single"]
    path, = tmp_path.iterdir()
    assert len(records.read(path)) == 1


def test_without_the_device_nothing_is_measured_and_that_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TuningError, match="RF708"):
        measure.measured(tmp_path, "sm_90a", "quick", 1.0, tmp_path, None)
    monkeypatch.setattr("redfuser.pipeline.run", lambda *a, **k: (_ for _ in ()).throw(InterruptedError))
    with pytest.warns(RuntimeWarning, match="RF708"), pytest.raises(InterruptedError):
        redfuser.compile(*softmax(), target="sm_90a", tuning="quick")


def test_measuring_needs_no_compiler() -> None:
    code = "import redfuser.autotune.child, redfuser.autotune.measure, redfuser.cli.tune, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "redfuser.autotune.adopt" in done.stdout
    assert not {"tvm", "tilelang", "z3"} & {m.split(".")[0] for m in done.stdout.split()}


@pytest.mark.parametrize("args", [[], ["m:f", "--measure", "x"], ["--workload", "mha", "m:f"], ["--measure", "x", "--adopt", "y"]])
def test_wrong_usage(args: list[str]) -> None:
    assert CliRunner().invoke(cli, ["tune", *args]).exit_code == 2


def test_a_project_keeps_its_records_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from redfuser import settings
    from redfuser.cli.tune import _into

    monkeypatch.chdir(tmp_path)
    chosen = settings.load({"REDFUSER_CACHE_DIR": str(tmp_path / "c")})
    assert _into("project", chosen) == tmp_path / lookup.PROJECT and _into("user", chosen) == tmp_path / "c" / "tuning"
