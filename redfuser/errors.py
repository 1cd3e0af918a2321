"""The error tree. Every error carries a code from the table in :mod:`redfuser.codes`; "not fusable" is not an error
but a value (:class:`redfuser.acrf.state.NotFusable`)."""

from __future__ import annotations


class RedFuserError(Exception):
    """what happened, where (the user's op and source line), why, and what to do next."""

    def __init__(self, code: str, what: str, *, where: str = "", why: str = "", help: str = "") -> None:
        self.code, self.what, self.where, self.why, self.help = code, what, where, why, help
        super().__init__(self.render())

    def render(self) -> str:
        lines = [f"{self.code} {self.what}" + (f"  ({self.where})" if self.where else "")]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.help:
            lines.append(f"  next: {self.help}")
        return "\n".join(lines)


class InputError(RedFuserError):
    """The user's graph, shape, dtype, device or option is at fault."""


class UnsupportedError(RedFuserError):
    """An importer gap: the op, the node and the nearest alternative."""


class LoweringError(RedFuserError):
    """A stage could not lower a partition it had accepted."""


class BuildError(RedFuserError):
    """A kernel did not build; carries the log and the generated source."""


class TuningError(RedFuserError):
    """Tuning records, or a folder of candidates, that cannot be read, written or measured."""


class NumericsError(RedFuserError):
    """A result is outside the numerics rule."""


class ArtifactError(RedFuserError):
    """A saved artifact is corrupt, too new, or for another architecture."""


class InternalError(RedFuserError):
    """A verifier failed: our bug."""
