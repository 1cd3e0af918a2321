"""Models that lie in a file: what torch.export.save wrote. (An ONNX file's path is a model of its own.)"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from redfuser.errors import InputError
from redfuser.users import quiet, unlogged


def is_saved(model: Any) -> bool:
    """A path that ends in ``.pt2``."""
    return isinstance(model, (str, os.PathLike)) and Path(model).suffix.lower() == ".pt2"


def saved(path: str | os.PathLike[str]) -> Any:
    """The ExportedProgram in a file. torch.export.load runs what the file says: open files from people you trust only. Raises
    InputError RF192 where there is no file, or another than that."""
    import torch

    name = existing(path)
    try:
        with quiet(), unlogged():
            return torch.export.load(name)
    except Exception as error:
        raise InputError("RF192", f"{Path(path).name} is not an ExportedProgram", why=str(error).split("\n")[0],
                         help="write it with torch.export.save(torch.export.export(model, args), path)") from error


def existing(path: str | os.PathLike[str]) -> str:
    """The path as text. Raises InputError RF192 where no file is."""
    if not Path(path).is_file():
        raise InputError("RF192", f"no file {path}")
    return os.fspath(path)
