"""The code table: every error and every refusal, with its one-line meaning. docs/codes.md has a wrong/right example for
each; a test holds this table, that page and the places that raise the codes together.

Ranges: RF1xx input and import, RF2xx algebra refusals, RF3xx partition and strategy refusals, RF4xx lowering and build,
RF5xx run time, RF6xx artifact and cache, RF7xx tuning, RF8xx numerics, RF9xx internal.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # RF35x: strategies
    "RF350": "a strategy, split count or segment length that means nothing",
    "RF351": "the segment program is not well formed (a verifier failed: our bug)",
    # RF47x: the outer graph
    "RF470": "a fused region cannot run at any one place of the outer graph (our bug)",
    "RF471": "operators that have no torch spelling",
    "RF472": "regions and kernel names do not pair up",
    "RF473": "the model has no tensor to take a device from",
}
