"""What the numerical check of a compiled model runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from redfuser.errors import InputError


def reference(model: Any, args: Any = None, kwargs: Any = None) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """The original as torch code, and example inputs. Raises InputError RF516 where there are none."""
    if isinstance(model, torch.export.ExportedProgram):
        if args is None:
            args, kwargs = model.example_inputs if model.example_inputs is not None else (None, None)
        model = model.module()
    given = (args is not None or kwargs is not None) and isinstance(args, (tuple, list, torch.Tensor, type(None)))
    if not callable(model) or not given:
        raise InputError("RF516", "the numerical check needs the model as torch code and example inputs",
                         why=f"got a {type(model).__name__}" + ("" if args is not None else " and no inputs"),
                         help="pass args, and check ONNX or Relax models through their torch original")
    return model, (args,) if isinstance(args, torch.Tensor) else tuple(args or ()), kwargs
