"""Build what ``bench run --artifacts`` measures, on a machine with compilers and without a GPU: our compiled cases, and the
hand-written TileLang kernels they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from redfuser.bench.baselines import artifact_path, handwritten_folder
from redfuser.bench.thin import save_thin
from redfuser.errors import RedFuserError
from workloads.case import Case, parameter_bytes

THIN_BYTES = 1 << 20
"""Models with more weights than this travel without them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One thing built, or why not."""

    case: str
    what: str
    path: Path | None
    why: str = ""


def build(cases: Sequence[Case], target: str, folder: Path, handwritten: bool = True,
          progress: Callable[[str], None] = lambda text: None) -> Iterator[Outcome]:
    """Compile each case for ``target`` into ``folder``; a case that does not compile is an outcome, and the rest goes on."""
    import redfuser

    folder.mkdir(parents=True, exist_ok=True)
    for i, case in enumerate(cases, 1):
        progress(f"[{i}/{len(cases)}] {case}")
        path = artifact_path(folder, case)
        try:
            module = case.build()
            compiled = redfuser.compile(module, case.inputs("cpu", 0), target=target, casts=case.casts, fallback="allow")
            if parameter_bytes(module) > THIN_BYTES:
                path = save_thin(compiled, module, path)
            else:
                compiled.save(str(path))
        except RedFuserError as e:
            yield Outcome(str(case), "redfuser", None, e.render())
        else:
            reasons = [(c.name, c.reason) for c in compiled.report.refused if c.reason]
            refused = [f"{name} {r.code} {r.why or r.condition}" for name, r in reasons]
            yield Outcome(str(case), "redfuser", path, "kept unfused: " + ", ".join(refused) if refused else "")
        if handwritten and case.workload == "mha" and target.startswith("sm_"):
            yield from _handwritten(case, target, folder)


def _handwritten(case: Case, target: str, folder: Path) -> Iterator[Outcome]:
    from redfuser.artifact import save_kernel
    from redfuser.codegen.build import Request, build_many
    from redfuser.codegen.pool import BuildFailure
    from workloads.handwritten import CONFIGS, attention_args, attention_source

    a, p = case.attention, case.params
    if a is None or not a.plain or a.kv_heads != a.heads or p["q"] < 64:
        return
    fitting = [c for c in CONFIGS if p["kv"] % c.bn == 0]
    requests = [Request(attention_source(p["batch"], p["heads"], p["q"], p["kv"], p["d"], c, a.causal),
                        attention_args(p["batch"], p["heads"], p["q"], p["kv"], p["d"]), f"handwritten_{c.label}", target,
                        c.build_config) for c in fitting]
    for config, built in zip(fitting, build_many(requests), strict=True):
        if isinstance(built, BuildFailure):
            yield Outcome(str(case), f"handwritten:{config.label}", None, f"{built.code} {built.message}")
            continue
        path = handwritten_folder(folder, case) / config.label
        save_kernel(built, path)
        yield Outcome(str(case), f"handwritten:{config.label}", path)
