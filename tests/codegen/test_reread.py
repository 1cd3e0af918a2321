"""What TileLang's text keeps of a buffer is read again where the buffer was written since."""

from __future__ import annotations

import textwrap

import pytest

from redfuser.codegen.reread import reread

T = "*(float2*)(t + 0)"
ONCE = ("__2.x = v_.x * v_.x;",)


def text(*lines: str) -> str:
    return "{\n" + textwrap.indent("\n".join(lines), "  ") + "\n}"


def again(*lines: str) -> list[str]:
    """The lines that are new, each with the line that it is behind."""
    before, after = text(*lines).split("\n"), reread(text(*lines)).split("\n")
    found, k = [], 0
    for i, line in enumerate(after):
        if k < len(before) and line == before[k]:
            k += 1
        else:
            found.append(f"{after[i - 1].strip()} | {line.strip()}")
    assert k == len(before)
    return found


@pytest.mark.parametrize("written", [
    f"{T} = __1;", "t[1] = 0.0f;", "t[i] += 1.0f;", "((half2*)(&(t[0])))[0] = h;", "tl::gemm_rs<64, 64>((&(a[0])), (&(t[0])));",
    "x = tl::exchange((&(t[0])), y);"])
def test_behind_what_writes_to_the_buffer(written: str) -> None:
    assert again(f"float2 v_ = {T};", "__1.x = tanhf(v_.x);", written, *ONCE) == [f"{written} | v_ = {T};"]


@pytest.mark.parametrize("other", [
    "*(float2*)(u + 0) = __1;", "u[1] = t[1];", "if (t[0] == 1.0f) {\n}", "float2 t_1 = __1;", "const int at = t[0];",
    "u[0] = tl::AllReduce<tl::SumOp, 32, 1, 0>::run(t[0]);", "__1.t = 1.0f;", "// t = 1"])
def test_not_behind_what_does_not(other: str) -> None:
    assert again(f"float2 v_ = {T};", "__1.x = tanhf(v_.x);", other, *ONCE) == []


def test_not_where_nothing_reads_it_after() -> None:
    whole = text(f"float2 v_ = {T};", "__1.x = tanhf(v_.x);", f"{T} = __1;", f"float2 v__1 = {T};", "y = v__1.x;")
    assert reread(whole) == whole


def test_a_name_ends_with_its_block() -> None:
    assert again("{", f"  float2 v_ = {T};", "  y = v_.x;", "}", f"{T} = __1;", "{", "  float2 v_ = *(float2*)(u + 0);", "  y = v_.x;",
                 "}") == []


def test_of_two_blocks_each_has_its_own() -> None:
    assert again("{", f"  float2 v_ = {T};", f"  {T} = __1;", "  y = v_.x;", "}",
                 "{", "  float2 v_ = *(float2*)(u + 2);", "  *(float2*)(u + 2) = __1;", "  y = v_.x;", "}") == [
        f"{T} = __1; | v_ = {T};", "*(float2*)(u + 2) = __1; | v_ = *(float2*)(u + 2);"]


def test_a_loop_comes_back_to_what_is_before() -> None:
    assert again(f"float2 v_ = {T};", "for (int k = 0; k < 4; ++k) {", "  y = y + v_.x;", f"  {T} = __1;", "}") == [
        f"{T} = __1; | v_ = {T};"]
    assert again("for (int k = 0; k < 4; ++k) {", f"  float2 v_ = {T};", "  y = y + v_.x;", f"  {T} = __1;", "}") == []


def test_what_is_made_of_a_name_follows_it() -> None:
    assert again(f"float2 v_ = {T};", "float2 v__1 = f(v_);", f"{T} = __1;", "y = v__1.x;") == [
        f"{T} = __1; | v_ = {T};", f"v_ = {T}; | v__1 = f(v_);"]


@pytest.mark.parametrize("meets", ["__syncthreads();", "barrier[0].wait(0);", "tl::mbarrier_wait(b, 1);"])
def test_shared_memory_has_what_others_wrote_where_threads_meet(meets: str) -> None:
    lines = ("extern __shared__ __align__(1024) uchar buf_dyn_shmem[];", "float2 v_ = *(float2*)(((float*)buf_dyn_shmem) + 4);",
             "x = v_.x;", meets, "y = v_.x;")
    assert again(*lines) == [f"{meets} | v_ = *(float2*)(((float*)buf_dyn_shmem) + 4);"]
    assert again(f"float2 v_ = {T};", "x = v_.x;", meets, "y = v_.x;") == []
