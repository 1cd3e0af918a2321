"""The compile process of torch.compile's backend, and the store: what a process that dies leaves, and when a graph is another one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from redfuser import child
from redfuser.cache import Cache
from redfuser.dynamo import compiler
from redfuser.dynamo.compiler import Process
from redfuser.dynamo.options import chosen
from redfuser.dynamo.recipe import Recipe
from redfuser.errors import BuildError, InternalError


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path / "store"))


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


ONCE = """
import json, os, sys
flag = sys.argv[1]
for line in sys.stdin:
    request = json.loads(line)
    if not os.path.exists(flag):
        open(flag, "w").close()
        os._exit(7)
    open(request["artifact"], "wb").write(b"done")
    print(json.dumps({"id": request["id"], "ok": True}), flush=True)
"""


POPEN = subprocess.Popen


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str, *args: str) -> Process:
    """A compile process that runs other code."""
    def popen(_: Any, **how: Any) -> Any:
        return POPEN([sys.executable, "-S", "-c", code, *args], **how)

    monkeypatch.setattr(child.subprocess, "Popen", popen)
    monkeypatch.setattr(compiler, "_write", lambda program, path: None)
    return Process()


def test_a_process_that_dies_is_replaced_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    once = stand_in(monkeypatch, ONCE, str(tmp_path / "flag"))
    assert once.compile(None, "cpu", "x", chosen(), "g") == b"done"
    pid = once.pid
    assert once.compile(None, "cpu", "x", chosen(), "g") == b"done" and once.pid == pid
    once.stop()
    always = stand_in(monkeypatch, "import os, sys; sys.stderr.write('out of luck'); sys.stderr.flush(); os._exit(9)")
    with pytest.raises(BuildError, match="out of luck") as caught:
        always.compile(None, "cpu", "x", chosen(), "g")
    assert caught.value.code == "RF136" and always.pid is None


BROKEN = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], "ok": False, "kind": "InternalError", "code": "RF900", "what": "odd"}), flush=True)
"""


def test_a_process_whose_compiler_broke_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = stand_in(monkeypatch, BROKEN)
    with pytest.raises(InternalError, match="odd"):
        broken.compile(None, "cpu", "x", chosen(), "g")
    assert broken.pid is None


def test_an_interrupt_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping = stand_in(monkeypatch, "import time; time.sleep(600)")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            sleeping.compile(None, "cpu", "x", chosen(), "g")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sleeping.pid is None


def test_what_the_key_is_over() -> None:
    from redfuser.dynamo.key import key

    def graph(scale: float = 2.0, name: str = "x") -> torch.fx.GraphModule:
        made = torch.fx.Graph()
        made.output((made.call_function(torch.softmax, (made.call_function(torch.mul, (made.placeholder(name), scale)), -1)),))
        return torch.fx.GraphModule(nn.Module(), made)

    x = torch.ones(4, 8)
    one = key(graph(), [x], "cpu", ["preserve"])
    assert one and one == key(graph(name="other"), [torch.zeros(4, 8)], "cpu", ["preserve"])
    others = [key(graph(3.0), [x], "cpu", ["preserve"]), key(graph(2), [x], "cpu", ["preserve"]),  # type: ignore[arg-type]
              key(graph(), [x.half()], "cpu", ["preserve"]), key(graph(), [torch.ones(8, 4).t()], "cpu", ["preserve"]),
              key(graph(), [x.requires_grad_()], "cpu", ["preserve"]), key(graph(), [x], "sm_90a", ["preserve"]),
              key(graph(), [x.detach()], "cpu", ["elide"])]
    assert len({one, *others}) == 8 and all(others)
    own = torch.fx.Graph()
    own.output((own.call_function(softmax, (own.placeholder("x"),)),))
    assert key(torch.fx.GraphModule(nn.Module(), own), [x], "cpu", []) == "", "a function of somebody's own has no name that means it"


def test_damage_in_the_store_is_a_miss() -> None:
    from redfuser.dynamo.graphs import _pack, _read

    store, key = Cache(), "ab" * 32
    recipe = Recipe((0,), (), (), (), (0,))
    for damaged in (b"{}\nnothing", b"nothing", b"", _pack(recipe, "", b"nothing")):
        store.put(key, damaged)
        assert _read(store, key) is None and store.get(key) is None
    store.put(key, _pack(recipe, "cd" * 32, b""))
    assert _read(store, key) is None and store.get(key) is not None, "the artifact has gone; the recipe is right"
    store.put("cd" * 32, b"nothing")
    assert _read(store, key) is None and store.get("cd" * 32) is None
    assert Recipe.from_json(Recipe((0,), (), (), (), (0,)).to_json()) == Recipe((0,), (), (), (), (0,))
