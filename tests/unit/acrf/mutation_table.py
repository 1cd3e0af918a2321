"""The table of every planted error in every accepted case (docs/results/DATE-mutations), about an hour of one processor.

    python -m tests.unit.acrf.mutation_table run OUT.jsonl [PART PARTS]     a case a line; parts run side by side
    python -m tests.unit.acrf.mutation_table table README.md OUT.jsonl ...  the table of what they found
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from redfuser.acrf.check.verify import check
from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.state import Fused
from redfuser.bench import provenance
from tests.unit.acrf.corpus import ACCEPT
from tests.unit.acrf.mutants import distinguishes, mutants


def run(out: Path, part: int, parts: int) -> None:
    """Every ``parts``-th case from ``part``; those that ``out`` has already are not tried again."""
    done = {json.loads(line)["case"] for line in out.read_text().splitlines()} if out.exists() else set()
    with out.open("a") as file:
        for case in ACCEPT[part::parts]:
            if case.name in done:
                continue
            fused, start = fuse(case.cascade, case.casts), time.process_time()
            assert isinstance(fused, Fused)
            planted = list(mutants(fused))
            alive = [m for m in planted if not check(m.fused, enough=1)]
            missed = [str(m) for m in alive if distinguishes(fused, m.fused)]
            row = {"case": case.name, "planted": len(planted), "caught": len(planted) - len(alive),
                   "equivalent": [str(m) for m in alive if str(m) not in missed], "missed": missed,
                   "seconds": round(time.process_time() - start, 1), "commit": provenance.commit()}
            print(json.dumps(row), file=file, flush=True)


def table(out: Path, parts: list[Path]) -> None:
    rows = sorted((json.loads(line) for p in parts for line in p.read_text().splitlines()), key=lambda r: r["case"])
    total = [sum(r["planted"] for r in rows), sum(r["caught"] for r in rows), *(
        sum(len(r[k]) for r in rows) for k in ("equivalent", "missed"))]
    lines = ["# Planted errors in fused states", "",
             f"{len(rows)} of {len(ACCEPT)} accepted cases of the corpus, {total[0]} mutants: every constant, operation, reference and neutral "
             "element of every state, changed one at a time.",
             f"The checker caught {total[1]}; {total[2]} are equivalent (no sample of a fresh seed tells them from the state), "
             f"{total[3]} missed.", "",
             f"Commit {', '.join(sorted({r['commit'] for r in rows}))}; {sum(r['seconds'] for r in rows) / 60:.0f} processor "
             "minutes; `python -m tests.unit.acrf.mutation_table`.", "",
             "| case | mutants | caught | equivalent | missed | s | commit |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {r['case']} | {r['planted']} | {r['caught']} | {len(r['equivalent'])} | {len(r['missed'])} | {r['seconds']} "
              f"| {r['commit']} |" for r in rows]
    lines += ["", "## Missed", "", *(f"* {r['case']}: {m}" for r in rows for m in r["missed"])] if total[3] else []
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(Path(sys.argv[2]), *map(int, sys.argv[3:5] or ("0", "1")))
    else:
        table(Path(sys.argv[2]), [Path(p) for p in sys.argv[3:]])
