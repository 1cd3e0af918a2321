"""Build on a machine with compilers, measure on one without: artifacts, weights that stay behind, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from redfuser.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]


def test_built_here_measured_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redfuser.bench.build.THIN_BYTES", 1000)
    monkeypatch.setenv("REDFUSER_VERIFY", "0")  # of the same cases test_workloads checks the certificates
    for workload, shape in (("mha", "smoke-80"), ("models", "llama-decode-smoke")):
        built = CliRunner().invoke(cli, ["bench", "build", workload, "--shapes", shape, "--target", "cpu", "-q",
                                         "-o", str(tmp_path)])
        assert built.exit_code == 0, built.output
    assert (tmp_path / "mha-smoke-80.rf").exists() and (tmp_path / "models-llama-decode-smoke.rf.thin").exists()

    out = tmp_path / "out.jsonl"
    code = ("import sys\nfor m in ('tvm', 'tilelang', 'z3', 'rich', 'platformdirs'): sys.modules[m] = None\n"
            "sys.argv = ['redfuser', 'bench', 'run', 'all', '--shapes', 'smoke-80,smoke-64,llama-decode-smoke',\n"
            f"  '--baseline', 'eager', '--artifacts', {str(tmp_path)!r}, '--device', 'cpu', '--budget', '0.01', '--json', {str(out)!r}, '-q']\n"
            "from redfuser.cli.main import main\nmain()")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    rows = {(r["case"], r["variant"]): r for r in map(json.loads, out.read_text().splitlines())}
    for case in ("mha/smoke-80", "models/llama-decode-smoke"):
        assert rows[case, "redfuser"]["passed"], rows[case, "redfuser"]
    assert rows["mha/smoke-64", "redfuser"]["status"] == "missing"
