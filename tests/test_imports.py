"""Imports point one way and in no circle (CONTRIBUTING.md), heavy packages stay behind their doors, and `import redfuser` is cheap."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import redfuser
from redfuser.acrf.check import SOURCES
from redfuser.chain import JUDGES

ROOT = Path(__file__).resolve().parents[1]

# Lower layers first. A package imports packages of its own line or of lines above it, never below. Dotted names are rooms of a
# package; a module belongs to the longest name it begins with.
LAYERS = (
    ("errors", "codes", "dtypes", "rule", "unseen", "strict", "sizes", "fitted", "two_tvms", "tvm_compat", "bounded", "child", "elf", "progress", "turns", "users",
     "casting"),
    ("page", "reported"),
    ("report", "settings", "artifact", "target", "cache", "toolchain"),
    ("verdicts", "outline"),
    ("places", "numerics", "perturbed", "testing", "timing", "grouped", "fourier"),
    ("acrf",),
    ("acrf.check",),
    ("acrf.facts",),
    ("acrf.derive",),
    ("frontend", "strategies", "partition"),
    ("tensorize",),
    ("chain",),
    ("codegen",),
    ("runtime", "outer", "untuned", "finish"),
    ("autotune",),
    ("gate", "ranking"),
    ("plan",),
    ("kernels", "describe", "recheck", "dump", "whole", "steps"),
    ("pipeline",),
    ("autotune.prepare", "autotune.tune"),
    ("api", "subgraph", "doctor"),
    ("dynamo",),
    ("bench", "demo"),
    ("cli", "__main__"),
)
LEVEL = {name: i for i, line in enumerate(LAYERS) for name in line}

# package of the outside world -> the modules of redfuser that may import it (prefixes of dotted names)
DOORS = {
    "sympy": ("acrf.facts.freeze",),
    "tilelang": ("codegen.worker", "codegen.hip_worker"),
    "rich": ("cli",),
    "click": ("cli",),
    "transformers": ("demo",),
}
# packages, rooms or modules that must not touch another world at all
FORBIDDEN = {
    "acrf": ("torch", "tilelang"),
    "acrf.facts": ("redfuser.acrf.check",),
    "acrf.derive": ("redfuser.acrf.check",),
    "tensorize": ("torch", "tilelang"),
    "chain": ("torch", "tilelang", "redfuser.acrf.derive"),
    "recheck": ("redfuser.acrf.derive",),
    "codegen": ("tvm", "torch"),
    "runtime": ("tvm", "tilelang"),
    "report": ("torch", "tvm"),
    "reported": ("torch", "tvm"),
    "rule": ("torch", "tvm", "numpy"),
    "unseen": ("torch", "tvm", "ml_dtypes"),
    "settings": ("torch", "tvm"),
    "dynamo": ("tvm", "tilelang"),
}


@cache
def modules() -> dict[str, ast.Module]:
    paths = sorted((ROOT / "redfuser").rglob("*.py"))
    names = (".".join(p.relative_to(ROOT / "redfuser").with_suffix("").parts).removesuffix(".__init__") for p in paths)
    return {name: ast.parse(path.read_text(), str(path)) for name, path in zip(names, paths, strict=True)}


@cache
def imports(tree: ast.Module) -> tuple[tuple[str, bool], ...]:
    """Dotted names of the modules imported anywhere in a file, and whether only for the type checker."""
    nodes = list(ast.walk(tree))
    guarded = [n for n in nodes if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING"]
    typing_only = {id(n) for block in guarded for n in ast.walk(block)}
    whole = {f"redfuser.{module}" for module in modules()}
    found = []
    for node in nodes:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}; write redfuser.x in full"
            base = node.module or ""
            names = [f"{base}.{a.name}" if f"{base}.{a.name}" in whole else base for a in node.names]
        found += [(name, id(node) in typing_only) for name in names]
    return tuple(found)


def circle(trees: Mapping[str, ast.Module]) -> str:
    """A circle of imports among the modules, or nothing. Imports inside functions and for the type checker count."""
    named = {f"redfuser.{m}": {target for target, _ in imports(tree)} for m, tree in trees.items()}
    try:
        TopologicalSorter({m: targets & named.keys() for m, targets in named.items()}).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return ""


def test_no_circle_of_imports() -> None:
    assert circle(modules()) == ""


@pytest.mark.parametrize("back", ["import redfuser.codes", "def f():\n from redfuser import codes",
                                  "if TYPE_CHECKING:\n from redfuser.codes import CODES"])
def test_a_circle_is_found_wherever_it_is_closed(back: str) -> None:
    forth = ast.parse("from redfuser.errors import InputError")
    assert circle({"errors": ast.parse(""), "codes": forth}) == ""
    assert circle({"errors": ast.parse(back), "codes": forth}) in (
        "redfuser.errors <- redfuser.codes <- redfuser.errors", "redfuser.codes <- redfuser.errors <- redfuser.codes")


def within(module: str, *places: str) -> bool:
    return any(module == p or module.startswith(p + ".") for p in places)


def level(module: str) -> int | None:
    """Of the longest name in LAYERS that the module lies in."""
    return LEVEL[max(found, key=len)] if (found := [name for name in LEVEL if within(module, name)]) else None


def test_imports_point_one_way() -> None:
    wrong = []
    for module, tree in modules().items():
        if module in ("", "__init__"):
            continue
        own = level(module)
        assert own is not None, f"redfuser/{module} has no layer: give it one in this file"
        for target, _ in imports(tree):
            other = level(target.removeprefix("redfuser.")) if target.startswith("redfuser.") else None
            if other is not None and other > own:
                wrong.append(f"{module} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_a_module_belongs_to_its_room() -> None:
    line = {name: n for n, names in enumerate(LAYERS) for name in names}
    assert level("acrf.expr") == level("acrf") == line["acrf"] < line["acrf.check"] == level("acrf.check.verify")
    assert level("acrf.derive") == line["acrf.derive"] and level("acrf.derived") == line["acrf"] and level("acrfx") is None


def test_a_reader_is_told_of_every_module() -> None:
    """Packages and the modules beside them stand in CONTRIBUTING's reading order."""
    told = (ROOT / "CONTRIBUTING.md").read_text().partition("## Reading order")[2].partition("## How to")[0]
    top = {p.stem for p in (ROOT / "redfuser").iterdir() if (p.suffix == ".py" or (p / "__init__.py").is_file())}
    assert not [m for m in sorted(top) if not m.startswith("__") and f"`{m}`" not in told and f"`{m}/`" not in told
                and f"`redfuser/{m}.py`" not in told]


