"""What is the user's to know or to mend is told as that: their own errors, a missing extra, training mode, threads, traces."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn
from torch.nn import functional

import redfuser
from redfuser.cli.main import cli
from redfuser.errors import InputError, RedFuserError

X = torch.randn(4, 40)

BROKEN = '''
import warnings

def raising():
    return 1 / 0

def leaving():
    raise SystemExit(3)

def needs(x):
    return x

def inside():
    return helper(3)

def helper(x):
    raise TypeError("helper() got\\nsomething")

def fine():
    import torch
    return torch.nn.Softmax(-1), (torch.randn(4, 40),)

def forward():
    import torch
    class Net(torch.nn.Module):
        def forward(self, x):
            warnings.warn("mine", FutureWarning)
            return torch.softmax(x @ x, -1)
    return Net().eval(), (torch.randn(4, 40),)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_models.py").write_text(BROKEN)
    (tmp_path / "their_broken.py").write_text("import their_models\nx = {}['key']\n")
    (tmp_path / "their_import.py").write_text("from their_models import no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("their_models", "their_broken", "their_import"):
        sys.modules.pop(name, None)


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


# -- their own code ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "code", "text"), [
    ("their_models:raising", "RF107", "their_models.py:5 in raising"),
    ("their_models:leaving", "RF107", "SystemExit"),
    ("their_models:inside", "RF107", "their_models.py:17 in helper"),
    ("their_models:forward", "RF107", "in forward"),
    ("their_models:needs", "RF193", "without arguments"),
    ("their_models:nothing", "RF193", "nothing"),
    ("their_broken:f", "RF107", "their_broken.py:2"),
    ("their_import:f", "RF107", "their_import.py:1"),
    ("transformerz_missing:f", "RF193", "transformerz_missing"),
])
def test_their_errors_are_shown_as_theirs(folder: Path, spec: str, code: str, text: str) -> None:
    r = invoke("explain", spec, "-q")
    assert r.exit_code == 1 and r.stderr.startswith(code) and text in r.stderr, r.stderr
    assert "Traceback" not in r.output and "bug" not in r.output


def test_the_original_exception_is_chained() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) @ x

    with pytest.raises(InputError, match=r"RF107.*test_users\.py") as caught:
        redfuser.explain(f, (X,))
    assert isinstance(caught.value.__cause__, RuntimeError) and "shapes cannot be multiplied" in str(caught.value)

    def g(x: torch.Tensor) -> torch.Tensor:  # right for torch, and nothing that can be exported
        return x if x.sum().item() > 0 else -x

    with pytest.raises(InputError, match="RF118"):
        redfuser.explain(g, (X,))


@pytest.mark.parametrize(("args", "kwargs", "code"), [
    (5, None, "RF117"), ({"x": X}, None, "RF117"), ("x", None, "RF117"), (None, [1], "RF117"), ((X, X), None, "RF107"),
    ((), None, "RF107"), ((None,), None, "RF107"), ((X,), {"q": 1}, "RF107"),
])
def test_odd_examples_are_coded(args: Any, kwargs: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        redfuser.explain(lambda x: torch.softmax(x, -1), args, kwargs)
    assert caught.value.code == code


def test_odd_options_are_coded() -> None:
    for options, code in (({"target": "sm_12"}, "RF496"), ({"target": 5}, "RF496"), ({"casts": "zz"}, "RF191")):
        with pytest.raises(InputError, match=code):
            redfuser.explain(torch.nn.Softmax(-1), (X,), **options)
        with pytest.raises(InputError, match=code):
            redfuser.kernel(torch.nn.Softmax(-1)).bind(X, **options)


# -- warnings ----------------------------------------------------------------------------------------------------------


def test_no_warning_but_theirs() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            warnings.warn("of the model", FutureWarning, stacklevel=1)
            return functional.rms_norm(x, (40,)), torch.histc(x)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        redfuser.explain(Net().eval(), (X,))
    assert {str(w.message) for w in seen} == {"of the model"}


# -- training mode -----------------------------------------------------------------------------------------------------


class Reads(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(torch.softmax(x, -1), self.p, self.training)


@pytest.mark.parametrize(("model", "says"), [
    (nn.Sequential(nn.Softmax(-1), nn.Dropout(0.1)), "at random"),
    (Reads(0.5), "at random"),
    (Reads(0.0), "Reads reads"),
    (lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.2), "at random"),
    (nn.Sequential(nn.Softmax(-1), nn.Dropout(0.1)).eval(), ""),
    (nn.Sequential(nn.Softmax(-1), nn.Dropout(0.0)), ""),
    (nn.Softmax(-1), ""),
    (Reads(0.5).eval(), ""),
])
def test_training_mode_is_told(model: Any, says: str) -> None:
    found = [n.text for n in redfuser.explain(model, (X,)).notes if n.code == "RF108"]
    assert len(found) == bool(says) and says in "".join(found)


def test_training_mode_is_a_warning_of_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_DISABLE", "1")
    with pytest.warns(RuntimeWarning, match="RF108.*eval"):
        redfuser.compile(Reads(0.5), (X,), fallback="allow")
    with pytest.raises(InputError, match="RF114"):  # its statistics would be lost
        redfuser.compile(nn.BatchNorm1d(40), (X,))


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_hold_for_the_functions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the command line alone; explain says what compile would do."""
    monkeypatch.setenv("REDFUSER_DISABLE", "1")
    monkeypatch.setenv("REDFUSER_LOGS", "+pipeline")
    logger = logging.getLogger("redfuser.pipeline")
    before, logger.level = logger.level, logging.WARNING
    try:
        report = redfuser.explain(nn.Softmax(-1), (X,))
        assert [c.reason.code for c in report.refused if c.reason] == ["RF390"] and not report.fused
        assert redfuser.kernel(nn.Softmax(-1)).bind(X).report().refused and logger.level == logging.DEBUG
    finally:
        logger.level = before
    monkeypatch.setenv("REDFUSER_LOGS", "+pipelin")
    with pytest.raises(InputError, match=r"RF191.*REDFUSER_LOGS"):
        redfuser.explain(nn.Softmax(-1), (X,))


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_are_followed_in_place_and_not_by_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_DISABLE", "1")
    model = nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 8), nn.Softmax(-1)).eval()
    compiled = redfuser.compile(model, (X,), fallback="allow")

    def same() -> bool:
        with torch.no_grad():
            return torch.allclose(compiled(X), model(X), atol=1e-5)

    assert same()
    with torch.no_grad():
        model[0].weight.mul_(3), model[1].bias.add_(1)
    assert same()
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
    assert same()
    model[0].weight = nn.Parameter(torch.randn(40))
    assert not same(), "if this is followed now, say so in docs/cli.md"


