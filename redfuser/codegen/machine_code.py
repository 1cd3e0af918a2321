"""Does machine code for Hopper keep its waits: of asynchronous products, and for the kernel before?

A warp group starts products (``HGMMA`` and its siblings) and goes on; ``gsb0`` on one of them ends a group of products, and
``WARPGROUP.DEPBAR.LE gsb0, N`` waits until at most N groups are under way. Until then nothing but a product into the very
same registers may touch an accumulator, and nothing may write the registers that a product reads its first operand from. Text
and PTX say so with ``wgmma.wait_group``; ptxas 13.0 has moved reads in front of it (decision 0011).

Read is nvdisasm's text. What may be under way is carried along every path of the control-flow graph: for each range of
registers how many groups have been ended since, at the least (-1: its own has not been). Where paths meet, what is under way
on one of them is; a wait under a predicate ends nothing.

A kernel that starts while the one before is at work has an ``ACQBULK`` (``griddepcontrol.wait``), and nothing in front of it
touches memory.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from redfuser.elf import code_of

LIMIT_S = 60.0
_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(\S+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
_LABEL = re.compile(r"([.$\w]+):\s*$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_REGISTER = re.compile(r"(?<![A-Z\w])R(\d+)(\.64)?")
_PLAIN = re.compile(r"[-~|!]*R(?:\d+|Z)\b[^\[]*$")
_PREDICATE = re.compile(r"!?U?P(?:\d+|T)\b")
_MEMORY = ("LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG")
"""Instructions on global memory, or on memory of no known kind."""
_MOST = 8
"""Groups that are told apart; no wait leaves more."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of nvdisasm's. ``guard`` is its predicate, empty without one."""

    address: int
    guard: str
    opcode: str
    operands: str

    def __str__(self) -> str:
        return f"{f'@{self.guard} ' if self.guard else ''}{self.opcode} {self.operands}".strip()

    @property
    def product(self) -> bool:
        return self.opcode[1:5] == "GMMA"

    @property
    def wait(self) -> int | None:
        """How many groups it leaves under way; None for what is no wait for products."""
        found = self.opcode.startswith("WARPGROUP.DEPBAR") and re.search(r"gsb0, (0x[0-9a-f]+|\d+)", self.operands)
        return int(found[1], 0) if found else None


@dataclass(frozen=True, slots=True)
class Code:
    """The instructions of a cubin, where its labels are among them, and where its sections begin."""

    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    sections: tuple[int, ...]


def parse(text: str) -> Code:
    """nvdisasm's text, without what is no instruction and no label."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    sections: list[int] = []
    for line in text.splitlines():
        if found := _LINE.match(line):
            instructions.append(Instruction(int(found[1], 16), found[2] or "", found[3], found[4]))
        elif named := _LABEL.match(line):
            labels[named[1]] = len(instructions)
            if named[1].startswith(".text."):
                sections.append(len(instructions))
    return Code(tuple(instructions), labels, tuple(sections) or (0,))


# -- registers ---------------------------------------------------------------------------------------------------------


def _mask(first: int, count: int) -> int:
    return ((1 << count) - 1) << first


@functools.lru_cache(maxsize=1 << 14)
def touched(opcode: str, operands: str) -> tuple[int, int]:
    """The registers that an instruction reads or writes, and those that it writes, as bits. No product's."""
    either = written = 0
    place = 0  # among the operands that are registers and nothing else
    first = True
    for operand in operands.split(", "):
        if not _PLAIN.match(operand):
            for found in _REGISTER.finditer(operand):  # an address
                either |= _mask(int(found[1]), 2 if found[2] else 1)
            first = first and _PREDICATE.match(operand) is not None
            place += not _PREDICATE.match(operand)
            continue
        if found_one := _REGISTER.search(operand):
            mask = _mask(int(found_one[1]), 2 if found_one[2] else _width(opcode, place))
            either |= mask
            if first and not _only_reads(opcode):
                written |= mask
        place, first = place + 1, False
    return either, written


