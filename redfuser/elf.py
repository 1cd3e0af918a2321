"""What a compiler wrote, looked at before anything is made of it: an ELF file of the right kind, with the entries we named.

A compiler that is wrapped, killed or out of disk may end with status 0 and leave anything. Nothing here trusts a number of
the file: every offset is held against its length.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_BYTES = 64 << 20
"""No kernel of ours is larger; a file that is was not made from our text."""

EXECUTABLE, SHARED = 2, 3
CUDA, AMD = 190, 224
MACHINES = {"gfx90a": 0x3F, "gfx942": 0x4C}
"""AMD's numbers of architectures in the flags of an ELF file."""
_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_FUNCTION = 2


@dataclass(frozen=True, slots=True)
class Elf:
    """A 64-bit little-endian ELF file: its ``kind`` (:data:`EXECUTABLE`, :data:`SHARED`), ``machine``, the CUDA
    architecture it is for (90; 0 where that is not known), and the functions it defines. flags: AMD's
    architecture among them."""

    kind: int
    machine: int
    sm: int
    functions: frozenset[str]
    flags: int = 0


def read(data: bytes) -> Elf:
    """Parse; raises ValueError with what is wrong."""
    abi, kind, machine, flags, table = _sections(data)
    sm = (flags >> 8 if abi >= 8 else flags) & 0xFF if machine == CUDA else 0
    return Elf(kind, machine, sm, frozenset(_functions(data, table)), flags)


def code_of(data: bytes) -> list[bytes]:
    """What is in the sections that hold instructions; raises ValueError as :func:`read`."""
    return [data[offset:offset + length] for _, type_, flags, _, offset, length, *_ in _sections(data)[-1]
            if type_ == 1 and flags & 4]  # SHT_PROGBITS, SHF_EXECINSTR


def _sections(data: bytes) -> tuple[int, int, int, int, list[tuple[int, ...]]]:
    """The header's ABI version, kind, machine and flags, and the section table, which lies in the file."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes; no kernel is larger than {MAX_BYTES}")
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        raise ValueError(f"no ELF file ({len(data)} bytes that begin with {data[:8]!r})")
    (_, width, order, _, _, abi, kind, machine, _, _, _, sections, flags, _, _, _, size, count, _) = _HEADER.unpack_from(data)
    if (width, order) != (2, 1):
        raise ValueError("not a 64-bit little-endian ELF file")
    if size != _SECTION.size or not count or sections + count * size > len(data):
        raise ValueError("an ELF file that is cut off: its section table lies outside")
    table = [_SECTION.unpack_from(data, sections + i * size) for i in range(count)]
    for _, type_, _, _, offset, length, *_ in table:
        if type_ != 8 and offset + length > len(data):  # SHT_NOBITS takes no room
            raise ValueError("an ELF file that is cut off: a section lies outside")
    return abi, kind, machine, flags, table


def _functions(data: bytes, table: list[tuple[int, ...]]) -> list[str]:
    found = []
    for _, type_, _, _, offset, length, link, *_ in table:
        if type_ not in _SYMBOL_TABLES or link >= len(table):
            continue
        names = data[table[link][4]:table[link][4] + table[link][5]]
        for start in range(offset, offset + length - _SYMBOL.size + 1, _SYMBOL.size):
            name, info, _, section, _, size = _SYMBOL.unpack_from(data, start)
            if info & 15 == _FUNCTION and section and size and (end := names.find(b"\0", name)) >= 0:
                found.append(names[name:end].decode("ascii", "replace"))
    return found


def cubin_fault(data: bytes, arch: str, entries: list[str]) -> str:
    """Why ``data`` is not the cubin for ``arch`` (``sm_90a``) that defines ``entries``; empty when it is."""
    try:
        elf = read(data)
    except ValueError as error:
        return str(error)
    wanted = int("".join(c for c in arch if c.isdigit()))
    if elf.machine != CUDA:
        return f"an ELF file for machine {elf.machine}, not CUDA's ({CUDA})"
    if elf.sm != wanted:
        return f"a cubin for sm_{elf.sm}, not {arch}"
    missing = [name for name in entries if name not in elf.functions]
    return f"a cubin without {', '.join(missing)}" if missing else ""


def code_object_fault(data: bytes, arch: str, entries: list[str]) -> str:
    """Why ``data`` is not AMD's code object for ``arch`` (``gfx942``) that defines ``entries``; empty when it is."""
    try:
        elf = read(data)
    except ValueError as error:
        return str(error)
    if elf.machine != AMD:
        return f"an ELF file for machine {elf.machine}, not AMD's ({AMD})"
    if elf.flags & 0xFF != MACHINES.get(arch):
        return f"a code object of AMD's machine {elf.flags & 0xFF:#x}, not {arch}"
    missing = [name for name in entries if name not in elf.functions]
    return f"a code object without {', '.join(missing)}" if missing else ""


def library_fault(data: bytes, symbol: str) -> str:
    """Why ``data`` is not a shared object that defines the function ``symbol``; empty when it is."""
    try:
        elf = read(data)
    except ValueError as error:
        return str(error)
    if elf.kind != SHARED:
        return "an ELF file that is no shared object"
    return "" if symbol in elf.functions else f"a shared object without {symbol}"
