"""``make demo``: a BERT-base with random weights, compiled for the CPU: what was found, proved, generated and checked.

Each section is one call of the public interface, printed before its result, so that the demo reads as a tutorial.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import time
import warnings
from dataclasses import replace
from typing import Any


def main(argv: list[str] | None = None) -> int:
    """Run the demo; the exit code is 0 when the compiled model is within the numerics rule."""
    parser = argparse.ArgumentParser(prog="python -m redfuser.demo", description=__doc__)
    parser.add_argument("--layers", type=int, default=12, help="depth of the BERT (default: BERT-base's 12)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--arch", default="sm_90a", help="GPU architecture of the kernel that is shown")
    options = parser.parse_args(argv)
    for noise in (DeprecationWarning, FutureWarning):  # of torch.export's own tree code
        warnings.filterwarnings("ignore", category=noise)

    import torch

    import redfuser
    from redfuser import numerics

    _title("1. A model as people have it: BERT-base from its public configuration, random weights, exported")
    model, args = bert(options.layers, options.tokens)
    program = _timed("torch.export.export(model, (ids,))", lambda: torch.export.export(model, args))

    _title("2. Compiled for this machine's CPU, and what was found")
    compiled = _timed('redfuser.compile(program, target="cpu")',
                      lambda: redfuser.compile(program, target="cpu", fallback="allow"))
    print(replace(compiled.report, model=f"BERT, {options.layers} layers, {options.tokens} tokens").summary())

    fused = compiled.report.fused
    if not fused:
        print("nothing was fused: that is a defect", file=sys.stderr)
        return 1
    shown = max(fused, key=lambda c: len(re.findall(r"= \w+(?:\(\d+\))?\[\w+\] ", c.cascade)))  # the most reductions
    _title(f"3. The cascade of {shown.name}, and the mergeable state derived from it (derived, and proved, not matched)")
    print(shown.cascade)
    print()
    print(shown.fused_form)

    _title(f"4. The TileLang kernel of {shown.name} for {options.arch}, from the model in float16 (generating it needs no GPU)")
    half = torch.export.export(copy.deepcopy(model).half(), args)
    print(_timed(f'redfuser.kernel(half).bind(target="{options.arch}").source("{shown.name}")',
                 lambda: kernel_source(half, shown.name, options.arch)))

    _title("5. Checked: float64 from the same inputs; our error against that of the unfused model")
    checks = numerics.check(compiled, model, args)
    for c in checks:
        print(c)
    return 0 if all(c.passed for c in checks) else 4


def bert(layers: int, tokens: int) -> tuple[Any, tuple[Any, ...]]:
    """A BERT in float32 of ``layers`` layers and its token ids [1, tokens]."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(num_hidden_layers=layers), add_pooling_layer=False).eval()

    class LastHidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.bert(input_ids=ids).last_hidden_state

    return LastHidden().eval(), (torch.randint(0, 30522, (1, tokens)),)


def kernel_source(program: Any, cascade: str, arch: str) -> str:
    """The TileLang source of one cascade for ``arch``, planned and not built; or why there is none."""
    import redfuser

    bound = redfuser.kernel(program).bind(target=arch)
    return bound.source(cascade) or f"no kernel for {arch}: {bound.report().cascade(cascade).reason}"


def _title(text: str) -> None:
    print(f"\n== {text}\n")


def _timed(what: str, f: Any) -> Any:
    start = time.perf_counter()
    print(f">>> {what}", flush=True)
    out = f()
    print(f"    {time.perf_counter() - start:.1f} s\n", flush=True)
    return out


if __name__ == "__main__":
    sys.exit(main())
