"""Plant every error in every kernel of the corpus: ``python -m tests.chain.planted_table FILE [SOME]`` (hours).

A line of JSON a kernel goes to FILE, those that are there already are left out, and the table of all is printed. SOME: so many
errors of each kernel, drawn by its name."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from tests.chain.kernels import FORMS, NAMES, PRODUCTS, ROLES, TORCH, kernels
from tests.chain.survivors import table


def main(path: Path, some: int = 0) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {r["kernel"] for r in rows}
    for form, name in (*product(FORMS, NAMES), *product(ROLES, (*TORCH, *PRODUCTS))):  # the chosen forms first
        for kernel in kernels(name, (form,)):
            if kernel.name not in done:
                done.add(kernel.name)
                planted = kernel.planted
                rows.append(asdict(table(kernel, random.Random(kernel.name).sample(planted, some) if 0 < some < len(planted) else None)))
                with path.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(markdown(rows))


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| kernel | planted | caught | equivalent | missed |", "|---|---|---|---|---|"]
    sums = [0, 0, 0, 0]
    for r in rows:
        counts = [r["planted"], r["caught"], len(r["equivalent"]), len(r["missed"])]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        lines.append(f"| {r['kernel']} | " + (" | ".join(map(str, counts)) if not r["refused"] else "refused | | |") + " |")
    return "\n".join([*lines, f"| all {len(rows)} | " + " | ".join(map(str, sums)) + " |"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
