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

from redfuser.errors import InputError

_DATA: Any = torch.Tensor.data
CALLED: dict[Any, Callable[..., Any]] = {torch._C._autograd._get_data_attr: torch.detach}  # type: ignore[attr-defined]
"""As torch.compile writes it down."""


class Detached(TorchFunctionMode):
    """``x.data`` is ``x.detach()``. Raises InputError RF114 for a model that puts another tensor in its place."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _DATA.__set__ and isinstance(args[0], FakeTensor):
            raise InputError("RF114", "the model changes tensors in place", where="Tensor.data",
                             why="torch.export does not see that a tensor is given other data",
                             help="compute with the other tensor (y = z), or copy it (y.copy_(z))")
        return args[0].detach() if func == _DATA.__get__ else func(*args, **(kwargs or {}))


def lost(program: ExportedProgram) -> list[str]:
    """Constants without elements: tensors that the program makes of its inputs in a way that torch.export does not see."""
    return [name for name, value in program.constants.items() if isinstance(value, FakeTensor)]
