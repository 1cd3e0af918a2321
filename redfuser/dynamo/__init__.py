"""``torch.compile(model, backend="redfuser")``: the entry point, and what was done with each graph.

    torch.compile(model, backend="redfuser", options={"target": "sm_90a", "casts": "elide"})
    redfuser.dynamo.reports()         # a line per graph; .report is its fusion report

torch finds :func:`backend` through the entry points of this package: nobody has to import redfuser. A graph of torch.compile
is captured here (:mod:`capture`), compiled in a process of its own (:mod:`compiler`, :mod:`worker`: no TVM in the user's),
kept in the store under what it depends on (:mod:`key`) and run by the runtime (:mod:`program`). What is not ours goes to
torch's default backend, with a note (:mod:`otherwise`). docs/torch-compile.md is the page for users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redfuser.dynamo.told import GraphReport

__all__ = ["backend", "clear", "reports"]


def backend(gm: Any, example_inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """What torch.compile calls with a graph; the result is called with the graph's inputs. Raises InputError for options
    that there are not (RF190, RF191) and for what no graph could be compiled for (RF104, RF106, RF459, RF496)."""
    from redfuser.dynamo.graphs import compile_graph
    from redfuser.dynamo.options import chosen

    return compile_graph(gm, list(example_inputs), chosen(mode, options))


def reports() -> list[GraphReport]:
    """What became of the last thousand graphs of this process, oldest first."""
    from redfuser.dynamo import told

    return told.all_of_them()


def clear() -> None:
    """Forget the reports."""
    from redfuser.dynamo import told

    told.clear()
