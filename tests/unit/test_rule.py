"""The one rule of numerics, against the figures it is to give."""

from __future__ import annotations

import pytest
import torch

from redfuser import numerics, rule


@pytest.mark.parametrize(("dtype", "name"), numerics.NAMES.items())
def test_the_unit_roundoff_is_the_formats(dtype: torch.dtype, name: str) -> None:
    assert rule.UNIT[name] == torch.finfo(dtype).eps / 2
    assert rule.tiny(name) == max(torch.finfo(dtype).eps / 4, 4 * 2.0**-24)


def test_the_limit_is_twice_the_unfused_error_and_what_storing_costs() -> None:
    assert rule.limit(3.0, 2.0, 10.0, 5.0, "i64") == (6.0, 4.0)
    assert rule.limit(0.0, 0.0, 1.0, 0.5, "f16") == (2.0**-12 + 2.0**-24, 2.0**-13 + 2.0**-24)
    x = torch.ones(3)
    assert numerics.compare(x, x, x.double()).limit.maximum == rule.limit(0.0, 0.0, 1.0, 1.0, "f32")[0]
