"""CPU kernels are kept in the store, looked at when they are made and when they are read, and failures are remembered."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from redfuser.cache import Cache
from redfuser.errors import BuildError
from redfuser.strategies import cpu, realise
from tests import fused_examples as examples

PROGRAM = realise(examples.softmax(4, 40), "single", 1)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path / "store"))
    return Cache(tmp_path / "store")


def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_compile", lambda *a: pytest.fail("was built again"))


def test_built_once(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = cpu.build(PROGRAM)
    (path, _, _), = store.entries()
    text = cpu._compile
    untouched(monkeypatch)
    assert cpu.build(PROGRAM) == spec
    monkeypatch.setattr(cpu, "_compile", text)
    store.put(path.name, b"\x7fELF of something else")  # its hash is right, what it holds is not
    assert cpu.build(PROGRAM).binaries[0].startswith(b"\x7fELF\x02") and len(store.entries()) == 1


def test_a_refusal_is_remembered_and_a_failing_machine_is_not(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("LLVM says no")

    def short(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("redfuser.tvm_compat.build_scalar", short)
    with pytest.raises(BuildError, match="No space left"):
        cpu.build(PROGRAM)
    assert not store.entries()
    monkeypatch.setattr("redfuser.tvm_compat.build_scalar", refuse)
    with pytest.raises(BuildError, match=r"RF441.*\n.*LLVM says no"):
        cpu.build(PROGRAM)
    untouched(monkeypatch)
    with pytest.raises(BuildError, match=r"RF441.*\n.*LLVM says no"):
        cpu.build(PROGRAM)


@pytest.mark.parametrize("leaves", [': > "$1"', 'echo text > "$1"', 'cc -shared -fPIC -x c /dev/null -o "$1"', "true"])
def test_what_a_linker_leaves_is_looked_at(store: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str) -> None:
    linker = tmp_path / "linker"
    linker.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\nwhile [ "$1" != -o ]; do shift; done; shift\n{leaves}\n')
    linker.chmod(0o755)
    real = cpu.compiler()
    if real is None or subprocess.run(["sh", "-c", "command -v cc"], capture_output=True, check=False).returncode:
        pytest.skip("no C compiler")
    monkeypatch.setattr(cpu, "compiler", lambda: (str(linker),))
    with pytest.raises(BuildError) as caught:
        cpu.build(PROGRAM)
    assert caught.value.code in ("RF460", "RF441") and not store.entries()
