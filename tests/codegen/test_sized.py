"""Launch data of kernels with symbols: TVM's expressions as sizes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from redfuser.codegen.sized import describe, evaluated
from redfuser.codegen.worker import StageError
from redfuser.sizes import Symbol


def node(kind: str, **fields: Any) -> Any:
    return type(kind, (SimpleNamespace,), {"__hash__": object.__hash__, "same_as": lambda self, o: self is o})(**fields)


N = node("Var", name="n")


def tiles(size: int) -> Any:
    return node("FloorDiv", a=node("Add", a=N, b=size - 1), b=size)


def artifact(grid: Any, stride: Any) -> Any:
    """What TileLang leaves of a kernel that takes a tensor map, a pointer and n."""
    key = node("Var", name="q_desc")
    fields = [64, N, 2, 128, stride, stride, 64, 64, 1, 1, 1, 1, 0, 3, 2, 0]
    maps = {key: ["__tvm_tensormap_create_tiled", key, 6, 3, node("Var", name="q"), *fields]}
    host = SimpleNamespace(attrs={"tma_descriptor_args": maps}, body=None)
    params = [SimpleNamespace(name="q_desc", dtype="handle"), SimpleNamespace(name="out", dtype="handle"),
              SimpleNamespace(name="n", dtype="int32")]
    device = SimpleNamespace(attrs={"global_symbol": "rows_kernel", "thread_extent": {"blockIdx.x": grid, "threadIdx.x": 128}},
                             params=params)
    return SimpleNamespace(host_mod=SimpleNamespace(functions={"h": host}), device_mod=SimpleNamespace(functions={"d": device}))


def size(symbol: str, times: int = 1, plus: int = 0, over: int = 1) -> dict[str, Any]:
    return {"terms": [{"times": times, "factors": [{"symbol": symbol, "plus": plus, "over": over}]}], "plus": 0}


def test_expressions_become_sizes() -> None:
    found = describe(artifact(tiles(128), node("Mul", a=node("Cast", value=N), b=128)), 0, (Symbol("n", 1, 4096),))
    (launch,) = json.loads(json.dumps(found))
    assert launch["grid"] == [size("n", plus=127, over=128), 1, 1] and launch["block"] == [128, 1, 1]
    assert [(p["kind"], p["arg"]) for p in launch["params"]] == [("tma", "q"), ("ptr", "out"), ("int", "n")]
    assert launch["params"][0]["tma"]["dims"] == [64, size("n"), 2]
    assert launch["params"][0]["tma"]["strides"] == [size("n", 128), size("n", 128)]


def test_what_is_another_size_at_a_multiple_of_a_tile_is_refused() -> None:
    more = node("Add", a=node("FloorDiv", a=N, b=128), b=1)  # a block more than there are tiles, of 128 elements
    with pytest.raises(StageError, match="not that of other numbers"):
        describe(artifact(more, 128), 0, (Symbol("n", 1, 4096),))
    with pytest.raises(StageError, match="no number of the symbols"):
        describe(artifact(node("Call", op=SimpleNamespace(name="tirx.log2"), args=[N]), 128), 0, (Symbol("n", 1, 4096),))


def test_arithmetic_of_launch_data() -> None:
    shifted = node("Call", op=SimpleNamespace(name="tirx.shift_right"), args=[node("Add", a=N, b=63), 6])
    assert [evaluated(shifted, {"n": n}) for n in (1, 64, 65)] == [1, 1, 2]
    assert evaluated(node("Max", a=node("Sub", a=N, b=9), b=node("FloorMod", a=N, b=4)), {"n": 7}) == 3
