"""What a compiler wrote is read without trust: kind, architecture, entries, and nothing outside the file."""

from __future__ import annotations

import random
import struct

import pytest

from redfuser import elf


def made(functions: tuple[str, ...] = ("rows_kernel",), sm: int = 90, machine: int = elf.CUDA, kind: int = elf.EXECUTABLE) -> bytes:
    """A small ELF file with a symbol table, as ptxas lays it out."""
    names = b"\0" + b"".join(f.encode() + b"\0" for f in functions)
    symbols, at = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0), 1
    for f in functions:
        symbols += struct.pack("<IBBHQQ", at, 0x12, 0, 1, 0, 64)
        at += len(f) + 1
    body = 64
    table = body + len(names) + len(symbols)
    header = struct.pack("<4sBBBBB7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 65, 8, kind, machine, 1, 0, 0, table,
                         sm << 8 | 0x6000004, 64, 56, 0, 64, 3, 1)
    sections = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, body, len(names), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, body + len(names), len(symbols), 1, 1, 8, 24)
    return header + names + symbols + sections


def test_a_cubin_is_for_its_architecture_and_has_its_entries() -> None:
    data = made(("rows_kernel", "total_kernel"))
    assert elf.read(data) == elf.Elf(elf.EXECUTABLE, elf.CUDA, 90, frozenset({"rows_kernel", "total_kernel"}),
                                       elf.read(data).flags)
    assert elf.cubin_fault(data, "sm_90a", ["total_kernel", "rows_kernel"]) == ""
    assert "sm_90, not sm_80" in elf.cubin_fault(data, "sm_80", ["rows_kernel"])
    assert "without other" in elf.cubin_fault(data, "sm_90a", ["rows_kernel", "other"])
    assert "not CUDA's" in elf.cubin_fault(made(machine=62), "sm_90a", ["rows_kernel"])


def test_a_library_exports_its_function() -> None:
    data = made(("__tvm_ffi_rows",), machine=62, kind=elf.SHARED)
    assert elf.library_fault(data, "__tvm_ffi_rows") == ""
    assert "without" in elf.library_fault(data, "__tvm_ffi_other")
    assert "no shared object" in elf.library_fault(made(("__tvm_ffi_rows",)), "__tvm_ffi_rows")


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"nonsense" * 100, b"\x7fELF" + bytes(60), made()[:-1], made()[:70]])
def test_garbage_is_named(data: bytes) -> None:
    assert elf.cubin_fault(data, "sm_90a", ["rows_kernel"])


def test_no_damage_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, whole = random.Random(0), made(("rows_kernel", "total_kernel"))
    for _ in range(4000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        assert isinstance(elf.cubin_fault(bytes(data[:rng.choice((len(data), rng.randrange(len(data))))]), "sm_90a", ["a"]), str)
    monkeypatch.setattr(elf, "MAX_BYTES", 100)
    assert "no kernel is larger" in elf.cubin_fault(whole, "sm_90a", [])
