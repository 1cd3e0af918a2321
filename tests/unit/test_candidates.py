"""Which candidate stands in for one that does not build."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from redfuser import plan
from redfuser.errors import BuildError
from redfuser.plan import Produced
from redfuser.reported import Modelled, Note


def made(*seconds: float) -> Iterator[tuple[int, Produced]]:
    for rank, s in enumerate(seconds):
        yield rank, Produced("k", modelled=(Modelled("k_split", s / 2, "bytes"), Modelled("k_map", s / 2, "bytes")), request=rank)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests that were built; the first is rejected by nvcc."""
    seen: list[int] = []

    def build(request: int, symbols: Any) -> Any:
        seen.append(request)
        if request == 0:
            raise BuildError("RF453", "nvcc rejected the kernel")
        return types.SimpleNamespace(resources=())

    monkeypatch.setattr(plan, "_build", build)
    return seen


@pytest.mark.parametrize(("seconds", "asked", "taken"), [
    ((25e-6, 60e-6), False, 1), ((25e-6, 233e-6), False, None), ((25e-6, 233e-6), True, 1), ((25e-6, 60e-6, 20e-6), False, 1)])
def test_a_far_slower_one_does_not(seconds: tuple[float, ...], asked: bool, taken: int | None, built: list[int]) -> None:
    """Its operations are torch's then, with nvcc's word for it; one that was asked for is built."""
    passed: list[Note] = []
    if taken is None:
        with pytest.raises(BuildError, match="nvcc rejected"):
            plan._first_built(made(*seconds), passed, (), asked)
        assert built == [0]
    else:
        assert plan._first_built(made(*seconds), passed, (), asked).request == taken
    assert [n.code for n in passed] == ["RF453"]
