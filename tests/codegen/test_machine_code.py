"""Machine code that keeps its waits and machine code that does not: small pieces of nvdisasm's text, what ptxas once wrote, and
a kernel that is built here."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from redfuser.cache import Cache
from redfuser.codegen import toolchain
from redfuser.codegen.build import Request, cache_key, try_build
from redfuser.codegen.machine_code import has_products, lost_wait, lost_waits, touched, touched_early
from redfuser.codegen.pool import BuildFailure, Pool
from redfuser.elf import code_of
from tests.codegen.test_build import GEMM, GEMM_ARGS

NVCC = toolchain._find_nvcc(("", "", os.environ.get("PATH", "")))
needs_compilers = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None or NVCC is None,
                                     reason="tilelang or nvcc is not installed")
needs_disassembler = pytest.mark.skipif(NVCC is None or not NVCC.disassembler, reason="nvdisasm is not installed")


def sass(body: str) -> str:
    """nvdisasm's text of ``body``: an instruction or a label a line."""
    lines = [line.strip() for line in body.strip().splitlines()]
    at = iter(range(len(lines)))
    return ".text.kernel:\n" + "\n".join(line if line.endswith(":") else f"        /*{16 * next(at):04x}*/    {line} ;" for line in lines)


def found(body: str) -> list[str]:
    """The opcodes of what does not wait."""
    return [re.sub(r"^\S+ (@\S+ )?", "", line).split()[0] for line in lost_waits(sass(body))]


@pytest.mark.parametrize("before, why", [
    ("LDC R1, c[0x0][0x28]\nS2R R5, SR_TID.X\nLDS R4, [R5]", ""), ("LDG.E.CONSTANT R67, desc[UR4][R20.64]", "0x0010 LDG.E.CONSTANT"),
    ("@!P1 LDG.E R67, desc[UR4][R20.64]", "@!P1 LDG.E"), ("STG.E desc[UR4][R6.64], R3", "STG.E"), ("LD.E R3, [R2.64]", "LD.E"),
    ("LDGSTS.E.BYPASS.128 [R47], desc[UR6][R12.64]", "LDGSTS"), ("UTMALDG.2D [UR8], [UR4]", "UTMALDG"), ("RED.E.ADD R2, R3", "RED")])
def test_nothing_touches_memory_before_the_wait_for_the_kernel_before(before: str, why: str) -> None:
    found = touched_early(sass(f"IADD3 R1, R1, R2\n{before}\nACQBULK\nLDG.E R3, desc[UR4][R20.64]\nEXIT"))
    assert why in found and bool(found) == bool(why), found
    assert "no wait" in touched_early(sass("IADD3 R1, R1, R2\nEXIT"))


def test_what_ptxas_asked_for_in_front_of_the_wait() -> None:
    """Of a merge of 16 splits, `const float* __restrict__ m_part`, whose text has the wait first: two of the splits' maxima."""
    wrote = """
        S2R R4, SR_TID.X
        LDC.64 R20, c[0x0][0x210]
        S2R R71, SR_CTAID.X
        SHF.R.S32.HI R0, RZ, 0x5, R4
        ISETP.GT.AND P1, PT, R5, 0x4, PT
        IMAD.WIDE R20, R6, 0x4, R20
        @!P1 LDG.E.CONSTANT R67, desc[UR4][R20.64]
        @!P1 LDC.64 R46, c[0x0][0x230]
        @!P1 LDG.E.CONSTANT R60, desc[UR4][R20.64+0x28]
        ACQBULK
        @!P1 LDG.E.CONSTANT R53, desc[UR4][R20.64+0x50]
        EXIT
    """
    assert touched_early(sass(wrote)).startswith("0x0060 @!P1 LDG.E.CONSTANT R67")
    kept = [line for line in wrote.splitlines() if "R67" not in line and "R60" not in line]
    assert touched_early(sass("\n".join(kept))) == ""


LOOP = """
    HGMMA.64x16x16.F32 R24, gdesc[UR4], RZ, !UPT, gsb0
    .L_x_0:
    HGMMA.64x16x16.F32 R24, gdesc[UR4], R24
    HGMMA.64x16x16.F32 R24, gdesc[UR8], R24, gsb0
    WARPGROUP.DEPBAR.LE gsb0, 0x1
    @P0 BRA `(.L_x_0)
    WARPGROUP.DEPBAR.LE gsb0, 0x0
    FADD R2, R24, R31
    EXIT
"""
"""A product under way from step to step, and a wait behind the loop."""


