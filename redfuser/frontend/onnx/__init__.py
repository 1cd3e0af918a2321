"""ONNX models: each operator as torch, the whole exported like any other module.

The stock ONNX importer accumulates half precision in half precision, misreads Attention-23 and drops float8
quantisation; a second converter table would have to repeat every care that the ATen one takes. So an ONNX graph becomes
a module whose nodes call torch, what depends on shapes and constants alone is computed by ONNX's own reference
implementation on the way, and the ATen converters (and their opaque fallback) do the rest.
"""

from redfuser.frontend.onnx.model import import_onnx, is_onnx

__all__ = ["import_onnx", "is_onnx"]
