"""Run printed TileLang kernels on the CPU, through TileLang's ``c`` target: a script, in a process of its own.

    python c_target.py FOLDER ...      each with kernel.py and in.npz, arrays named as the kernels' parameters, and then out.npz

Fragments and shared memory become plain arrays, parallel and pipelined loops serial ones: the text's meaning is
checked, not layouts or asynchrony.
"""

import importlib.util
import os
import pathlib
import sys
import types

os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")

import numpy as np
import tilelang
import tilelang.language as language
import torch

PRELUDE = {"divided": lambda x, t: x / t, "exp2_approx": language.exp2, "reciprocal_approx": lambda x: 1.0 / x, "reciprocal_small": lambda x: 1.0 / x,
           "tanh_approx": language.tanh, "quotient": lambda x, y, z: x * y + x * z,
           "rounded_bf16": lambda x: language.cast(language.cast(x, "bfloat16"), "float32"),
           "within_e4m3": lambda x: language.if_then_else(language.abs(x) > 464.0, language.float32(float("nan")), x),
           "max_nan": lambda x, y: language.if_then_else(language.Or(x > y, x != x), x, y),
           "min_nan": lambda x, y: language.if_then_else(language.Or(x < y, x != x), x, y)}


def facade():
    t = types.ModuleType("T")
    for name in dir(language):
        setattr(t, name, getattr(language, name))
    t.alloc_fragment = t.alloc_shared = lambda shape, dtype, *a, **k: language.alloc_local(shape, dtype)
    t.Parallel = lambda *e, **k: language.grid(*e) if len(e) > 1 else language.serial(e[0])
    t.Pipelined = lambda a, b=None, **k: language.serial(a) if b is None else language.serial(a, b)
    t.Kernel = lambda *a, prelude=None, **k: language.Kernel(*a, **k)
    t.call_extern = lambda dtype, name, *args: PRELUDE[name](*args)
    t.ieee_frsqrt = language.rsqrt
    t.use_swizzle = t.annotate_layout = lambda *a, **k: None
    return t


def run(folder):
    text = (folder / "kernel.py").read_text().replace("import tilelang.language as T", "from redfuser_c_facade import T")
    path = folder / "kernel_c.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("generated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    memory = {k: torch.from_numpy(v) for k, v in np.load(folder / "in.npz").items()}
    for func in module.make():
        kernel = tilelang.compile(func, target="c", execution_backend="cython",
                                  pass_configs={"tirx.disable_vectorize": True})
        names = [str(func.buffer_map[p].name) for p in func.params]
        shapes = [[int(x) for x in func.buffer_map[p].shape] for p in func.params]
        kernel(*(memory[n].view(s) for n, s in zip(names, shapes, strict=True)))
    np.savez(folder / "out.npz", **{k: v.numpy() for k, v in memory.items()})


if __name__ == "__main__":
    sys.modules["redfuser_c_facade"] = types.ModuleType("redfuser_c_facade")
    sys.modules["redfuser_c_facade"].T = facade()
    for name in sys.argv[1:]:
        run(pathlib.Path(name))
