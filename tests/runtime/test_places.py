"""Where files lie and tensors are made: stores that cannot be written or run from, odd targets of save, torch's default device."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import redfuser
from redfuser.cache import Cache
from redfuser.errors import RedFuserError
from redfuser.runtime import native


@pytest.fixture(scope="module")
def compiled() -> Any:
    return redfuser.compile(lambda x: torch.softmax(x, -1), (torch.randn(1, 1 << 18),), target="cpu")


def test_the_default_device_is_not_the_models(compiled: Any, tmp_path: Path, nowhere: None) -> None:
    assert any(arg.role == "workspace" for spec in compiled.kernels.values() for arg in spec.args)
    x = torch.randn(1, 1 << 18, device="cpu")
    want = torch.softmax(x, -1)
    compiled.save(tmp_path / "m.rf")
    for model in (compiled, redfuser.load(tmp_path / "m.rf").to("cpu")):
        torch.testing.assert_close(model(x), want)
    layer = redfuser.compile(torch.nn.LayerNorm(64, device="cpu").eval(), (torch.randn(4, 64, device="cpu"),), target="cpu")
    layer.save(tmp_path / "l.rf")
    assert redfuser.load(tmp_path / "l.rf")(torch.randn(4, 64, device="cpu")).device.type == "cpu"


@pytest.mark.parametrize("odd", ["a file in its place", "no room"])
def test_a_store_that_takes_no_file_is_passed_by(compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    (binary,) = next(iter(compiled.kernels.values())).binaries
    monkeypatch.setattr(native, "_loaded", {})
    store, make = Cache(tmp_path), native.tempfile.mkstemp
    if odd == "no room":
        def full(*args: Any, dir: Any = None, **more: Any) -> Any:
            if Path(dir).is_relative_to(tmp_path):
                raise OSError(28, "No space left on device")
            return make(*args, dir=dir, **more)

        monkeypatch.setattr(native.tempfile, "mkstemp", full)
    else:
        (tmp_path / "loading").write_text("")
    assert native.load_module(binary, store) is not None


def test_the_same_kernel_is_mapped_once(compiled: Any, tmp_path: Path) -> None:
    def maps() -> int:
        return sum(".so" in line for line in Path("/proc/self/maps").read_text().splitlines())

    compiled.save(tmp_path / "m.rf")
    x = torch.randn(1, 1 << 18)
    redfuser.load(tmp_path / "m.rf")(x)
    before = maps()
    for _ in range(3):
        redfuser.load(tmp_path / "m.rf")(x)
    gc.collect()
    assert maps() == before


def test_a_saved_file_is_as_others_may_read_it(compiled: Any, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        compiled.save(path := tmp_path / "m.rf")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    (link := tmp_path / "link.rf").symlink_to(path)
    compiled.save(link)
    assert link.is_symlink()
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(RedFuserError, match="RF607"):
        compiled.save(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("others", [3, [3]])
def test_what_is_saved_beside_it_is_compiled(compiled: Any, tmp_path: Path, others: Any) -> None:
    with pytest.raises(RedFuserError, match="RF607"):
        compiled.save(tmp_path / "m.rf", others)


@pytest.mark.parametrize("device", ["foo", []])
def test_a_device_that_is_none(compiled: Any, device: Any) -> None:
    with pytest.raises(RedFuserError, match="RF503"):
        compiled.prepare(device)
