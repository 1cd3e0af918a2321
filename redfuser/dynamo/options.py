"""What ``torch.compile(..., backend="redfuser", mode=..., options={...})`` may say, as one frozen object.

An option beats its variable (docs/settings.md); without either, the target follows the device of a graph's inputs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from redfuser import settings
from redfuser.api import architecture, cast_policy
from redfuser.errors import InputError

OPTIONS: dict[str, str] = {
    "target": "`cpu`, `cuda`, `sm_90a` ...; default: the device of the graph's inputs",
    "casts": "`preserve` (default) or `elide`: whether roundings may go where that is provably no worse",
    "fallback": "`warn` (default), `allow` or `error`: for a cascade that stays unfused, and for a graph that is given back",
    "verify": "`\"1\"` (default), `\"0\"` or `\"strict\"`: checks of what is compiled",
    "tuning": "`cached` (default): kernels as tuning records say, where there are some; `never`: as the model says",
    "disable": "`True`: fuse nothing, run the outer graph only",
    "cuda_graphs": "`True`: replay each graph as a CUDA graph, as `mode=\"reduce-overhead\"` does",
    "shapes": "how many shapes one graph with symbolic sizes is compiled for (default 8)",
    "otherwise": "the backend for graphs that are given back (default `inductor`; `eager` where that cannot run)",
}
"""The options and what they mean; docs/torch-compile.md has :func:`table`'s text."""
MODES = ("default", "reduce-overhead")


def table() -> str:
    """The options as a Markdown table, for docs/torch-compile.md."""
    return "\n".join(["| option | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in OPTIONS.items())])


@dataclass(frozen=True, slots=True)
class Chosen:
    """``target`` is empty where it follows the inputs."""

    target: str
    casts: str
    fallback: str
    verify: str
    tuning: str
    disable: bool
    cuda_graphs: bool
    shapes: int
    otherwise: str

    def arch(self, device: str) -> str:
        """The architecture for a graph whose inputs are on a device of that type. Raises InputError RF503 when the target
        is of another kind, and what :func:`redfuser.api.architecture` raises."""
        arch = architecture(self.target or device)
        if (arch == "cpu") != (device == "cpu"):
            raise InputError("RF503", f"the graph's inputs are on {device}, and the target is {arch}",
                             help="move the model and its inputs, or leave the target out: it follows the inputs")
        return arch


def chosen(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Chosen:
    """Raises InputError RF190 for an unknown option, RF191 for a value that is not allowed."""
    given = dict(options or {})
    for name in given:
        if name not in OPTIONS:
            near = difflib.get_close_matches(str(name), OPTIONS, n=1)
            raise InputError("RF190", f"unknown option {name!r}", where='torch.compile(backend="redfuser")',
                             help=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(OPTIONS)}")
    if mode is not None and mode not in MODES:
        raise InputError("RF191", f"mode cannot be {mode!r}", where='torch.compile(backend="redfuser")',
                         why="kernels are chosen by tuning records and the model of resources",
                         help=f"one of {', '.join(MODES)}")
    found = settings.load(**{k: given.get(k) for k in ("target", "fallback", "verify", "tuning", "disable")})
    settings.configure_logging(found.logs)
    if found.tuning in ("quick", "full") and "tuning" in given:
        raise InputError("RF191", f"tuning cannot be {found.tuning!r}", where='torch.compile(backend="redfuser")',
                         why="graphs are compiled without the device, and nothing is measured on the way",
                         help="'cached' or 'never'; `redfuser tune` and redfuser.compile measure")
    shapes = given.get("shapes", 8)
    if isinstance(shapes, bool) or not isinstance(shapes, int) or shapes < 1:
        raise InputError("RF191", f"shapes cannot be {shapes!r}", help="a number of shapes, 1 or more")
    for name in ("cuda_graphs", "disable"):
        if not isinstance(given.get(name, False), bool):
            raise InputError("RF191", f"{name} cannot be {given[name]!r}", help="True or False")
    otherwise = given.get("otherwise", "inductor")
    if not isinstance(otherwise, str) or otherwise == "redfuser" or otherwise not in torch._dynamo.list_backends(()):
        raise InputError("RF191", f"otherwise cannot be {otherwise!r}",
                         help="the name of another backend: torch._dynamo.list_backends(()) has them all")
    return Chosen("" if found.sources["target"] == "default" else found.target, cast_policy(given.get("casts", "preserve")),
                  found.fallback, found.verify, "never" if found.tuning == "never" else "cached", found.disable,
                  mode == "reduce-overhead" or given.get("cuda_graphs", False), shapes, otherwise)
