"""What an operator that nobody looks into amounts to, for the report alone: nothing is compiled differently for it."""

from __future__ import annotations

import re

KINDS: tuple[tuple[str, str], ...] = (
    ("attn", r"attention|attn|mha"),
    ("softmax", r"softmax|softmin|cross_entropy"),
    ("norm", r"(batch|layer|group|instance|rms|local_response)_?norm|normalize"),
    ("topk", r"topk|kthvalue"),
    ("statistics", r"logsumexp|logcumsumexp|quantile|median|(^|_)(std|var)(_|$)|(vector|matrix|linalg)_norm"),
)
SCANS = r"(^|log)cum(sum|prod|max|min)|(^|_)scan(_|$)"


def kind_of(operator: str) -> str:
    """``aten._native_batch_norm_legit.default`` --> ``norm``; empty for what is no cascade by itself."""
    return next((kind for kind, words in KINDS if re.search(words, _name(operator))), "")


def is_scan(operator: str) -> bool:
    """``aten.cumsum.default``: every element is a result over those before it."""
    return re.search(SCANS, _name(operator)) is not None


def _name(operator: str) -> str:
    return operator.split(".")[1] if operator.count(".") >= 2 else operator.split(".")[-1]
