"""compile and explain on models, as a user runs them: module:function, an exported program, coverage, saving, loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import redfuser
from redfuser.cli.main import cli
from redfuser.errors import InputError
from redfuser.report import Report

MODULE = '''
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.q, self.k, self.v = torch.nn.LayerNorm(32), *(torch.nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        h = self.norm(x)
        p = torch.softmax(self.q(h) @ self.k(h).mT / 32 ** 0.5, -1)
        return x + p @ self.v(h)

def block():
    return Block().eval(), (torch.randn(2, 24, 32),)

def talking():
    print("of the model's own")
    return block()

def raising():
    return torch.nn.Linear(4, 4), (torch.randn(2, 5),)

def branching():
    return lambda x: torch.nn.functional.gaussian_nll_loss(x, x, x.abs()), (torch.randn(2, 5),)

def farthest():
    def f(x):
        return (x - x.mean(-1, keepdim=True)).abs().argmax(-1)
    return f, (torch.randn(6, 40),)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


def test_explain_lists_every_cascade(folder: Path) -> None:
    r = invoke("explain", "some_models:block")
    assert r.exit_code == 0, r.output
    assert r.stdout.splitlines()[0].startswith("some_models:block  cpu  cascades ")
    report = Report.from_json(json.loads(invoke("explain", "some_models:block", "--json", "-q").stdout))
    assert len(report.fused) >= 2 and report.coverage == 1.0
    name = max(report.fused, key=lambda c: len(c.ops)).name
    detail = invoke("explain", "some_models:block", "--op", name).stdout
    assert "= max[l]" in detail and "finalize" in detail
    missing = invoke("explain", "some_models:block", "--op", "nope")
    assert missing.exit_code == 1 and "RF194" in missing.stderr


def test_compile_checks_saves_and_loads(folder: Path) -> None:
    torch.manual_seed(1)
    r = invoke("compile", "some_models:block", "-o", "block.rf", "--check", "--require", "100%")
    assert r.exit_code == 0, r.output
    assert "within the rule" in r.stdout
    assert "miss" not in (why := invoke("cache", "why", "block.rf").stdout) and "hit" in why
    loaded = redfuser.load("block.rf")
    import importlib.util

    spec = importlib.util.spec_from_file_location("some_models", folder / "some_models.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, args = module.block()
    with torch.no_grad():
        torch.testing.assert_close(loaded(*args), model(*args), rtol=1e-4, atol=1e-5)


def test_what_a_model_prints_is_no_data(folder: Path) -> None:
    done = invoke("explain", "some_models:talking", "--json", "-q")
    assert json.loads(done.stdout)["cascades"] and "of the model's own" in done.stderr


def test_an_exported_program(folder: Path) -> None:
    program = torch.export.export(torch.nn.Softmax(-1), (torch.randn(4, 40),))
    torch.export.save(program, folder / "model.pt2")
    r = invoke("explain", "model.pt2")
    assert r.exit_code == 0 and r.stdout.startswith("model.pt2  cpu  cascades 1: fused 1")
    x = torch.randn(4, 40)
    for path in ("model.pt2", folder / "model.pt2"):
        model = redfuser.compile(path, (x,), check=True)
        torch.testing.assert_close(model(x), torch.softmax(x, -1))
        assert model.report.model == "model.pt2" and redfuser.explain(path).model == "model.pt2"
    with pytest.raises(InputError, match="RF192"):
        redfuser.compile("another.pt2")


def test_a_refused_cascade_has_a_reason_and_fails_the_required_coverage(folder: Path) -> None:
    r = invoke("explain", "some_models:farthest")
    assert r.exit_code == 0 and "kept  RF2" in r.stdout
    r = invoke("compile", "some_models:farthest", "--require", "100%", "-o", "never.rf")
    assert r.exit_code == 3 and "RF195" in r.stderr and not (folder / "never.rf").exists()
    r = invoke("compile", "some_models:farthest", "--fallback", "error")
    assert r.exit_code == 1 and "RF411" in r.stderr


def test_torch_adds_nothing_to_an_error(folder: Path) -> None:
    """In a process of its own: torch's log goes to the stderr that there was when torch was imported."""
    errors = {"raising": "RF107", "branching": "RF118"}
    code = ("import sys\nfrom redfuser.cli.main import main\n"
            f"for name in {list(errors)}:\n"
            "    sys.argv = ['redfuser', 'explain', '-q', f'some_models:{name}']\n"
            "    try:\n        main()\n"
            "    except SystemExit as end:\n        print('ended', name, end.code, file=sys.stderr)\n")
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                       env={**os.environ, "PYTHONPATH": str(Path(redfuser.__file__).parents[1])})
    assert r.returncode == 0 and r.stdout == "", r.stderr
    lines = r.stderr.splitlines()
    assert len(lines) == 8, r.stderr
    for (name, error), said in zip(errors.items(), (lines[:4], lines[4:]), strict=True):
        assert said[0].startswith(error) and said[3] == f"ended {name} 1", r.stderr


def test_a_target_that_does_not_exist(folder: Path) -> None:
    r = invoke("explain", "some_models:block", "--target", "sm_12")
    assert r.exit_code == 1 and "RF496" in r.stderr
    r = invoke("explain", "some_models:block", "--target", "sm_90a,cpu")  # of compile's several
    assert r.exit_code == 1 and "RF496 one target at a time" in r.stderr and "--target sm_90a" in r.stderr
