"""What partitioning a model finds, as data: the regions to fuse, what does not fuse, what was left apart, each with why."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from redfuser.acrf.cascade import Cascade, Provenance
from redfuser.acrf.state import Fused, NotFusable
from redfuser.partition.canonical import Outlined
from redfuser.partition.drafted import Draft

LONGEST = 64
"""Characters of a kernel's name."""


@dataclass(frozen=True, slots=True)
class Found:
    """An accepted region: what it was grown as, its cascade, its state, its name."""

    draft: Draft
    outlined: Outlined
    fused: Fused
    name: str


@dataclass(frozen=True)
class Region:
    """One fused cascade of the model, or a group of maps.

    ``cascade`` is canonical: structurally equal layers have equal text (its name is for display and left out of
    sharing: compare ``key``). ``inputs`` maps cascade tensors to Relax variables, viewed (row-major, no copy) with the
    tensor's shape; ``outputs`` maps cascade outputs to Relax variables: the kernel writes the statement's axes
    row-major, the variable is a view of it. ``covered`` are the variables whose bindings nothing outside needs.
    """

    name: str
    cascade: Cascade
    fused: Fused
    inputs: dict[str, str]
    outputs: dict[str, str]
    covered: frozenset[str]
    ops: tuple[Provenance, ...]

    @cached_property
    def key(self) -> str:
        """The canonical text without the display name."""
        return key_of(self.cascade)

    @property
    def symbol(self) -> str:
        """What profilers and debuggers call its kernel, but for what a compiler appends: of which kind it is, over which
        extents. Nothing in it depends on the model that it is part of: equal kernels are built once for all."""
        extents = "x".join(str(a.extent) for a in self.cascade.axes)
        return re.sub(r"\W", "_", f"redfuser_{self.cascade.name}_{extents}")[:LONGEST]

    @property
    def called(self) -> Fused:
        """Its fusion under that name."""
        return replace(self.fused, cascade=replace(self.fused.cascade, name=self.symbol))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A cascade, or a part of one, that was not fused. ``fused``: its state, where it had one and no kernel came of it."""

    name: str
    ops: tuple[Provenance, ...]
    reason: NotFusable
    fused: Fused | None = None

    @property
    def key(self) -> str:
        """As :attr:`Region.key`; empty for one without a state."""
        return key_of(self.fused.cascade) if self.fused is not None else ""


@dataclass(frozen=True, slots=True)
class Apart:
    """Something left outside a cascade that is no loss by itself: a join that was not made, a projection that stays with
    the library. ``about`` is the operation and its source line; ``text`` says what and why."""

    about: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Partition:
    """``regions`` in program order; ``refusals``: cascades, or tails of them, that did not fuse; ``opaque``: operators nobody
    can look into, torch calls by their symbols; ``kept``: operator -> how many stay with torch; ``notes``: what was left
    outside a cascade and is no loss. ``maps``: groups of maps that no cascade has, regions like any other but no cascades;
    ``unmapped``: such groups that got no kernel."""

    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    opaque: tuple[str, ...]
    kept: dict[str, int]
    notes: tuple[Apart, ...] = ()
    maps: tuple[Region, ...] = ()
    unmapped: tuple[Refusal, ...] = ()

    @property
    def parts(self) -> tuple[Region, ...]:
        """Everything that becomes a kernel."""
        return (*self.regions, *self.maps)


def key_of(cascade: Cascade) -> str:
    return str(replace(cascade, name="_"))
