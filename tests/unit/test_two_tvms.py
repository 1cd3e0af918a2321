"""A process that imports TileLang before or after a compile gets a coded error that says what to do, never a crash."""

from __future__ import annotations

import subprocess
import sys

FIRST = """
import sys, types
sys.modules["tilelang"] = types.ModuleType("tilelang")   # as if the user had imported it
from redfuser.errors import RedFuserError
try:
    import redfuser.tvm_compat
except RedFuserError as error:
    print(error.code, error.help)
"""
LATER = """
import importlib.util
import redfuser.tvm_compat as compat
assert importlib.util.find_spec("tilelang") is not None   # asking is harmless
try:
    import tilelang
except ImportError as error:
    print(error.code, error.help)
print(compat.relax.const(1.0, "float32"))
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tilelang_first_is_refused_with_a_way_out() -> None:
    assert run(FIRST).startswith("RF105 compile in a process of its own")


def test_tilelang_later_is_refused_and_compiling_goes_on() -> None:
    first, second = run(LATER).splitlines()
    assert first.startswith("RF105")
    assert second.startswith("R.const(1")
