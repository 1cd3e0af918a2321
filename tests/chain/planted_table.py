"""Plant every error in every kernel of the corpus (docs/results/DATE-planted), most of an hour of one processor::

    python -m tests.chain.planted_table pack FOLDER               lowers the kernels; the compilers are needed
    python -m tests.chain.planted_table run FOLDER FILE [JOBS]    plants and checks; NumPy is enough, on any machine
    python -m tests.chain.planted_table table FILE                prints the table

A line of JSON goes to FILE for each slice of a kernel's errors; those that are there already are left out."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from tests.chain.survivors import Kernel, table

SLICES = 6


def pack(folder: Path) -> None:
    from tests.chain.kernels import FORMS, NAMES, PRODUCTS, ROLES, TORCH, kernels

    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for form, name in (*product(FORMS, NAMES), *product(ROLES, (*TORCH, *PRODUCTS))):  # the chosen forms first
        for kernel in kernels(name, (form,)):
            if kernel.name not in seen:
                seen.add(kernel.name)
                (folder / f"{len(seen):03}.pkl").write_bytes(pickle.dumps((kernel.name, kernel.twins)))


def run(folder: Path, file: Path, jobs: int) -> None:
    done = {(r["kernel"], r["slice"]) for r in _rows(file)}
    work = [(p, k) for k in range(SLICES) for p in sorted(folder.glob("*.pkl"))
            if (pickle.loads(p.read_bytes())[0], k) not in done]
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=8) as pool, file.open("a") as out:
        for row in pool.imap_unordered(_slice, work):
            print(json.dumps(row), file=out, flush=True)


def _slice(which: tuple[Path, int]) -> dict[str, Any]:
    path, k = which
    kernel = _kernel(path)
    return {**asdict(table(kernel, kernel.planted[k::SLICES])), "slice": k}


@lru_cache(maxsize=1)
def _kernel(path: Path) -> Kernel:
    return Kernel(*pickle.loads(path.read_bytes()))


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def markdown(rows: list[dict[str, Any]]) -> Iterator[str]:
    """One line a kernel, and what was missed."""
    yield from ("| kernel | planted | caught | equivalent | missed |", "|---|---|---|---|---|")
    kernels = {n: [r for r in rows if r["kernel"] == n] for n in sorted({r["kernel"] for r in rows})}
    sums = [0, 0, 0, 0]
    for name, parts in kernels.items():
        if refused := next((r["refused"] for r in parts if r["refused"]), ""):
            yield f"| {name} | refused: {refused} | | | |"
            continue
        counts = [sum(n) for n in zip(*((r["planted"], r["caught"], len(r["equivalent"]), len(r["missed"])) for r in parts), strict=True)]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        yield f"| {name} | " + " | ".join(map(str, counts)) + f" |{'' if len(parts) == SLICES else ' (not all)'}"
    yield f"| all {len(kernels)} | " + " | ".join(map(str, sums)) + " |"
    yield from ("", "## Missed", "", *(f"* {r['kernel']}: `{m}`" for r in rows for m in r["missed"]))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pack", folder]:
            pack(Path(folder))
        case ["run", folder, file, *jobs]:
            run(Path(folder), Path(file), int(*jobs or (1,)))
        case ["table", file]:
            print("\n".join(markdown(_rows(Path(file)))))
        case _:
            sys.exit(__doc__)
