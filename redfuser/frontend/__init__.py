"""Frontends: a model as its owner has it, to one normalised Relax function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redfuser.frontend.imported import Imported, InputSpec, OpaqueCall, Provenance, Static

if TYPE_CHECKING:
    from redfuser.casting import Casts

__all__ = ["Imported", "InputSpec", "OpaqueCall", "Provenance", "Static", "channels_last", "import_model", "laid_out",
           "row_scales"]


def import_model(model: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None) -> Imported:
    """Import an ``ExportedProgram``, a module or function with example arguments, an ONNX path, bytes or ``ModelProto``,
    or a Relax ``IRModule``.

    Raises :class:`redfuser.errors.InputError` or :class:`redfuser.errors.UnsupportedError` (RF1xx) when the model cannot
    be imported at all. An operator without a converter does not fail the import: it stays a torch call.
    """
    from redfuser.casting import casts, uncast
    from redfuser.frontend.levels import undone

    within = casts()
    with undone(), uncast():
        return _checked(_import(model, args, kwargs, within))


def _checked(imported: Imported) -> Imported:
    from redfuser.errors import InputError
    from redfuser.frontend.dtypes import UNCALLED

    odd = [f"{i.name}: {i.dtype}" for i in imported.inputs if i.dtype in UNCALLED]
    if odd:
        raise InputError("RF112", "inputs of an unsupported dtype or layout", where="; ".join(odd),
                         why="of the unsigned integers a compiled model takes those of 8 bits",
                         help="convert these tensors before the call: .to(torch.int32), .to(torch.int64)")
    return imported


def _import(model: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, within: Casts) -> Imported:
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        return _exported(model, model)
    from redfuser.frontend.onnx import import_onnx, is_onnx

    if is_onnx(model):
        return import_onnx(model)
    from redfuser.frontend.relax_module import import_relax, is_relax

    if is_relax(model):
        return import_relax(model)
    if callable(model):
        from redfuser.frontend.module import export

        program, assigned = export(model, args, kwargs, within)
        imported = _exported(model, program)
        lost = f"forward assigns {', '.join(assigned)}: a compiled model assigns nothing, and computes with what it met"
        return replace(imported, notes=(*imported.notes, lost)) if assigned else imported
    from redfuser.errors import InputError

    raise InputError("RF110", f"cannot import a {type(model).__name__}",
                     why="not an ExportedProgram, a module or function, an ONNX model or a Relax module",
                     help="pass one of these; for a module or function also example arguments")


def channels_last(imported: Imported) -> Imported:
    """See :func:`redfuser.frontend.channels.channels_last`."""
    from redfuser.frontend import channels

    return channels.channels_last(imported)


def laid_out(imported: Imported) -> Imported:
    """:func:`channels_last`, nearest neighbours as views (:func:`redfuser.frontend.neighbours.nearest`), the tensors of
    unrolled loops in the order of their steps (:func:`redfuser.frontend.steps.steps_first`), and copies for products as lines
    (:func:`redfuser.frontend.operands.lined_up`)."""
    from redfuser.frontend import neighbours, operands, steps

    for rewrite in (channels_last, neighbours.nearest, steps.steps_first, operands.lined_up):
        imported = _or_as_it_was(rewrite, imported)
    return imported


def _or_as_it_was(rewrite: Callable[[Imported], Imported], imported: Imported) -> Imported:
    """The model written down another way: where that fails by a defect of ours, as it was, and a note says so."""
    from redfuser.acrf.state import defect

    try:
        return rewrite(imported)
    except Exception as e:
        found = defect(f"{rewrite.__name__} of a model that is imported", e)
        return replace(imported, remarks=(*imported.remarks, (found.code, f"not written down another way: {found.why}")))


def row_scales(imported: Imported, casts: str, pays: Callable[[int, list[int]], bool]) -> tuple[Imported, dict[str, str]]:
    """See :func:`redfuser.frontend.scaled_rows.row_scales`."""
    from redfuser.frontend import scaled_rows

    found: dict[str, str] = {}

    def row_scales(imported: Imported) -> Imported:
        scaled, names = scaled_rows.row_scales(imported, casts, pays)
        found.update(names)
        return scaled

    return _or_as_it_was(row_scales, imported), found


def _exported(model: Any, program: Any) -> Imported:
    from redfuser.frontend import training
    from redfuser.frontend.torch_export import import_program

    remark = training.remark(model, program)
    imported = import_program(program)
    return replace(imported, remarks=(("RF108", remark),)) if remark else imported
