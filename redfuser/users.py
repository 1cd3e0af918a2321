"""What is the user's to mend and no bug of ours: an exception out of their own code, and a package that is not installed."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redfuser.errors import InputError

EXTRAS = {"tvm": "compile", "tilelang": "compile", "sympy": "compile", "mpmath": "compile", "z3": "compile",
          "ml_dtypes": "compile", "onnx": "onnx", "onnxscript": "onnx", "transformers": "models"}
"""Import names of what RedFuser uses beside its plain dependencies, and the extra (pyproject.toml) that brings each."""

_OURS = str(Path(__file__).resolve().parent) + os.sep
_LIBRARIES = tuple(str(Path(p).resolve()) + os.sep for p in {*sysconfig.get_paths().values(), os.path.dirname(os.__file__)})
_NO_MODELS = frozenset({"redfuser", "torch", *sys.stdlib_module_names})
"""Packages whose frames are nobody's model."""
_SPENT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})


def missing_extra(error: ModuleNotFoundError) -> InputError | None:
    """RF106 for a package of an extra of ours; None for any other."""
    package = (error.name or "").split(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return InputError("RF106", f"{package} is not installed", why=f"it comes with the extra {extra!r} of redfuser",
                      help=f"pip install 'redfuser[{extra}]'" + ("; loading and running saved models needs no extra"
                                                                 if extra == "compile" else ""))


def refused_by_machine(error: BaseException) -> InputError | None:
    """RF109 for what the system has none left of (disk, memory, open files) or does not let anybody write; None for any
    other."""
    if isinstance(error, MemoryError):
        why = str(error) or "there is no memory left"
    elif isinstance(error, OSError) and (error.errno in _SPENT or "No usable temporary directory" in str(error)):
        why = str(error)
    else:
        return None
    return InputError("RF109", "this machine refused what was asked of it", why=why,
                      help="make room there, or name another place: TMPDIR for temporary files, REDFUSER_CACHE_DIR for "
                      "the store")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that torch's own tree code gives about itself whenever it copies an export. Nothing of the model's
    is hidden: the filter is that one message."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        yield


@contextmanager
def unlogged() -> Iterator[None]:
    """Without what torch tells of an error besides raising it: stack traces in its log, and the graph up to there, which its
    export prints. Whoever asks torch for a log (TORCH_LOGS) has all of it; loggers of others are not touched."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    from torch.export import _trace

    torchs = [logger for name, logger in list(logging.root.manager.loggerDict.items())
              if name.split(".")[0] == "torch" and isinstance(logger, logging.Logger)]
    muted = [(handler, _Nothing()) for logger in torchs for handler in logger.handlers]
    for handler, nothing in muted:
        handler.addFilter(nothing)
    vars(_trace)["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        for handler, nothing in muted:
            handler.removeFilter(nothing)
        vars(_trace).pop("print", None)


class _Nothing(logging.Filter):
    """Lets no record through."""

    def filter(self, record: logging.LogRecord) -> bool:
        return False


@contextmanager
def extras_named() -> Iterator[None]:
    """A missing package of an extra is told as that."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (told := missing_extra(error)) is None:
            raise
        raise told from error


def own_code(what: str, error: BaseException) -> InputError:
    """RF107: ``what`` (importing models.py, the model's forward) raised; with the last line of the model that it went through.
    Raise it ``from error``."""
    text = next(iter(str(error).strip().splitlines()), "")
    return InputError("RF107", f"{what} raised {type(error).__name__}", where=last_line(error), why=text,
                      help="the same call fails without RedFuser; the original exception is this one's __cause__")


def last_own_line(error: BaseException) -> str:
    """``model.py:42 in forward``: the innermost frame that is neither ours nor a library's; empty where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = str(Path(frame.filename).resolve())
        if not re.match(r"<.*>$", frame.filename) and not path.startswith((_OURS, *_LIBRARIES)):
            return f"{Path(path).name}:{frame.lineno} in {frame.name}"
    return ""


def last_line(error: BaseException) -> str:
    """The same; of a library's model (transformers) the innermost frame that is neither ours, torch's nor Python's."""
    found = last_own_line(error)
    for frame, line in () if found else traceback.walk_tb(error.__traceback__):
        code, package = frame.f_code, str(frame.f_globals.get("__name__", "")).split(".")[0]
        if package and package not in _NO_MODELS and not re.match(r"<.*>$", code.co_filename):
            found = f"{Path(code.co_filename).name}:{line} in {code.co_name}"
    return found
