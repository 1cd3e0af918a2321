"""From a module or function with example arguments to an ExportedProgram."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from redfuser.casting import Casts, inside
from redfuser.errors import InputError, RedFuserError
from redfuser.frontend.kept import kept
from redfuser.frontend.untracked import Detached
from redfuser.users import last_line, own_code, quiet, refused_by_machine, unlogged

READS = (GuardOnDataDependentSymNode, DataDependentOutputException)
BRANCH = ("there Python, or torch, reads a tensor's values: torch.where chooses without, a number is passed as one; "
          "torch.compile(model, backend=\"redfuser\") compiles what lies before and behind such a line")
INFERENCE = ("its weights were made under torch.inference_mode(), which torch.export takes only there: compile it inside of "
             "`with torch.inference_mode():`, or make the model outside")
OWN_WORDS = ("run torch.export.export(model, args, strict=False) for torch's own explanation; "
             "calls out of torch are the usual cause")


class _Wrapped(nn.Module):
    """A plain function as a module. Modules that the function closes over are registered, so that their weights are
    weights of the export and not constants of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = _as_forward(function)
        for i, module in enumerate(_captured_modules(function)):
            self.add_module(f"captured_{i}", module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _as_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its frames named ``forward``: torch.export records source lines of such frames alone."""
    if not isinstance(function, types.FunctionType):
        return function
    copy = types.FunctionType(function.__code__.replace(co_name="forward"), function.__globals__, function.__name__,
                              function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _captured_modules(function: Any) -> list[nn.Module]:
    if isinstance(function, functools.partial):
        inner = [*function.args, *function.keywords.values()]
        return [m for m in inner if isinstance(m, nn.Module)] + _captured_modules(function.func)
    owner = getattr(function, "__self__", None)
    cells = [c.cell_contents for c in getattr(function, "__closure__", None) or () if _filled(c)]
    return [m for m in [owner, *cells] if isinstance(m, nn.Module)]


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def export(model: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None,
           within: Casts = ()) -> tuple[torch.export.ExportedProgram, list[str]]:
    """Export at the example's static shapes, with the autocast ``within`` inside; and what forward assigned in the model, which
    is as it was. Raises InputError: RF117 without example arguments, RF107 when the model itself fails on them, RF118 when
    torch.export refuses the model."""
    if args is None and kwargs is None:
        raise InputError("RF117", "a module or function needs example arguments",
                         why="shapes and dtypes are read from them",
                         help="pass args=(...) and kwargs={...} as you would call it")
    module = model if isinstance(model, nn.Module) else _wrap(model)
    example = _distinct(*as_call(args, kwargs), {id(t) for t in (*module.parameters(), *module.buffers())})
    try:
        with torch.no_grad(), unlogged(), inside(module, within):
            with kept(module) as changes, quiet(), Detached():
                program = torch.export.export(module, *example, strict=False)
            if changes.registered:  # torch.export takes a buffer that is new for an input: a first call makes it
                module(*example[0], **example[1])
                with kept(module) as changes, quiet(), Detached():
                    program = torch.export.export(module, *example, strict=False)
        return program, changes.assigned
    except RedFuserError:
        raise
    except Exception as error:
        if (refused := refused_by_machine(error)) is not None:
            raise refused from error
        _blame(model, *example)
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        others = INFERENCE if _of_inference(module) else OWN_WORDS
        raise InputError("RF118", "torch.export could not export the model",
                         where=last_line(error) or getattr(model, "__name__", type(model).__name__),
                         why=f"{type(error).__name__}: {lines[0] if lines else ''}",
                         help=BRANCH if isinstance(error, READS) else others) from error


def _of_inference(module: nn.Module) -> bool:
    return not torch.is_inference_mode_enabled() and any(p.is_inference() for p in module.parameters())


def as_call(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example arguments as a call has them; one tensor alone is one argument. Raises InputError RF117."""
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list, type(None))) or not isinstance(kwargs, (Mapping, type(None))):
        raise InputError("RF117", f"example arguments are a tuple and a dict, not {type(args).__name__} and "
                         f"{type(kwargs).__name__}", help="args=(x,), kwargs={'mask': mask}")
    return tuple(args or ()), dict(kwargs or {})


def _blame(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise InputError RF107 when the model fails on the example without any export too: then that is what to tell."""
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        raise own_code(f"calling {getattr(model, '__name__', type(model).__name__)} on the example", error) from error


def _distinct(args: tuple[Any, ...], kwargs: dict[str, Any], seen: set[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example with every tensor an object of its own, other than those ``seen``: torch.export takes one that is passed
    twice for one input, and one that is a weight of the model for that weight."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            leaves[i] = leaf.detach().clone() if id(leaf) in seen else leaf
            seen.add(id(leaf))
    return pytree.tree_unflatten(leaves, spec)


def _wrap(function: Callable[..., Any]) -> nn.Module:
    wrapped = _Wrapped(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return wrapped
    sign(wrapped, signature)
    return wrapped


def sign(module: nn.Module, signature: inspect.Signature) -> None:
    """Give ``module.forward`` a signature: torch.export names the inputs after it."""
    forward = functools.partial(type(module).forward, module)
    forward.__signature__ = signature  # type: ignore[attr-defined]
    module.forward = forward
