"""The code table: every error and every refusal, with its one-line meaning. docs/codes.md has a wrong/right example for
each; a test holds this table, that page and the places that raise the codes together.

Ranges: RF1xx input and import, RF2xx algebra refusals, RF3xx partition and strategy refusals, RF4xx lowering and build,
RF5xx run time, RF6xx artifact and cache, RF7xx tuning, RF8xx numerics, RF9xx internal.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    "RF180": "the text of a cascade does not follow the grammar",
    "RF181": "a name in the text of a cascade is unknown, or means two things",
    "RF182": "dtypes in the text of a cascade do not agree",
    "RF183": "an axis or a shape in the text of a cascade does not fit",
    "RF184": "a file of cascades cannot be read",
    # input: settings and command line
    "RF190": "unknown setting or option name",
    "RF191": "value not allowed for a setting or option",
    "RF192": "model file missing or of an unknown kind",
    "RF193": "module:function does not name a function that returns (model, args)",
    "RF194": "no such cascade, workload, shape or baseline",
    "RF195": "coverage below what was required",
    # numerics
    "RF801": "result outside the numerics rule",
    # internal
    "RF900": "internal error: our bug",
}