# -- what is missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("package", "command"), [("tvm", "explain their_models:fine"), ("mpmath", "algebra cascade.txt")])
def test_a_missing_extra_is_named(folder: Path, package: str, command: str) -> None:
    (folder / "cascade.txt").write_text("cascade c(x: f32[L]) over l\n  m = max[l] x[l]\n")
    code = (f"import sys\nsys.modules[{package!r}] = None\nsys.argv = {['redfuser', *command.split()]!r}\n"
            "from redfuser.cli.main import main\nmain()")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(Path(redfuser.__file__).parents[1])})
    assert done.returncode and f"RF106 {package} is not installed" in done.stderr, done.stderr
    assert "pip install 'redfuser[compile]'" in done.stderr and "bug" not in done.stderr


def test_what_cannot_be_checked_is_said_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redfuser.pipeline.run", lambda *a, **k: pytest.fail("was compiled"))
    (folder / "x.onnx").write_bytes(b"whatever")
    r = invoke("compile", "x.onnx", "--check")
    assert r.exit_code == 1 and "RF516" in r.stderr


def test_explain_promises_no_target_that_compile_refuses() -> None:
    for f in (redfuser.explain, redfuser.compile):
        with pytest.raises(RedFuserError, match="RF496"):
            f(lambda x: torch.softmax(x, -1), (X,), target="gfx906")


# -- threads -----------------------------------------------------------------------------------------------------------


def test_compiles_of_several_threads() -> None:
    found: dict[int, Any] = {}

    def one(i: int) -> None:
        try:
            found[i] = len(redfuser.explain(lambda x: torch.softmax(x * i, -1), (torch.randn(3, 20 + i),)).fused)
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(1, 5)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert found == {1: 1, 2: 1, 3: 1, 4: 1}


# -- traces ------------------------------------------------------------------------------------------------------------


def test_a_trace_holds_every_stage_and_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_TRACE", str(tmp_path / "traces"))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((40, 40), 0.123456))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ self.w, -1)

    report = redfuser.explain(Net().eval(), (X,), target="sm_90a")
    folder, = (tmp_path / "traces").iterdir()
    assert folder.name == "0001-Net-sm_90a"
    files = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert {"import.txt", "report.txt", "report.json"} <= set(files)
    stages = [name.split("/")[1] for name in files if "/" in name]
    assert {"1-cascade.txt", "2-fused.txt", "3-program.txt"} <= set(stages) and any("source.py" in s for s in stages)
    assert json.loads(files["report.json"]) == json.loads(json.dumps(report.to_json())) and "softmax" in files["import.txt"]
    assert not any("0.123456" in text or "1234560" in text for text in files.values())
    with pytest.raises(RedFuserError):
        redfuser.explain(lambda x: x.item(), (torch.ones(()),))
    assert "RF1" in (tmp_path / "traces").joinpath(*sorted(p.name for p in (tmp_path / "traces").iterdir())[-1:],
                                                   "error.txt").read_text()
    monkeypatch.setenv("REDFUSER_TRACE", "/dev/null/x")
    with pytest.raises(InputError, match=r"RF191.*REDFUSER_TRACE"):
        redfuser.explain(nn.Softmax(-1), (X,))


# -- the wheel ---------------------------------------------------------------------------------------------------------


def test_a_wheel_takes_no_name_of_others(tmp_path: Path) -> None:
    """As installed: the workloads under our own name, and somebody else's package of theirs beside them."""
    root = Path(redfuser.__file__).parents[1]
    (tmp_path / "redfuser").symlink_to(root / "redfuser")
    (tmp_path / "redfuser_workloads").symlink_to(root / "workloads")
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "__init__.py").write_text("raise ImportError('of somebody else')")
    code = ("from redfuser.cli.cases import choose\nfound = choose('norms', 'smoke')\nimport workloads\n"
            "print(len(found), 'redfuser_workloads' in workloads.__file__)")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PATH": "", "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.split()[1] == "True", done.stderr


def test_the_packages_of_a_wheel() -> None:
    setuptools = pytest.importorskip("setuptools")
    root = Path(redfuser.__file__).parents[1]
    code = ("import setuptools\nfrom distutils.core import run_setup\nd = run_setup('setup.py', stop_after='init')\n"
            "print(*sorted(d.packages))")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=root, capture_output=True, text=True, check=False)
    found = done.stdout.split()
    assert setuptools and "redfuser_workloads" in found and "workloads" not in found, done.stderr
    wanted = {".".join(p.parent.relative_to(root).parts) for p in (root / "redfuser").rglob("__init__.py")}
    assert wanted == {p for p in found if not p.startswith("redfuser_workloads")}
