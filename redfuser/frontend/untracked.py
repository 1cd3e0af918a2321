"""What a tensor's ``data`` is to torch.export: the tensor itself, detached, whose memory it is and whose writes it counts.

torch.export does not see who asks a tensor for its ``data``. It takes what it gets for a new constant, which has no elements:
where nothing refused that, a kernel read zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

_DATA: Any = torch.Tensor.data
CALLED: dict[Any, Callable[..., Any]] = {torch._C._autograd._get_data_attr: torch.detach}  # type: ignore[attr-defined]
"""As torch.compile writes it down."""


class Detached(TorchFunctionMode):
    """``x.data`` is ``x.detach()``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].detach() if func == _DATA.__get__ else func(*args, **(kwargs or {}))


def lost(program: ExportedProgram) -> list[str]:
    """Constants without elements: tensors that the program makes of its inputs in a way that torch.export does not see."""
    return [name for name, value in program.constants.items() if isinstance(value, FakeTensor)]
