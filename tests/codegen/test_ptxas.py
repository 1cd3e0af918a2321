"""Reading ptxas' report."""

from __future__ import annotations

from redfuser.codegen.ptxas import parse_resources

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'main_kernel' for 'sm_90a'
ptxas info    : Function properties for main_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 400 bytes cmem[0]
"""


def test_two_entries() -> None:
    assert parse_resources(LOG) == {
        "main_kernel": {"registers": 168, "spill_bytes": 12, "stack_bytes": 16, "static_shared_bytes": 1024},
        "other": {"registers": 32, "spill_bytes": 0, "stack_bytes": 0, "static_shared_bytes": 0}}


def test_nothing_to_read() -> None:
    assert parse_resources("") == {} and parse_resources("Used 3 registers\n 4 bytes stack frame") == {}
