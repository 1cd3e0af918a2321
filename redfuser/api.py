"""The public functions ``compile``, ``explain`` and ``load``; ``kernel`` is in :mod:`redfuser.subgraph`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redfuser.errors import InputError, LoweringError
from redfuser.report import Report
from redfuser.users import extras_named

if TYPE_CHECKING:
    from redfuser.pipeline import Compilation
    from redfuser.runtime.model import CompiledModel


def compile(model: Any, args: Any = None, kwargs: Any = None, *, target: str | None = None, casts: str = "preserve",
            fallback: str | None = None, check: bool = False, tuning: str | None = None) -> CompiledModel:
    """Compile a model; the result is called like the original.

    model: an ExportedProgram, or the path of a ``.pt2`` file with one (loading it runs what it says: files that you trust); a
    module or function with example ``args`` / ``kwargs`` (tensors of the shapes and dtypes to compile for); an ONNX path, bytes
    or ModelProto; a Relax IRModule. Examples beside a model that has shapes of its own must be of these (RF505 ...).
    target: ``cpu``, ``cuda`` (this machine's GPU), ``sm_80``, ``sm_86``, ``sm_89``, ``sm_90a``, ``sm_100``, ``sm_120``,
    ``gfx942``, ``gfx90a``; building needs no GPU. AMD's kernels are HIP text until a ROCm toolchain compiles them
    (``redfuser build``, docs/rocm.md).
    casts: ``preserve`` or ``elide`` (algebra.md 2.5). fallback: ``warn`` (default), ``allow`` or ``error`` when a cascade
    stays unfused. check: run the numerics rule on the example inputs and put the result into the report. tuning: ``never``,
    ``cached`` (default), ``quick`` or ``full``: docs/tuning.md.

    Every distinct fusion is held against its certificate before a kernel is made of it, once per store (``REDFUSER_VERIFY``,
    docs/settings.md); the report says so per cascade. One that does not hold stays unfused, with a warning.

    The result shares the model's weights: it follows changes in place (``weight.mul_(2)``, ``load_state_dict``) and not a
    tensor that is put in another's place (``model.weight = ...``, ``weight.data = ...``). See docs/cli.md, "Weights".

    Raises InputError / UnsupportedError for what is wrong with the model, NumericsError RF801 when ``check`` fails, and
    LoweringError RF411 under ``fallback="error"``. A cascade that does not fuse is not an error: see ``.report``.
    """
    from redfuser import settings, turns

    chosen = settings.load(target=target, fallback=fallback, tuning=tuning)
    settings.configure_logging(chosen.logs)
    held = check or chosen.verify == "strict"
    with turns.taken(), extras_named():
        from redfuser import pipeline
        from redfuser.autotune import lookup, tune
        from redfuser.runtime.model import CompiledModel
        from redfuser.runtime.reference import reference

        name, model = _name(model), _opened(model)
        if held:
            reference(model, args, kwargs)  # what cannot be checked is said before anything is compiled
        arch, policy = architecture(chosen.target), cast_policy(casts)
        if chosen.tuning in ("quick", "full") and not chosen.disable:
            tune.here(model, args, kwargs, arch, policy, chosen, name)
        done = pipeline.run(model, args, kwargs, arch=arch, casts=policy, disable=chosen.disable, verify=chosen.verify,
                            name=name, records=lookup.look_up(chosen, arch))
        _warn(done.report)
        apply_fallback(done.report, chosen.fallback)
        compiled = CompiledModel.from_compilation(done)
    if held:
        compiled.check(model, args, kwargs)
    return compiled


def explain(model: Any, args: Any = None, kwargs: Any = None, *, target: str | None = None,
            casts: str = "preserve", tuning: str | None = None, texts: bool = False) -> Report:
    """What would fuse, with which strategy, and what would not and why; certificates are re-checked as by ``compile``.
    Builds no kernel, measures nothing and needs no GPU. texts: lower the kernels for one of AMD's targets to HIP, seconds each,
    for the report's page and its ``texts``."""
    return planned(model, args, kwargs, target, casts, tuning, texts).report


def planned(model: Any, args: Any, kwargs: Any, target: str | None, casts: str, tuning: str | None,
            texts: bool = False) -> Compilation:
    """What ``compile`` would build."""
    from redfuser import pipeline, settings
    from redfuser.autotune import lookup

    chosen = settings.load(target=target, tuning=tuning)
    settings.configure_logging(chosen.logs)
    with extras_named():
        arch = architecture(chosen.target)
        return pipeline.run(_opened(model), args, kwargs, arch=arch, casts=cast_policy(casts), build=False,
                            disable=chosen.disable, verify=chosen.verify, name=_name(model),
                            records=lookup.look_up(chosen, arch), texts=texts)


def load(path: Any, *, arch: str | None = None, device: Any = None) -> CompiledModel:
    """Load what ``compiled.save(path)`` wrote. Needs torch only: no TVM, no TileLang, no compiler. arch: the kernels to take,
    also on a machine that cannot run them, to look at; default: those of this machine. device: where its constants go.

    Raises ArtifactError RF6xx for a corrupt, too new or foreign-architecture file."""
    from redfuser.runtime.model import CompiledModel

    if arch is not None and not isinstance(arch, str):
        raise InputError("RF191", f"arch cannot be {arch!r}", help="the name of an architecture in the file: arch='sm_90a'")
    return CompiledModel.load(path, arch=arch, device=device)


def architecture(target: str) -> str:
    """``cpu`` or an architecture name that kernels are built for; ``cuda`` is this machine's GPU. Raises InputError RF496 for
    an unknown target or several, RF104 for ``cuda`` without a GPU."""
    from redfuser.target import TARGETS, older_of

    if "," in target:
        first = target.split(",")[0].strip()
        raise InputError("RF496", f"one target at a time, and not {target!r}",
                         why="several at once is what `redfuser compile --target` takes: one file with kernels for each",
                         help=f"name one: --target {first}, target={first!r}")
    if target == "cpu":
        return target
    if target == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("RF104", "target 'cuda' means this machine's GPU, and there is none",
                             help="name the architecture instead: target='sm_90a' builds without a GPU")
        from redfuser.runtime.host import gpu_architecture

        own = gpu_architecture()
        target = own if own in TARGETS else older_of(own) or own
    from redfuser.target import target as lookup

    try:
        return lookup(target).arch
    except InputError as error:
        named = error.help if older_of(target) else f"one of: {', '.join(['cpu', 'cuda', *TARGETS])}"
        raise InputError(error.code, error.what, why=error.why, help=named) from None


def cast_policy(casts: str) -> str:
    if casts not in ("preserve", "elide"):
        raise InputError("RF191", f"casts cannot be {casts!r}", help="'preserve' or 'elide'")
    return casts


def _name(model: Any) -> str:
    if isinstance(model, (str, os.PathLike)):
        return Path(model).name
    return getattr(model, "__name__", None) or type(model).__name__


def _opened(model: Any) -> Any:
    """The model in a ``.pt2`` file; any other as it is. Raises InputError RF192."""
    from redfuser.frontend.saved import is_saved, saved

    return saved(model) if is_saved(model) else model


def _warn(report: Report) -> None:
    for note in report.notes:
        if note.code == "RF108":
            warnings.warn(f"{note.code} {note.text}", RuntimeWarning, stacklevel=3)


def apply_fallback(report: Report, policy: str) -> None:
    """Tell, or refuse, what could not be fused. What was measured faster unfused (RF704) could, and is none."""
    left = [f"{c.name} {c.reason.code}" for c in report.refused if c.reason and c.reason.code != "RF704"]
    if not left or policy == "allow":
        return
    codes = ", ".join(left)
    text = f"{len(report.fused)} of {len(report.cascades)} cascades fused; kept unfused: {codes}"
    if policy == "error":
        raise LoweringError("RF411", text, help="fallback='warn' keeps them unfused; explain() gives each reason")
    warnings.warn(f"RF411 {text}", RuntimeWarning, stacklevel=3)
