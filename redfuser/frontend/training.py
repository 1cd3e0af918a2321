"""Whether an export holds what only training wants: dropped elements, a mode that the model's own code asks for.

A compiled model is for inference. What a module in training mode exports is another program than ``model.eval()``'s: dropout
draws anew at every call, normalisations take the batch's own statistics, and branches on ``self.training`` are decided.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from redfuser.frontend.program import provenance_of

RANDOM = {"aten.dropout.default": "p", "aten.dropout_.default": "p", "aten.feature_dropout.default": "p",
          "aten.alpha_dropout.default": "p", "aten.feature_alpha_dropout.default": "p", "aten.native_dropout.default": "p",
          "aten.scaled_dot_product_attention.default": "dropout_p", "aten.rrelu.default": "",
          "aten.rrelu_with_noise.default": ""}
"""Operators that draw, and the argument that says how much; those with a ``train`` argument only where it holds."""


def drawn(program: ExportedProgram) -> list[str]:
    """The operators of the export that drop or draw at random, each with its place: ``aten.dropout.default (model.py:12)``."""
    return list(dict.fromkeys(_told(node) for node in program.graph.nodes if _draws(node)))


def _told(node: torch.fx.Node) -> str:
    origin = provenance_of(node)
    return f"{origin.op} ({origin.source})" if origin.source else origin.op


def _draws(node: torch.fx.Node) -> bool:
    amount = RANDOM.get(str(node.target)) if node.op == "call_function" else None
    if amount is None:
        return False
    given = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | dict(node.kwargs)
    training = [given[name] for name in ("train", "training") if name in given]
    return all(training) and (not amount or bool(given.get(amount, 0.0))) and (bool(training) or bool(amount))


def asks_for_its_mode(model: Any) -> list[str]:
    """Classes of modules, other than torch's own, that are in training mode and whose code reads ``training``."""
    if not isinstance(model, nn.Module):
        return []
    found = {type(m) for m in model.modules() if m.training and not type(m).__module__.startswith("torch.")}
    return sorted(cls.__name__ for cls in found if any("training" in code.co_names for code in _codes(cls)))


def _codes(cls: type) -> Iterator[types.CodeType]:
    for base in cls.__mro__:
        if base is nn.Module or base.__module__.startswith("torch."):
            continue
        for value in vars(base).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                yield function.__code__


def remark(model: Any, program: ExportedProgram) -> str:
    """What to tell about training mode; empty when nothing in the export depends on it."""
    random, modes = drawn(program), asks_for_its_mode(model)
    if random:
        return f"elements are dropped or drawn at random at every call: {', '.join(random[:3])}" \
            + (f" and {len(random) - 3} more" if len(random) > 3 else "") + "; call model.eval() for inference"
    if modes:
        return f"compiled in training mode, which {', '.join(modes[:3])} reads; call model.eval() for inference"
    return ""