def _only_reads(opcode: str) -> bool:
    """Instructions whose first register is read. Stores begin with an address."""
    name = opcode.partition(".")[0]
    return "SETP" in name or name in ("FCHK", "R2P", "R2B", "BAR", "WARPSYNC", "NANOSLEEP", "BRX", "JMX", "CALL", "RET")


@functools.lru_cache(maxsize=1 << 10)
def _width(opcode: str, place: int) -> int:
    """Registers of 32 bits that an operand is: number ``place`` of those that are no predicates."""
    name, *how = opcode.split(".")
    if name in ("LDSM", "STSM"):
        return int(how[-1]) if how[-1] in ("2", "4") else 1
    if name.startswith(("LD", "ST", "ATOM", "RED", "SYNCS")):
        return 4 if "128" in how else 2 if {"64", "F64"} & {*how} else 1
    if name == "CS2R":
        return 1 if "32" in how else 2
    if name == "IMAD":
        return 2 if ("WIDE" in how and place in (0, 3)) or ("HI" in how and place == 3) else 1
    if name in ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "RET", "BRX", "JMX", "CALL"):
        return 2
    if name in ("F2F", "F2I", "I2F", "FRND"):
        floats, whole = ([h for h in how if re.fullmatch(kind, h)] for kind in (r"B?F\d+", r"[SU]\d+"))
        ends = {"F2F": floats, "F2I": (whole or ["S32"]) + floats, "I2F": (floats or ["F32"]) + whole, "FRND": floats * 2}
        return 2 if ends[name][place:place + 1] in (["F64"], ["S64"], ["U64"]) else 1
    if name.endswith("MMA"):  # of single warps
        return 2 if place == 2 or (place != 1 and "F32" not in how and name == "HMMA") else 4
    return 1


@dataclass(frozen=True, slots=True)
class Flight:
    """A range of registers of a product under way: an accumulator, or its first operand."""

    first: int
    count: int
    accumulator: bool

    @property
    def mask(self) -> int:
        return _mask(self.first, self.count)

    def __str__(self) -> str:
        return f"R{self.first} to R{self.first + self.count - 1}"