def test_outside_packages_stay_behind_their_doors() -> None:
    wrong = []
    for module, tree in modules().items():
        for target, typing_only in imports(tree):
            package = target.split(".")[0]
            if package in DOORS and not within(module, *DOORS[package]):
                wrong.append(f"{module} imports {target}")
            worlds = [w for place, worlds in FORBIDDEN.items() if within(module, place) for w in worlds]
            if within(target, *worlds) and not typing_only and module != "acrf.lift":
                wrong.append(f"{module} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_the_checker_runs_without_the_deriver() -> None:
    code = "import redfuser.acrf.check.verify\nimport sys\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    loaded = [m.removeprefix("redfuser.") for m in out.split()]
    assert "acrf.check.claims" in loaded
    assert not [m for m in loaded if within(m, "acrf.derive", "acrf.facts", "sympy", "z3", "tvm", "torch")]


@pytest.mark.parametrize("judge, sources", [("acrf.check", SOURCES), ("chain", JUDGES)])
def test_a_verdict_depends_on_all_that_its_judge_imports(judge: str, sources: tuple[str, ...]) -> None:
    """What a remembered verdict is filed under (redfuser.verdicts) names every module that had a say, and no other package."""
    todo, used = [m for m in modules() if within(m, judge)], set[str]()
    while todo:
        used.add(module := todo.pop())
        targets = {target.removeprefix("redfuser.") for target, _ in imports(modules()[module]) if within(target, "redfuser")}
        assert targets <= modules().keys(), f"{module} takes names from {targets - modules().keys()}"
        todo += targets - used
    named = [s.removeprefix("redfuser.") for s in sources]
    assert sorted(m for m in used if not within(m, *named)) == []
    assert [n for n in named if not any(within(m, n) for m in used)] == []


@pytest.mark.parametrize("names", ["redfuser", "redfuser.report, redfuser.settings", "redfuser.acrf.expr", "redfuser.dynamo"])
def test_import_is_cheap(names: str) -> None:
    """Naming the package, its report and the expression IR costs no torch, TVM, TileLang or sympy."""
    code = f"import {names}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    loaded = out.split()
    assert not {"torch", "tvm", "tilelang", "sympy", "z3", "numpy", "click", "rich"} & set(loaded)


def test_tvm_is_asked_for_no_class_that_it_lacks() -> None:
    """The first question after an unknown one costs half of what importing TVM does. What is left out can be imported later."""
    code = ("import sys; from tvm_ffi import registry\nask, unknown = registry.core._object_type_key_to_index, []\n"
            "def asked(key):\n    found = ask(key)\n    unknown.append(key) if found is None else None\n    return found\n"
            "registry.core._object_type_key_to_index = asked\nimport redfuser.tvm_compat\n"
            "import os, tvm\nleft = 'tvm.runtime.disco' in sys.modules, 'TVM_DEVICE_BACKEND_AUTOLOAD' in os.environ\n"
            "sys.stdout.write(repr((unknown, *left, 'tvm_runtime_extra' in tvm.base._LOADED_LIBS)))")
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out == "([], False, False, False)"


def test_a_compile_leaves_the_collector_as_it_was() -> None:
    """Nothing older is walked meanwhile; what somebody else has frozen stays so."""
    from redfuser import turns

    assert gc.get_freeze_count() == 0
    with turns.taken(), turns.taken():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        with turns.taken():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_no_machine_paths_and_no_prints() -> None:
    """No path of somebody's machine in the tree; only the command line and the demo print."""
    wrong = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if text.startswith(("/home/", "/Users/", "/mnt/")):
                wrong.append(f"{module}:{node.lineno} path {text}")
            printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if printing and module.split(".")[0] not in ("cli", "demo") and module != "codegen.worker":
                wrong.append(f"{module}:{node.lineno} prints")
    assert not wrong, "\n".join(wrong)


def test_public_names_are_no_modules() -> None:
    """A submodule of the same name would replace the function as soon as it is imported."""
    import redfuser

    taken = {p.stem for p in (ROOT / "redfuser").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert not taken & set(redfuser.__all__)


def test_whoever_checks_types_sees_the_public_names() -> None:
    """They are looked up when they are used; py.typed would promise the types of none of them without imports for the checker."""
    tree = ast.parse((ROOT / "redfuser" / "__init__.py").read_text(encoding="utf-8"))
    guards = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {f"{node.module}.{name.name}" for guard in guards for node in guard.body if isinstance(node, ast.ImportFrom)
            for name in node.names}
    assert seen == {f"{home}.{name}" for name, home in redfuser._HOMES.items()}
    hidden = [f.name for guard in guards for f in guard.body if isinstance(f, ast.FunctionDef)]
    assert hidden == ["__getattr__"], "a name that there is none of is an error for the checker, too"
