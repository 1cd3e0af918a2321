"""Models named on the command line: a .pt2 file, an .onnx file, or ``module:function`` that returns (model, args)."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redfuser.errors import InputError
from redfuser.frontend.saved import existing, is_saved, saved
from redfuser.settings import working_folder
from redfuser.users import last_own_line, missing_extra, own_code


@dataclass(frozen=True)
class Named:
    """A loaded model: what ``redfuser.compile`` takes as model, args and kwargs, and the name reports show."""

    name: str
    model: Any
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None


def load(spec: str) -> Named:
    """Load the model. Raises InputError RF192 for a missing file or unknown kind, RF193 for a function that does not
    return (model, args), RF107 when the module or the function itself raises. A .pt2 file is read by
    ``torch.export.load``: open files from people you trust only."""
    path = Path(spec)
    if path.suffix.lower() == ".onnx":
        return Named(path.name, existing(path))
    if is_saved(path):
        return Named(path.name, saved(path))
    module, colon, function = spec.partition(":")
    if colon and module and function and "/" not in module:
        return _call(spec, module, function)
    if path.suffix.lower() == ".rf" and path.is_file():
        raise InputError("RF192", f"{spec}: compiled already", why="its kernels are built and its graph is written",
                         help=f"redfuser inspect {spec} shows what is in it, redfuser check {spec} tries it")
    raise InputError("RF192", f"{spec}: not a model", why="a model is a .pt2 file, an .onnx file, or module:function",
                     help="torch.export.save(torch.export.export(model, args), 'model.pt2')")


def _call(spec: str, module: str, function: str) -> Named:
    here = working_folder()
    if here is not None and str(here) not in sys.path:  # and it stays, as under `python -m`: the function and its model import
        sys.path.insert(0, str(here))  # from there when they run
    try:
        fn = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as e:
        told = missing_extra(e)
        raise InputError("RF193", f"cannot load {spec}", why=str(e),
                         help=told.help if told else "module:function, importable from here") from e
    except (ImportError, AttributeError) as e:
        if last_own_line(e):  # raised inside the module, not by our looking it up
            raise own_code(f"importing {module}", e) from e
        raise InputError("RF193", f"cannot load {spec}", why=str(e), help="module:function, importable from here") from e
    except (Exception, SystemExit) as e:
        raise own_code(f"importing {module}", e) from e
    try:
        inspect.signature(fn).bind()
    except TypeError as e:
        raise InputError("RF193", f"{spec} cannot be called without arguments", why=str(e)) from e
    except ValueError:
        pass  # a builtin without a signature: the call will tell
    try:
        result = fn()
    except (Exception, SystemExit) as e:
        raise own_code(f"{spec}()", e) from e
    if not (isinstance(result, Sequence) and len(result) in (2, 3) and callable(result[0])):
        raise InputError("RF193", f"{spec} returned {type(result).__name__}",
                         help="return (model, args) or (model, args, kwargs)")
    args = result[1] if isinstance(result[1], (tuple, list)) else (result[1],)
    return Named(spec, result[0], tuple(args), dict(result[2]) if len(result) == 3 else None)