@functools.lru_cache(maxsize=1 << 10)
def flights(opcode: str, operands: str) -> tuple[Flight, ...]:
    """What a product has under way: its accumulator, then its first operand where that is in registers. RZ is nobody's: nothing
    reads such a product's result."""
    shape, *types = opcode.split(".")[1:]
    columns = int(shape.split("x")[1])
    results, first, *others = operands.split(", ")
    found = []
    if name := _REGISTER.match(results):
        found.append(Flight(int(name[1]), columns // 4 if types[:1] == ["F16"] else columns // 2, True))
    if name := _REGISTER.match(first):
        found.append(Flight(int(name[1]), 4, False))
    for operand in others:  # what it adds to, where that is not what it writes
        if found and (name := _REGISTER.match(operand)) and int(name[1]) != found[0].first:
            found.append(Flight(int(name[1]), found[0].count, False))
    return tuple(found)


# -- paths -------------------------------------------------------------------------------------------------------------

Under = dict[Flight, int]
"""What is under way, and how many groups have been ended since, at the least."""


def lost_waits(text: str) -> tuple[str, ...]:
    """Every instruction of a disassembled cubin that may touch the registers of a product under way; empty when none does."""
    if "GMMA." not in text:
        return ()
    code = parse(text)
    starts = sorted({*code.sections, *code.labels.values(), *(i + 1 for i, s in enumerate(code.instructions) if _turns(s))})
    ends = dict(zip(starts, [*starts[1:], len(code.instructions)], strict=True))
    at: dict[int, Under] = {s: {} for s in code.sections}
    found: dict[int, str] = {}
    waiting = list(code.sections)
    while waiting:
        start = waiting.pop()
        if start >= len(code.instructions):
            continue
        under = dict(at[start])
        for index in range(start, ends[start]):
            if why := _step(code.instructions[index], under):
                found[index] = why
        for after in _next(code, ends[start]):
            known = at.get(after)
            joined = {**under, **(known or {})}
            joined.update((f, min(groups, joined[f])) for f, groups in under.items())
            if joined != known:
                at[after] = joined
                waiting.append(after)
    return tuple(f"{code.instructions[i].address:#06x} {code.instructions[i]}: {found[i]}" for i in sorted(found))


def _turns(s: Instruction) -> bool:
    """Does a block of instructions end here?"""
    return s.opcode.partition(".")[0] in ("BRA", "BRX", "JMP", "JMX", "EXIT", "RET", "CALL") or "COLLECTIVE" in s.opcode


def _next(code: Code, end: int) -> Iterator[int]:
    """Where a block that ends before ``end`` goes. What it calls comes back to the instruction behind; an indirect branch,
    whose targets are not shown, may go to any label."""
    last = code.instructions[end - 1]
    name = last.opcode.partition(".")[0]
    targets = [code.labels[t] for t in _TARGET.findall(last.operands) if t in code.labels]
    if name in ("BRX", "JMX"):
        targets = sorted(set(code.labels.values()))
    if _turns(last) and name != "RET":
        yield from targets
    always = last.guard in ("", "PT") and (name in ("EXIT", "RET", "BRX", "JMX") or (
        name in ("BRA", "JMP") and last.operands.startswith("`") and ".DIV" not in last.opcode))
    if not always and end not in code.sections and end < len(code.instructions):
        yield end


def _step(s: Instruction, under: Under) -> str:
    """Carry on what is under way; why the instruction may not stand here, or nothing."""
    if s.product:
        return _product(s, under)
    if (left := s.wait) is not None:
        if s.guard in ("", "PT"):
            for f in [f for f, groups in under.items() if groups >= left]:
                del under[f]
        return ""
    if not under:
        return ""
    either, written = touched(s.opcode, s.operands)
    for f in under:
        if f.mask & (either if f.accumulator else written):
            return f"a product {'into' if f.accumulator else 'of'} {f} may be under way"
    return ""


def _product(s: Instruction, under: Under) -> str:
    new = flights(s.opcode, s.operands)
    why = next((f"another product {'into' if f.accumulator else 'of'} {f} may be under way" for f in under for n in new
                if f != n and f.mask & n.mask and (f.accumulator or n.accumulator)), "")
    under.update(dict.fromkeys(new, -1))
    if "gsb0" in s.operands:
        for f, groups in under.items():
            if s.guard in ("", "PT") or groups < 0:
                under[f] = min(groups + 1, _MOST)
    return why


# -- a cubin -----------------------------------------------------------------------------------------------------------


def has_products(cubin: bytes) -> bool:
    """Is there a product of a warp group in the code? An instruction has 16 bytes, its number in the lowest 12 bits."""
    return any(low & 0xFC == 0xF0 and high & 0xB == 0x9 for code in code_of(cubin)
               for low, high in zip(code[::16], code[1::16], strict=True))


def touched_early(text: str) -> str:
    """The first instruction of a disassembled kernel that touches memory in front of its wait for the kernel before, or that
    there is no wait; empty when all is well."""
    for s in parse(text).instructions:
        if s.opcode == "ACQBULK":
            return ""
        if s.opcode.partition(".")[0] in _MEMORY or s.opcode.startswith(("UTMA", "UBLK")):
            return f"{s.address:#06x} {s}: memory is touched before the wait for the kernel before"
    return "there is no wait for the kernel before"


def lost_wait(cubin: bytes, nvdisasm: str, behind: bool = False) -> tuple[str, str]:
    """Why a cubin for Hopper is not to be run, and what hindered the look at it; both empty for most. behind: its kernel starts
    while another is at work."""
    products = has_products(cubin)
    if not products and not behind:
        return "", ""
    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            done = subprocess.run([nvdisasm, "--print-code", "--no-dataflow", str(path)], capture_output=True, text=True,
                                  errors="replace", stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", f"nvdisasm did not end well: {error}"
    if done.returncode != 0 or (products and "GMMA." not in done.stdout):
        return "", f"nvdisasm ended with status {done.returncode} and showed no products: {done.stderr[-400:]}"
    if behind and (early := touched_early(done.stdout)):
        return early, ""
    lost = lost_waits(done.stdout)
    return (f"{len(lost)} instructions do not wait for a product, the first at {lost[0]}" if lost else ""), ""
