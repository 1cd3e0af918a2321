"""The operators that torch's quantisation for exported models (PT2E) leaves in a program, as torch's own code has them.

They are of a library that only those who quantise load, so files and the importer do not know them: where they are called, the
library is there. Those that read a number out of a tensor (``choose_qparams``, groups of channels) stay what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

LIBRARY = "torch.ao.quantization.fx._decomposed"
NAMES = ("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel",
         "quantize_per_token", "dequantize_per_token", "dequantize_per_channel_group",
         "choose_qparams_per_token", "choose_qparams_per_token_asymmetric")


def replaced() -> dict[Any, Callable[..., Any]]:
    """By operator and by overload, the function that computes it."""
    library = sys.modules.get(LIBRARY)
    found = [(getattr(torch.ops.quantized_decomposed, n), getattr(library, n)) for n in NAMES if hasattr(library, n)]
    return dict(found) | {operator.default: f for operator, f in found}
