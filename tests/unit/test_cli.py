"""The command line: exit codes, data on stdout, coded errors on stderr, never a stack trace."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from redfuser.autotune import lookup
from redfuser.cli import console
from redfuser.cli.main import cli
from redfuser.errors import InputError, NumericsError
from redfuser.settings import working_folder
from redfuser.target import TARGETS


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


def failing(error: BaseException) -> Result:
    """Run a command that raises ``error``, under the guard every command has."""

    @click.command()
    def command() -> None:
        with console.guard():
            raise error

    return CliRunner().invoke(command, [])


def test_errors_are_coded_text_with_exit_codes() -> None:
    r = failing(InputError("RF192", "no file x.pt2", why="it is not there", help="look again"))
    assert (r.exit_code, r.stdout) == (1, "")
    assert r.stderr == "RF192 no file x.pt2\n  why:  it is not there\n  next: look again\n"
    assert failing(NumericsError("RF801", "wrong")).exit_code == 4


def test_an_exception_that_is_not_ours_is_our_bug_with_a_folder() -> None:
    r = failing(ZeroDivisionError("division by zero"))
    assert r.exit_code == 1 and "RF900" in r.stderr and "Traceback" not in r.stderr
    folder = Path(next(w for w in r.stderr.split() if "redfuser-bug-" in w))
    assert "ZeroDivisionError" in (folder / "traceback.txt").read_text()
    assert "python 3" in (folder / "versions.txt").read_text()


def test_interrupt_is_an_abort() -> None:
    assert failing(KeyboardInterrupt()).exit_code == 1


@pytest.mark.parametrize(("args", "code", "text"), [
    (("nope",), 2, "No such command"),
    (("compile", "m.pt2", "--require", "lots"), 2, "not a percentage"),
    (("compile", "m.pt2", "--require", "120%"), 2, "not a percentage"),
    (("explain", "missing.pt2"), 1, "RF192"),
    (("check", "m.rf", "--device", "warp"), 1, "RF191 --device cannot be 'warp'"),
    (("check", "m.rf", "--device", "cuda:9"), 1, "RF104 there is no cuda:9"),
    (("bench", "run", "norms", "--shapes", "smoke", "--device", "warp"), 1, "RF191 --device cannot be 'warp'"),
    (("bench", "correctness", "--run", ".", "--device", "warp"), 1, "RF191 --device cannot be 'warp'"),
    (("compile", "missing.pt2", "-o", "no/such/folder/model.rf"), 1, "RF607"),
    (("bench", "correctness", "--build", "nowhere", "--target", "foo"), 1, "RF496"),
    (("explain", "missing.onnx"), 1, "RF192"),
    (("explain", "weights.safetensors"), 1, "RF192"),
    (("explain", "no_such_module_at_all:fn"), 1, "RF193"),
    (("explain", "json:loads"), 1, "RF193"),
    (("explain", "os:getcwd"), 1, "RF193"),
    (("bench", "run", "nope"), 1, "RF194"),
    (("bench", "run", "mha", "--shapes", "nope"), 1, "RF194"),
    (("bench", "run", "mha", "--baseline", "nope"), 1, "RF194"),
    (("bench", "report", "missing.jsonl"), 1, "RF196"),
    (("cache", "prune"), 2, "--older-than"),
    (("explain", "json:loads", "--html", "no/such/folder/page.html"), 1, "RF191"),
    (("tune", "json:loads", "--budget", "-1"), 2, "--budget"),
])
def test_bad_input(args: tuple[str, ...], code: int, text: str) -> None:
    r = invoke(*args)
    assert r.exit_code == code, r.output
    assert text in r.stderr and "Traceback" not in r.output


def test_files_that_are_none_are_told_without_a_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    junk = tmp_path / "junk.pt2"
    junk.write_bytes(b"junk")
    (tmp_path / "built.rf").write_bytes(b"PK")
    for args, code in ((("compile", str(tmp_path / "built.rf")), "inspect"),
                       (("explain", str(junk)), "RF192"), (("bench", "model", str(junk)), "RF196"),
                       (("bench", "report", str(junk)), "RF196"), (("bench", "compare", str(junk), str(junk)), "RF196"),
                       (("bench", "correctness", "--run", str(tmp_path / "none")), "RF194"),
                       (("explain", str(tmp_path / "JUNK.ONNX")), "RF192 no file")):
        done = CliRunner().invoke(cli, args)
        assert done.exit_code == 1 and code in done.stderr and "Traceback" not in done.stderr + caplog.text


@pytest.mark.parametrize("command", ["compile", "tune"])
def test_help_names_every_target(command: str) -> None:
    words = set(invoke(command, "--help").output.replace(",", " ").replace(";", " ").replace(".", " ").split())
    assert not {"cpu", "cuda", *TARGETS} - words


@pytest.mark.parametrize(("command", "option"), [("compile", "-o"), ("explain", "--html")])
def test_the_model_is_not_written_over(command: str, option: str, tmp_path: Path) -> None:
    model, other = tmp_path / "m.onnx", tmp_path / "link.onnx"
    model.write_bytes(b"a model")
    other.symlink_to(model)
    for output in (model, other):
        r = invoke(command, str(model), option, str(output))
        assert r.exit_code == 1 and "it is the model" in r.stderr and model.read_bytes() == b"a model"


def test_a_file_that_is_no_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"not a zip")
    r = invoke("explain", str(path))
    assert r.exit_code == 1 and "RF192" in r.stderr and "Traceback" not in r.output


def test_doctor_prints_versions_compilers_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_TARGET", "sm_80")
    r = invoke("doctor")
    for part in ("apache-tvm", "C++ compiler", "nvcc", "nvdisasm", "GPU", "REDFUSER_TARGET", "sm_80  (REDFUSER_TARGET)"):
        assert part in r.stdout
    found = json.loads(invoke("doctor", "--json").stdout)
    assert {"topic", "what", "status", "help"} == set(found[0])


def test_doctor_names_a_version_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from redfuser import doctor

    monkeypatch.setattr(doctor, "installed", lambda: {"python": "3.11.7", "torch": "2.13.0", "tilelang": "0.1.99",
                                                      "apache-tvm-ffi": "0.1.12"})
    r = invoke("doctor")
    assert r.exit_code == 1 and "pip install tilelang==0.1.15" in r.stdout


def test_a_bad_setting_is_a_coded_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_LOGS", "+acrff")
    r = invoke("doctor")
    assert r.exit_code == 1 and "RF191" in r.stderr


def test_cache_info_and_prune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from redfuser.cache import Cache, key_of

    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    Cache(tmp_path).put(key_of("x"), b"payload")
    assert "1 entries" in invoke("cache", "info").stdout
    assert "removed 0" in invoke("cache", "prune", "--older-than", "1").stdout
    assert invoke("cache", "prune", "--older-than", "-1").exit_code == 2 and "1 entries" in invoke("cache", "info").stdout
    assert "removed 1" in invoke("cache", "prune", "--all").stdout


def test_prune_touches_only_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from redfuser.cache import Cache, key_of

    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))
    cache, key = Cache(tmp_path), key_of("x")
    cache.put(key, b"payload")
    fresh = cache.path(key_of("fresh"))
    cache.put(fresh.name, b"payload")
    foreign = [tmp_path / "notes.txt", tmp_path / "v1" / "notes.txt", tmp_path / "v1" / key[:2] / "notes.txt",
               tmp_path / "v1" / key[:2] / ("f" * 64), tmp_path / "v1" / key[:2] / ".tmp-of-mine",
               tmp_path / "v1" / "other" / key, tmp_path / "v1" / "ab" / ("ab" * 32)]
    for path in foreign[:-1]:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    foreign[-1].parent.mkdir(exist_ok=True)
    foreign[-1].symlink_to(tmp_path / "notes.txt")
    for path in [*foreign[:-1], cache.path(key)]:
        os.utime(path, (1, 1))
    r = invoke("cache", "prune", "--older-than", "1")
    assert "removed 1 entries" in r.stdout and "damaged" not in r.output + caplog.text
    assert not cache.path(key).exists() and fresh.exists()
    assert "1 entries" in invoke("cache", "info").stdout
    assert "removed 1" in invoke("cache", "prune", "--all").stdout
    assert all(path.is_symlink() or path.read_text() == "mine" for path in foreign)


def test_json_says_what_the_text_says_to_every_reader() -> None:
    from dataclasses import replace

    from redfuser.report import Report
    from tests.unit.test_report import sample

    report = sample()
    data = json.loads(console.report_json(report), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["totals"] == {"opaque": 2, "roundings": 0, "bytes_saved": report.bytes_saved}
    assert data["coverage"] == {"cascades": 6, "fused": 5, "fraction": report.coverage} and Report.from_json(data) == report
    assert report.numerics is not None
    infinite = replace(report, numerics=replace(report.numerics, ratio=float("inf")))
    data = json.loads(console.report_json(infinite), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["numerics"]["ratio"] is None and data["numerics"]["passed"] is True


def test_bench_list_is_data() -> None:
    r = invoke("bench", "list", "mha", "--shapes", "paper", "--json")
    assert [json.loads(line)["case"] for line in r.stdout.splitlines()] == [f"mha/H{i}" for i in range(1, 10)]


def test_dry_run_measures_nothing() -> None:
    r = invoke("bench", "run", "mha", "--shapes", "H1,H2", "--dry-run")
    assert r.stdout == "mha/H1  redfuser, eager\nmha/H2  redfuser, eager\n"


def test_compare_exits_with_5_on_a_regression(tmp_path: Path) -> None:
    from tests.unit.test_bench import row

    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text(json.dumps(row("a", "redfuser", 1.0)) + "\n")
    new.write_text(json.dumps(row("a", "redfuser", 1.5)) + "\n")
    assert invoke("bench", "compare", str(old), str(new)).exit_code == 5
    assert invoke("bench", "compare", str(new), str(old)).exit_code == 0


def run(arguments: Sequence[str], within: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """The console script's own entry, in a process of its own and a folder of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(console.__file__).parents[2])}
    code = "import sys; sys.path.remove(''); from redfuser.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=within, env=environment, text=True, check=False,
                          **{"capture_output": True, **more})


