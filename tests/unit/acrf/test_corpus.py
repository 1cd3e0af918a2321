"""Every row of the specification, accepted and proved or refused with the right reason, and random programs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redfuser.acrf.cascade import Reduce
from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.serial import certificate_from_json, certificate_to_json, fused_from_json, fused_to_json
from redfuser.acrf.state import Fused, NotFusable
from redfuser.codes import CODES
from tests.seconds import slower
from tests.unit.acrf.corpus import ACCEPT, REFUSE, Case
from tests.unit.acrf.fusable import program


def accepted(case: Case) -> Fused:
    f = fuse(case.cascade, case.casts)
    assert isinstance(f, Fused), f"{f.code} at {f.statement}: {f.condition}; {f.why}"
    return f


@pytest.mark.parametrize("case", ACCEPT, ids=lambda c: c.name)
def test_accepted_and_proved(case):
    f = accepted(case)
    assert check(f) == []
    assert f.certificate.decomposition and f.certificate.choices and f.certificate.casts == case.casts


@pytest.mark.parametrize("case", REFUSE, ids=lambda c: c.name)
def test_refused_with_its_reason(case):
    r = fuse(case.cascade, case.casts)
    assert isinstance(r, NotFusable)
    assert r.code == case.directive("expect") and r.code in CODES
    assert r.condition and r.why and r.help and r.statement in {n for s in case.cascade.stmts for n in s.names}
    assert r.provenance.source.startswith(case.name)


@pytest.mark.parametrize("case", ACCEPT, ids=lambda c: c.name)
def test_travels_as_json(case):
    f = accepted(case)
    back = fused_from_json(json.loads(json.dumps(fused_to_json(f))))
    assert back == f
    assert certificate_from_json(json.loads(json.dumps(certificate_to_json(f.certificate)))) == f.certificate


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_random_programs_are_proved_or_refused_with_a_reason(seed):
    c = program(seed)
    r = fuse(c)
    if isinstance(r, NotFusable):
        assert r.code in CODES and r.condition and r.why and r.help
        assert r.statement in {n for s in c.stmts for n in s.names}
        assert all(isinstance(c.stmt(n), Reduce) or n for n in r.prefix)
    else:
        assert check(r, stability=False) == []


def test_derivation_and_check_are_fast():
    seconds, factor = [], slower()
    for case in ACCEPT:
        start = time.process_time()
        fuse(case.cascade, case.casts)
        seconds.append(time.process_time() - start)
    factor = max(factor, slower())
    assert median(seconds) <= factor and max(seconds) <= 5 * factor


def test_derivation_does_not_depend_on_the_hash_seed():
    script = ("import json\nfrom tests.unit.acrf.corpus import ACCEPT\n"
              "from redfuser.acrf.derive.fuse import fuse\nfrom redfuser.acrf.serial import fused_to_json\n"
              "print(json.dumps([fused_to_json(fuse(c.cascade, c.casts)) for c in ACCEPT]))")
    out = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}).stdout for seed in "12"]
    assert out[0] == out[1] and len(out[0]) > 1000
