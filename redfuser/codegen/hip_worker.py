"""HIP text of kernels: ``python -m redfuser.codegen.hip_worker ASKED ANSWER``.

A process of its own, which imports tilelang (never apache-tvm) and needs no ROCm: TileLang lowers for ``gfx942`` anywhere. It
reads a JSON list of requests, ``{"source", "arch", "pass_configs", "shared_limit", "declared"}`` as the CUDA worker has them
and ``symbols``, those of a kernel of many sizes (:mod:`redfuser.codegen.sized`), and writes a list of answers,
``{"ok": true, "launches": [...], "texts": [...]}`` or ``{"ok": false, "stage", "error", "log"}``. A text stands by itself:
TileLang's own headers are in it, so that a ROCm toolchain is all that it takes to compile it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from redfuser import bounded
from redfuser.codegen import sized, worker
from redfuser.codegen.reread import reread
from redfuser.codegen.worker import StageError
from redfuser.sizes import Symbol

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]((?:tl_templates/hip/)?[\w/]+\.h(?:pp)?)[>"].*$', re.M)


def lower(func: Any, arch: str, pass_configs: dict[str, Any]) -> Any:
    """TileLang's lowering for an AMD architecture."""
    import tilelang
    from tilelang import tvm
    from tilelang.backend.target import determine_target

    target = determine_target({"kind": "hip", "mcpu": arch}, return_object=True)
    try:
        with tvm.transform.PassContext(opt_level=3, config=pass_configs), target:
            return tilelang.lower(func, target=target)
    except Exception as error:
        raise StageError("lower", f"{type(error).__name__}: {error}", traceback.format_exc()) from error


def alone(text: str, templates: Path) -> str:
    """``text`` with TileLang's headers in their places, each once."""
    seen: set[str] = set()

    def put(found: re.Match[str]) -> str:
        name = Path(found[1]).name
        path = templates / "tl_templates" / "hip" / name
        if not path.is_file() or (not found[1].startswith("tl_templates/") and "/" in found[1]):
            return found[0]
        if name in seen:
            return ""
        seen.add(name)
        own = path.read_text(encoding="utf-8").replace("#pragma once", f"// {name} of TileLang")
        return _INCLUDE.sub(put, own.rstrip() + f"\n// end of {name}\n")

    return _INCLUDE.sub(put, text)


def handle(request: dict[str, Any], templates: Path) -> dict[str, Any]:
    """One request to one answer."""
    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        try:
            lowered = [lower(func, request["arch"], request["pass_configs"])
                       for func in worker.load_prim_funcs(request["source"], Path(folder))]
            if not lowered:
                raise StageError("source", "make() returned no prim_func")
            symbols = tuple(Symbol(**s) for s in request["symbols"])
            described = [sized.describe(artifact, index, symbols) if symbols else worker.describe(artifact, index)
                         for index, artifact in enumerate(lowered)]
            worker.check_parameters(described, **request["declared"])
            launches = [launch for group in described for launch in group]
            for launch in launches:
                if launch["shared_bytes"] > request["shared_limit"]:
                    raise StageError("resources", f"{launch['entry']} needs {launch['shared_bytes']} bytes of shared memory, "
                                     f"{request['arch']} has {request['shared_limit']}")
            texts = [alone(reread(str(a.kernel_source)), templates) for a in lowered]
            return {"ok": True, "launches": launches, "texts": texts}
        except StageError as error:
            return {"ok": False, "stage": error.stage, "error": bounded.cut(str(error)), "log": bounded.cut(error.log)}
        except ValueError as error:  # launch data that are no sizes
            return {"ok": False, "stage": "metadata", "error": bounded.cut(str(error)), "log": ""}


def main(asked: str, answer: str) -> None:
    os.environ["TILELANG_PRINT_ON_COMPILATION"] = "0"
    from tilelang.env import TILELANG_TEMPLATE_PATH

    found = [handle(request, Path(TILELANG_TEMPLATE_PATH)) for request in json.loads(Path(asked).read_text(encoding="utf-8"))]
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
