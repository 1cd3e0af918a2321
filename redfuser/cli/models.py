"""Models named on the command line: a .pt2 file, an .onnx file, or ``module:function`` that returns (model, args)."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redfuser.errors import InputError
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
        return Named(path.name, _existing(path))
    if path.suffix.lower() == ".pt2":
        import torch

        from redfuser.users import quiet

        try:
            with quiet(), _unlogged("torch.export"):
                return Named(path.name, torch.export.load(_existing(path)))
        except Exception as e:
            if isinstance(e, InputError):
                raise
            raise InputError("RF192", f"{path.name} is not an ExportedProgram", why=str(e).split("\n")[0],
                             help="write it with torch.export.save(torch.export.export(model, args), path)") from e
    module, colon, function = spec.partition(":")
    if colon and module and function and "/" not in module:
        return _call(spec, module, function)
    raise InputError("RF192", f"{spec}: not a model", why="a model is a .pt2 file, an .onnx file, or module:function",
                     help="torch.export.save(torch.export.export(model, args), 'model.pt2')")


@contextlib.contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """torch logs the stack trace of an error that it raises besides."""
    logger = logging.getLogger(name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _existing(path: Path) -> str:
    if not path.is_file():
        raise InputError("RF192", f"no file {path}")
    return str(path)


def _call(spec: str, module: str, function: str) -> Named:
    sys.path.insert(0, str(Path.cwd()))
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
    finally:
        sys.path.pop(0)
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
