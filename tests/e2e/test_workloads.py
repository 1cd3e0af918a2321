"""Workloads at small shapes, compiled for the CPU, against the numerics rule. One of each kind; the bench has the rest."""

from __future__ import annotations

import warnings

import pytest

import redfuser
from redfuser.testing import assert_within_rule
from tests.listed import all_cases

KINDS = ("mha/smoke-80", "mha/smoke-decode", "attention/softcap-smoke", "attention/window-smoke", "attention/gqa-decode-smoke",
         "attention/alibi-smoke", "norms/softmax-6x200", "norms/layernorm-6x200", "norms/rmsnorm-max-6x200",
         "norms/l2norm-6x200", "variance/smoke", "inertia/smoke", "models/llama-decode-smoke")
CASES = {str(c): c for c in all_cases() if "smoke" in c.sets}


@pytest.mark.parametrize("name", KINDS)
def test_compiled_workload_is_within_the_rule(name: str) -> None:
    case = CASES[name]
    module = case.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = redfuser.compile(module, case.inputs("cpu", 0), target="cpu", fallback="allow")
    assert compiled.report.fused, compiled.report.summary()
    for seed in (0, 1):
        assert_within_rule(compiled, module, case.inputs("cpu", seed))