def test_a_loop_that_waits_behind_itself() -> None:
    assert found(LOOP) == [] and lost_waits("") == () and found("FADD R24, R24, R25\nEXIT") == []


WRONG = {
    "no wait at all": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0\n", ""), ["FADD"]),
    "the last wait leaves one": (("gsb0, 0x0", "gsb0, 0x1"), ["FADD"]),
    "a read before the wait": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "F2FP.F16.F32.PACK_AB R2, R25, R24\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["F2FP.F16.F32.PACK_AB"]),
    "a write before the wait": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "CS2R R30, SRZ\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["CS2R"]),
    "a wide read of the register below": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "STS.128 [R2], R21\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["STS.128"]),
    "as an address": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "LDG.E R2, desc[UR4][R23.64+0x10]\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["LDG.E"]),
    "a wait under a predicate": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "@P1 WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["FADD"]),
    "a read in the loop": (("WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x1\n    FADD R2, R24, R2"), ["FADD"]),
    "a way around the wait": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "@P2 BRA `(.L_x_1)\n    WARPGROUP.DEPBAR.LE gsb0, 0x0\n    .L_x_1:"), ["FADD"]),
    "a way of the uniform predicates": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "BRA.U UP2, `(.L_x_1)\n    WARPGROUP.DEPBAR.LE gsb0, 0x0\n    .L_x_1:"), ["FADD"]),
    "behind a branch of the uniform predicates": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "BRA.U UP2, `(.L_x_1)\n    MOV R2, R24\n    .L_x_1:\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["MOV"]),
    "behind a branch that may go anywhere": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "BRX R4 -0x10\n    WARPGROUP.DEPBAR.LE gsb0, 0x0\n    .L_x_1:"), ["FADD", "MUFU.RCP"]),
    "a group that is never ended": (("gdesc[UR8], R24, gsb0", "gdesc[UR8], R24"), ["FADD"]),
    "another product into a part": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "HGMMA.64x8x16.F32 R28, gdesc[UR4], RZ, !UPT, gsb0\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["HGMMA.64x8x16.F32"]),
    "another product of it": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "HGMMA.64x16x16.F32 R40, R28, gdesc[UR4], RZ, !UPT, gsb0\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["HGMMA.64x16x16.F32"]),
    "another product that adds to it": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "HGMMA.64x16x16.F32 R40, gdesc[UR4], R24, gsb0\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["HGMMA.64x16x16.F32"]),
    "the function that is called": (("    WARPGROUP.DEPBAR.LE gsb0, 0x0", "CALL.REL.NOINC `(called)\n    WARPGROUP.DEPBAR.LE gsb0, 0x0"), ["MUFU.RCP"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_touched_too_early_is_found(what: str) -> None:
    (old, new), wanted = WRONG[what]
    called = "\n    called:\n    MUFU.RCP R25, R2\n    RET.REL.NODEC R4 `(kernel)"
    assert old in LOOP and found(LOOP + called) == []
    assert found(LOOP.replace(old, new) + called) == wanted


def test_a_product_that_nobody_reads() -> None:
    """Its accumulator is RZ: it ended the look at the whole cubin."""
    body = """
        HGMMA.64x16x16.F32 RZ, R40, gdesc[UR4].tnspB, RZ, !UPT, gsb0
        MOV R24, R2
    """
    assert found(body) == []
    assert found(body.replace("MOV R24", "MOV R41")) == ["MOV"], "what it reads is under way all the same"


def test_what_a_product_reads_stays_until_it_is_done() -> None:
    """Registers of its first operand may be read, not written."""
    body = """
        HGMMA.64x16x16.F32 R24, R40, gdesc[UR4].tnspB, RZ, !UPT, gsb0
        HGMMA.64x16x16.F32 R24, R44, gdesc[UR4].tnspB, R24, gsb0
        FADD R2, R41, R42
        WARPGROUP.DEPBAR.LE gsb0, 0x1
        MOV R43, R2
        STS [R44], R45
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        MOV R44, R2
    """
    assert found(body) == []
    assert found(body.replace("MOV R43", "MOV R47")) == ["MOV"], "of the product that may be under way still"
    assert found(body.replace("FADD R2, R41", "FADD R43, R41")) == ["FADD"]
    assert found(body.replace("FADD R2, R41", "LDS.64 R39, [R41]").replace(", R42", "")) == ["LDS.64"], "the second of two"
    assert found(body.replace("FADD R2, R41", "ISETP.NE.AND P0, PT, R41")) == [], "compared, not written"
    assert found(body.replace("FADD R2, R41, R42", "LOP3.LUT P0, R41, R2, 0x1, RZ, 0xc0, !PT")) == ["LOP3.LUT"], "behind a predicate"
    assert found(body.replace("FADD R2, R41, R42", "HGMMA.64x16x16.F32 R40, gdesc[UR4], RZ, !UPT, gsb0"))[:1] == ["HGMMA.64x16x16.F32"]


def test_a_loop_that_leaves_a_group_for_its_next_turn() -> None:
    """What is under way at the end of a turn is at the beginning of the next."""
    body = """
        .L_x_0:
        MOV R2, R24
        HGMMA.64x16x16.F32 R24, gdesc[UR4], RZ, !UPT, gsb0
        @P0 BRA `(.L_x_0)
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        EXIT
    """
    assert found(body) == ["MOV"]
    assert found(body.replace("@P0", "WARPGROUP.DEPBAR.LE gsb0, 0x0\n@P0")) == []


def test_where_paths_meet_the_fewest_groups_count() -> None:
    """One way ends another group, and a wait that leaves one is enough; the other does not. Sections are functions of their own."""
    body = """
        HGMMA.64x16x16.F32 R24, gdesc[UR4], RZ, !UPT, gsb0
        @P0 BRA `(.L_x_0)
        HGMMA.64x16x16.F32 R40, gdesc[UR4], RZ, !UPT, gsb0
        .L_x_0:
        WARPGROUP.DEPBAR.LE gsb0, 0x1
        MOV R2, R24
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        NOP
    """
    assert found(body) == ["MOV"] and found(body.replace("@P0 BRA", "@P0 FADD R2, R2, R2,")) == []
    assert found(body.replace("@P0 BRA", "BRA.DIV UR4,")) == ["MOV"]
    other = ".text.other:\nMOV R2, R24\nEXIT"
    assert found(f"HGMMA.64x16x16.F32 R24, gdesc[UR4], RZ, !UPT, gsb0\n{other}") == []


def test_how_many_registers_a_product_has() -> None:
    """Columns over two, of half precision over four."""
    for shape, count in (("HGMMA.64x64x16.F32.BF16", 32), ("HGMMA.64x256x16.F32", 128), ("HGMMA.64x64x16.F16", 16),
                         ("QGMMA.64x128x32.F32.E4M3.E4M3", 64), ("QGMMA.64x128x32.F16.E4M3.E4M3", 32), ("IGMMA.64x16x32.S8.S8", 8)):
        body = f"{shape} R24, gdesc[UR4], RZ, !UPT, gsb0\nMOV R2, R{{}}\nEXIT"
        assert found(body.format(24 + count)) == [] and found(body.format(23)) == []
        assert found(body.format(24 + count - 1)) == found(body.format(24)) == ["MOV"]


def registers(*numbers: int) -> int:
    return sum(1 << n for n in numbers)


def test_which_registers_an_instruction_has() -> None:
    for text, either, written in (
            ("FADD R28, R29, -R99.reuse", (28, 29, 99), (28,)), ("IADD3 R5, P0, R21, 0x800, RZ", (5, 21), (5,)),
            ("IMAD.WIDE R2, R21, 0x4, R16", (2, 3, 16, 17, 21), (2, 3)),
            ("STG.E.64 desc[UR4][R2.64], R86", (2, 3, 86, 87), ()), ("LDSM.16.M88.4 R4, [R8+UR4]", (4, 5, 6, 7, 8), (4, 5, 6, 7)),
            ("STSM.16.M88.4 [R26+-0x4000], R4", (4, 5, 6, 7, 26), ()), ("SHFL.BFLY PT, R99, R98, 0x2, 0x1f", (98, 99), (99,)),
            ("R2UR UR10, R24", (24,), ()), ("CS2R R146, SRZ", (146, 147), (146, 147)), ("CS2R.32 R146, SR_CLOCKLO", (146,), (146,)),
            ("F2F.F64.F32 R4, R9", (4, 5, 9), (4, 5)), ("F2I.S64.F64 R4, R8", (4, 5, 8, 9), (4, 5)), ("I2F.S64 R4, R8", (4, 8, 9), (4,)),
            ("DFMA R2, R4, R6, R8", (2, 3, 4, 5, 6, 7, 8, 9), (2, 3)), ("FSETP.NEU.AND P0, PT, R140, -INF , PT", (140,), ()),
            ("HMMA.16816.F32 R4, R8, R12, R4", (4, 5, 6, 7, 8, 9, 10, 11, 12, 13), (4, 5, 6, 7)), ("LDC.64 R16, c[0x0][0x220]", (16, 17), (16, 17)),
            ("SYNCS.ARRIVE.TRANS64 RZ, [R3+URZ], R4", (3, 4), ()), ("UIADD3 UR6, UP0, UR4, 0x70, URZ", (), ())):
        assert touched(*text.split(" ", 1)) == (registers(*either), registers(*written)), text


GATE = """
/*1250*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, RZ, !UPT ;
/*12f0*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24 ;
/*1390*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24 ;
/*13f0*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24, gsb0 ;
.L_x_27:
/*16f0*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24 ;
/*17b0*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24 ;
/*1810*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24 ;
/*1890*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24, gsb0 ;
/*18f0*/ WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
/*1920*/ @!P1 BRA `(.L_x_24) ;
/*1ba0*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24 ;
/*1bd0*/ HGMMA.64x256x16.F32 R24, gdesc[UR24].tnspB, R24 ;
/*1c80*/ HGMMA.64x256x16.F32 R24, gdesc[UR24].tnspB, R24 ;
/*1ca0*/ HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24, gsb0 ;
/*1cb0*/ WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
/*1ce0*/ BRA `(.L_x_27) ;
.L_x_24:
/*1ec0*/ F2FP.F16.F32.PACK_AB R157, R55, R54 ;
/*1ee0*/ F2FP.F16.F32.PACK_AB R18, R53, R52 ;
/*1f00*/ F2FP.F16.F32.PACK_AB R195, R51, R50 ;
/*1f10*/ F2FP.F16.F32.PACK_AB R202, R49, R48 ;
/*1f30*/ F2FP.F16.F32.PACK_AB R199, R47, R46 ;
/*1f40*/ F2FP.F16.F32.PACK_AB R201, R45, R44 ;
/*1f60*/ F2FP.F16.F32.PACK_AB R192, R43, R42 ;
/*1f70*/ F2FP.F16.F32.PACK_AB R196, R41, R40 ;
/*1f90*/ F2FP.F16.F32.PACK_AB R193, R39, R38 ;
/*1fa0*/ F2FP.F16.F32.PACK_AB R191, R37, R36 ;
/*1fc0*/ F2FP.F16.F32.PACK_AB R189, R35, R34 ;
/*1fd0*/ F2FP.F16.F32.PACK_AB R187, R33, R32 ;
/*1ff0*/ F2FP.F16.F32.PACK_AB R185, R31, R30 ;
/*2000*/ F2FP.F16.F32.PACK_AB R184, R29, R28 ;
/*2020*/ F2FP.F16.F32.PACK_AB R204, R27, R26 ;
/*2030*/ F2FP.F16.F32.PACK_AB R183, R25, R24 ;
/*2040*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
"""
"""Of `silu(gate) * (x @ up)`, 2048 x 4096 x 14336 in float16, whose loop left a product under way: ptxas V13.0.88, where lines with
products, waits, accumulators and what branches between them are (decision 0011)."""


def test_what_ptxas_once_wrote() -> None:
    lost = lost_waits(GATE)
    assert len(lost) == 16 and all("F2FP" in line and "into R24 to R151" in line for line in lost)
    lines = GATE.splitlines()
    wait = next(i for i, line in enumerate(lines) if "gsb0, 0x0" in line)
    early = [line for line in lines if "F2FP" in line]
    mended = [line for line in lines[:wait] if "F2FP" not in line] + [lines[wait], *early, *lines[wait + 1:]]
    assert lost_waits("\n".join(mended)) == (), "the same behind the wait"
    assert lost_waits("\n".join(line.replace("0x1 ;", "0x0 ;") for line in lines)) == (), "or where the loop waits for all"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1) as made:
        yield made


@needs_compilers
@needs_disassembler
def test_a_kernel_that_is_built(pool: Pool, tmp_path: Path) -> None:
    """It keeps its waits; without them in its text it would not. A disassembler that fails refuses nothing."""
    assert NVCC is not None
    built = try_build(Request(GEMM, GEMM_ARGS, "gemm", "sm_90a"), pool=pool, cache=Cache(tmp_path))
    assert not isinstance(built, BuildFailure), built
    (cubin,) = built.binaries
    assert has_products(cubin) and lost_wait(cubin, NVCC.disassembler) == ("", "")
    assert lost_wait(cubin, "no such program")[0] == "" != lost_wait(cubin, "no such program")[1] and lost_wait(cubin, "true")[1]
    text = subprocess.run([NVCC.disassembler, "-c", write(tmp_path, cubin)], capture_output=True, text=True, check=True).stdout
    assert lost_waits(text) == () and "WARPGROUP.DEPBAR" in text
    assert lost_waits(re.sub(r".*WARPGROUP.DEPBAR.*\n", "", text))


@needs_compilers
def test_a_candidate_that_does_not_wait_is_refused(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For good. What was built unseen is built again where a disassembler is."""
    assert NVCC is not None
    request, shows = Request(GEMM, GEMM_ARGS, "gemm", "sm_90a"), tmp_path / "nvdisasm"
    (tmp_path / "code").write_text(GATE)
    shows.write_text(f"#!/bin/sh\ncat {tmp_path / 'code'}\n")
    shows.chmod(0o755)
    keys = []
    for path in ("", str(shows)):
        for module in ("build", "pool"):
            monkeypatch.setattr(f"redfuser.codegen.{module}.find_nvcc", lambda path=path: replace(NVCC, disassembler=path))
        keys.append(cache_key(request))
    assert len({*keys}) == 2
    found = try_build(request, pool=pool, cache=Cache(tmp_path / "cache"))
    assert isinstance(found, BuildFailure) and (found.code, found.stage, found.lasting) == ("RF463", "waits", True)
    assert "16 instructions do not wait for a product" in found.message and "F2FP" in found.message


@needs_compilers
def test_code_without_products_is_not_disassembled(tmp_path: Path) -> None:
    assert NVCC is not None
    source, cubin = tmp_path / "plain.cu", tmp_path / "plain.cubin"
    source.write_text('extern "C" __global__ void plain(float* x) { x[threadIdx.x] += 1; }')
    subprocess.run([NVCC.path, "--cubin", "-arch=sm_90a", str(source), "-o", str(cubin)], check=True, env=os.environ | NVCC.environment)
    made = cubin.read_bytes()
    assert sum(map(len, code_of(made))) % 16 == 0 and code_of(made) and not has_products(made)
    assert lost_wait(made, "no such program") == ("", "")


def test_a_disassembler_knows_what_the_compiler_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One beside nvcc first; an older release than nvcc's is passed over."""
    def program(folder: str, name: str, release: str) -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release[:4]}, V{release}'\n")
        path.chmod(0o755)
        return path

    nvcc, beside, later = program("a", "nvcc", "13.0.88"), program("a", "nvdisasm", "12.9.10"), program("b", "nvdisasm", "13.5.37")
    monkeypatch.setenv("PATH", f"{later.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert toolchain._disassembler(nvcc, "13.0.88") == str(later)
    assert toolchain._disassembler(nvcc, "12.9.86") == str(beside)
    assert "disassembler" in asdict(toolchain.Nvcc("nvcc", "13.0.1")), "the worker is told"


def write(folder: Path, cubin: bytes) -> str:
    (folder / "kernel.cubin").write_bytes(cubin)
    return str(folder / "kernel.cubin")
