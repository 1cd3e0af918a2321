"""Runs what RedFuser built: torch, tvm-ffi and the GPU driver, and neither TVM, tilelang nor a kernel compiler."""

from redfuser.runtime.launcher import Kernel, launcher

__all__ = ["Kernel", "launcher"]
