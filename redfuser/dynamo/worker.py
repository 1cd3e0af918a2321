"""The compile process of torch.compile: reads requests as lines of JSON, writes artifacts. TVM lives here.

A request names a file of torch.export, an architecture and settings; what comes back is the path of an artifact that loads
without a compiler, or an error with its code.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
import warnings
from typing import Any

from redfuser import bounded
from redfuser.child import private_stdout
from redfuser.errors import RedFuserError


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """One request to one answer."""
    for name in [n for n in os.environ if n.startswith("REDFUSER_")]:
        del os.environ[name]
    os.environ.update(request["settings"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the report says is told where the user is
            _compile(request)
        return {"id": request["id"], "ok": True}
    except RedFuserError as error:
        parts = {k: bounded.cut(getattr(error, k)) for k in ("what", "where", "why", "help")}
        return {"id": request["id"], "ok": False, "kind": type(error).__name__, "code": error.code, **parts}
    except Exception as error:
        return {"id": request["id"], "ok": False, "kind": "InternalError", "code": "RF900",
                "what": f"the compiler raised {type(error).__name__}", "where": "", "help": "",
                "why": bounded.cut(f"{error}\n{traceback.format_exc()}")}


def _compile(request: dict[str, Any]) -> None:
    import torch

    from redfuser import pipeline, settings
    from redfuser.autotune import lookup
    from redfuser.runtime.model import CompiledModel
    from redfuser.users import extras_named

    settings.configure_logging()
    torch.set_default_dtype(getattr(torch, request["default_dtype"]))  # what operators make of integers and of nothing
    with extras_named():
        program = torch.export.load(request["program"])
        known = lookup.look_up(settings.load(tuning=request["tuning"]), request["arch"], request["part"])
        done = pipeline.run(program, arch=request["arch"], casts=request["casts"], disable=request["disable"],
                            verify=request["verify"], name=request["name"], records=known)
        CompiledModel.from_compilation(done).save(request["artifact"])


def _follow_parent(parent: int) -> None:
    """End with the parent, also in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> int:
    channel = private_stdout()
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        channel.write(json.dumps(handle(json.loads(line))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