def test_a_function_finds_its_neighbours_also_when_it_runs(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text("def model():\n    from beside import net\n    raise RuntimeError(net)\n")
    (tmp_path / "beside.py").write_text("net = 'found beside it'\n")
    assert "found beside it" in run(["explain", "-q", "near:model"], tmp_path).stderr


def test_a_folder_that_is_gone_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert working_folder() is None and lookup.project_folder() is None
    r = invoke("explain", "no_such_module_at_all:fn")
    assert r.exit_code == 1 and "RF193" in r.stderr


def test_closed_streams_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    console.complete_streams()
    with console.step("loading"):
        print("to nobody")
    assert sys.stdin.read() == ""


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m redfuser cache info {closed}"
    assert subprocess.run(["sh", "-c", command], env=os.environ | {"REDFUSER_CACHE_DIR": str(tmp_path)}, check=False,
                          cwd=Path(console.__file__).parents[2]).returncode == 0


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_what_the_machine_refuses_is_no_bug(error: BaseException) -> None:
    r = failing(error)
    assert r.exit_code == 1 and r.stderr.startswith("RF109 ") and "our bug" not in r.stderr


def test_a_full_standard_output(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        r = run(["cache", "info"], tmp_path, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert r.returncode == 1 and "RF109" in r.stderr


def test_a_bug_without_room_for_its_trace_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    r = failing(ZeroDivisionError("division by zero"))
    assert r.exit_code == 1 and "RF900" in r.stderr and "TMPDIR" in r.stderr


@pytest.mark.parametrize("command", [("compile", "missing.pt2"), ("build", "missing.rf")])
def test_a_model_does_not_take_a_devices_place(command: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    r = invoke(*command, "-o", str(pipe))
    assert r.exit_code == 1 and "RF607" in r.stderr and pipe.is_fifo()


@pytest.mark.parametrize(("variable", "value"), [
    ("TARGET", "sm_12"), ("CACHE_DIR", "{file}"), ("CACHE_DIR", "{file}/below"), ("TRACE", "{file}"), ("TUNING_RECORDS", "{file}.none"),
])
def test_doctor_says_which_settings_cannot_work(variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "file").write_text("")
    monkeypatch.setenv(f"REDFUSER_{variable}", value.format(file=file))
    r = invoke("doctor")
    assert r.exit_code == 1 and any(line.startswith(f"!!  REDFUSER_{variable} ") for line in r.stdout.splitlines())


def test_doctor_looks_where_the_build_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    from redfuser import doctor
    from redfuser.codegen import toolchain

    monkeypatch.setattr(toolchain, "find_nvcc", lambda: toolchain.Nvcc("/opt/cuda/bin/nvcc", "13.0.88"))
    monkeypatch.setattr("shutil.which", lambda name, *_: None)
    monkeypatch.setattr("redfuser.strategies.cpu.compiler", lambda: ("python", "-m", "ziglang", "cc"))
    found = {f.topic: f for f in doctor.examine()}
    assert found["nvcc"].what == "/opt/cuda/bin/nvcc  13.0.88"
    assert found["nvcc"].status == "note" and "RF453" in found["nvcc"].help, "no gcc for it"
    assert found["C compiler"].what.endswith("ziglang cc")
    assert found["C++ compiler"].status == "note"
