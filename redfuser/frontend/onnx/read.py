"""An ONNX file, and the tensors that lie in it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from redfuser.errors import InputError

SMALL = 1 << 16
"""Integer and boolean initializers up to this many elements are known when the graph is walked."""


def load(model: Any) -> Any:
    """The ``ModelProto`` with local functions inlined. Raises InputError RF119."""
    try:
        import onnx
    except ImportError as error:
        raise InputError("RF119", "the onnx package is not installed", help="pip install onnx") from error
    where = str(model) if isinstance(model, (str, os.PathLike)) else "bytes"
    try:
        if isinstance(model, (str, os.PathLike)):
            model = onnx.load(os.fspath(model))
        elif isinstance(model, (bytes, bytearray)):
            model = onnx.load_model_from_string(bytes(model))
        if not model.HasField("graph") or not model.graph.output:
            raise ValueError("there is no graph in it")
        return onnx.inliner.inline_local_functions(model) if len(model.functions) else model
    except (OSError, ValueError) as error:
        why = str(error)
    except Exception as error:  # protobuf raises a class of its own per implementation
        why = f"{type(error).__name__}: {error}"
    raise unreadable(where, why, "check it with onnx.checker.check_model; external data must lie beside the file")


def unreadable(where: str, why: str, help: str) -> InputError:
    return InputError("RF119", "the ONNX model cannot be read", where=where, why=why, help=help)


def held(proto: Any) -> np.ndarray:
    """A ``TensorProto`` or a ``SparseTensorProto`` as an array. Raises InputError RF119."""
    import onnx

    sparse = isinstance(proto, onnx.SparseTensorProto)
    name = proto.values.name if sparse else proto.name
    try:
        if not sparse:
            return onnx.numpy_helper.to_array(proto)
        values, places = onnx.numpy_helper.to_array(proto.values), onnx.numpy_helper.to_array(proto.indices)
        dense = np.zeros(tuple(proto.dims), values.dtype)
        dense[np.unravel_index(places, dense.shape) if places.ndim == 1 else tuple(places.T)] = values
        return dense
    except Exception as error:  # onnx raises classes of its own, which derive from Exception
        raise unreadable(f"the tensor {name}" if name else "a tensor without a name", str(error).strip(),
                         "check it with onnx.checker.check_model; external data that was not loaded with the model is added by"
                         " onnx.load_external_data_for_model(model, folder)") from error


def is_known(value: np.ndarray) -> bool:
    """Shapes, axes, positions, masks and scalars are constants of the program; everything else is a weight."""
    if value.size <= 1 or value.dtype.kind in "bO" or (value.dtype.kind in "iu" and value.size <= SMALL):
        return True
    # an additive mask has two values
    few = value.ndim >= 2 and value.dtype.kind == "f" and len(np.unique(value.reshape(-1)[:256])) <= 2
    return bool(few and len(np.unique(value)) == 2)
