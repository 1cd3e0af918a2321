"""torch looks its composite operators up once, not once for every namespace of operators and every time it is asked.

Both the table of decompositions and what applies it want the composite operators of all thirteen or so namespaces, and name all
800 of torch's before they look into each: about half of what it takes to decompose a small program. They are named once here,
before; what somebody registers between two programs is there for the second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch._export import utils

_NAME = "_materialize_cpp_cia_ops"
"""Of torch 2.13. Where torch has no such function, nothing is done."""
_alone = threading.RLock()
"""One program at a time: a second thread would put the replacement back for good."""


@contextmanager
def named_once() -> Iterator[None]:
    """Inside of it no operator is registered."""
    with _alone:
        name = getattr(utils, _NAME, None)
        if name is None:
            yield
            return
        name()
        setattr(utils, _NAME, lambda: None)
        try:
            yield
        finally:
            setattr(utils, _NAME, name)
