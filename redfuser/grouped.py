"""Grouped products with ends that hold, as two operators of torch::

    ends = torch.ops.redfuser.group_ends(offs, 4096)     int32 or int64 [E] --> int32 [E], ascending in [0, 4096], the last 4096
    y = torch.ops.redfuser.grouped_mm(x, w, ends)        [T, K] x [E, K, N] --> [T, N]: rows up to ends[e] meet w[e]

torch's own product (``aten._grouped_mm``) takes what its offsets say on trust: beyond the rows, or descending, they read and
write elsewhere, and rows behind the last are left as memory was found. Ends that :func:`group_ends` made cover every row once;
rows behind the last meet the last group (of the program's nothing is known). What a saved graph gives the product is held to be
such ends (:class:`redfuser.runtime.shapes.Ends`), so offsets of several products are looked at once.

Operands lie as torch wants them: rows or columns dense, each a multiple of 16 bytes. Others are copied, or padded with zeros.
"""

from __future__ import annotations

import torch
from torch.nn import functional

GROUP_ENDS, GROUPED_MM = "redfuser.group_ends.default", "redfuser.grouped_mm.default"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What torch forms grouped products of."""
ALIGN = 16
"""Bytes."""


def group_ends(offs: torch.Tensor, rows: int) -> torch.Tensor:
    """The ends of groups in ``rows`` rows, for offsets of any values. Offsets that are such ends are returned as they are, but
    for the last: rows behind it belong to its group."""
    ends = torch.cummax(offs.clamp(0, rows), 0).values.to(torch.int32)
    ends[-1:].fill_(rows)
    return ends


def grouped_mm(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Contiguous [T, N]. ``ends`` are of :func:`group_ends` for ``T`` rows."""
    columns, fit = w.shape[2], ALIGN // x.element_size()
    inner, outer = -x.shape[1] % fit, -columns % fit
    if inner or outer:
        x, w = functional.pad(x, (0, inner)), functional.pad(w, (0, outer, 0, inner))
    y = torch._grouped_mm(_lying(x), w if _dense(w.transpose(1, 2)) else _lying(w), ends)
    return (y[:, :columns] if outer else y).contiguous()


def _dense(x: torch.Tensor) -> bool:
    return x.is_contiguous() and x.data_ptr() % ALIGN == 0


def _lying(x: torch.Tensor) -> torch.Tensor:
    return x if _dense(x) else x.clone(memory_format=torch.contiguous_format)


_library = torch.library.Library("redfuser", "FRAGMENT")
_library.define("group_ends(Tensor offs, int rows) -> Tensor")
_library.define("grouped_mm(Tensor x, Tensor w, Tensor ends) -> Tensor")
_library.impl("group_ends", group_ends, "CompositeExplicitAutograd")
_library.impl("grouped_mm", grouped_mm, "CompositeExplicitAutograd")
torch.library.register_fake("redfuser::group_ends", lambda offs, _: offs.new_empty(offs.shape, dtype=torch.int32), lib=_library)
torch.library.register_fake("redfuser::grouped_mm", lambda x, w, _: x.new_empty((x.shape[0], w.shape[2])), lib=_library)
