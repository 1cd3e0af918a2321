"""Kernels of the CPU target: loading from bytes, checks, outputs, operators."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from redfuser.artifact import KernelSpec
from redfuser.errors import ArtifactError, InputError
from redfuser.runtime import launcher, ops


def expected(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x, 1), x.exp().sum(1)


def test_call_and_into(cpu_spec: KernelSpec) -> None:
    kernel, x = launcher(cpu_spec), torch.randn(4, 8)
    assert kernel.route == "cpu"
    y, total = kernel(x)
    torch.testing.assert_close((y, total), expected(x))
    out = torch.zeros(4, 8), torch.zeros(4)
    kernel.into(x, *out)
    torch.testing.assert_close(out, expected(x))


def test_parameters_and_tensors_that_want_gradients_are_taken(cpu_spec: KernelSpec) -> None:
    x = torch.nn.Parameter(torch.randn(4, 8))
    torch.testing.assert_close(launcher(cpu_spec)(x)[0], torch.softmax(x.detach(), 1))


@pytest.mark.parametrize(("code", "x"), [
    ("RF504", torch.zeros(4, 8, dtype=torch.float64)), ("RF505", torch.zeros(8, 4)), ("RF505", torch.zeros(32)),
    ("RF506", torch.zeros(8, 4).T), ("RF502", [1.0])])
def test_bad_arguments(cpu_spec: KernelSpec, code: str, x: object) -> None:
    with pytest.raises(InputError, match=f"{code} argument 'x' of kernel softmax"):
        launcher(cpu_spec)(x)


def test_misaligned(cpu_spec: KernelSpec) -> None:
    spec = dataclasses.replace(cpu_spec, args=tuple(dataclasses.replace(a, align=64) for a in cpu_spec.args))
    with pytest.raises(InputError, match="RF507"):
        launcher(spec)(torch.zeros(33)[1:].view(4, 8))


def test_a_broken_shared_object_is_coded(cpu_spec: KernelSpec) -> None:
    with pytest.raises(ArtifactError, match="RF513"):
        launcher(dataclasses.replace(cpu_spec, binaries=(b"\x7fELF" + bytes(100),)))
    launch = dataclasses.replace(cpu_spec.launches[0], entry="absent")
    with pytest.raises(ArtifactError, match="RF513"):
        launcher(dataclasses.replace(cpu_spec, launches=(launch,)))


def test_operator_registers_once_and_has_a_fake(cpu_spec: KernelSpec) -> None:
    op = ops.register(cpu_spec)
    assert ops.register(cpu_spec) is op
    assert ops.register(dataclasses.replace(cpu_spec, name="other")) is not op
    x = torch.randn(4, 8)
    torch.testing.assert_close(op(x), expected(x))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y, total = op(torch.empty(4, 8))
        assert y.shape == (4, 8) and total.shape == (4,)
        with pytest.raises(InputError, match="RF505"):
            op(torch.empty(4, 9))
    torch.library.opcheck(op, (x,), test_utils=("test_schema", "test_faketensor"))


def test_what_a_compiler_leaves_is_no_launcher_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C++ compiler that ends with status 0 and leaves anything must not fill the store with it."""
    from redfuser.runtime import native

    for script in ("exit 0", 'for out; do [ "$last" = -o ] && echo text > "$out"; last=$out; done'):
        compiler = tmp_path / "c++"
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
        with pytest.raises(OSError):
            native._compile(str(compiler))
