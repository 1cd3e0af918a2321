"""What the workloads list, made once for all test modules: drawing its programs takes a second, and who looks changes nothing."""

from __future__ import annotations

from functools import cache

import workloads
from workloads import correctness
from workloads.case import Case
from workloads.correctness import Program


@cache
def all_programs() -> tuple[Program, ...]:
    return tuple(correctness.all_programs())


@cache
def all_cases() -> tuple[Case, ...]:
    return tuple(workloads.all_cases())
