"""A compiled graph as torch.compile calls it: the artifact's function, then what the recipe says of views and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from redfuser.dynamo import told
from redfuser.dynamo.key import attribute
from redfuser.dynamo.recipe import Recipe
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import whole


class Program:
    """Called with the graph's inputs; torch.compile has checked that they are what was compiled for (its guards).

    eager: the graph itself, for inputs that share memory in a way that nothing guards."""

    def __init__(self, model: CompiledModel, recipe: Recipe, gm: fx.GraphModule, inputs: Sequence[Any], name: str,
                 replay: bool = False, fallback: str = "warn") -> None:
        self.recipe, self.name, self.fallback, self.eager = recipe, name, fallback, gm.forward
        self._constants = [(gm, target) for target in recipe.constants]
        given = self._given(tuple(inputs))
        tensors = [given[i] for i in recipe.inputs]
        device = next((t.device for t in tensors), torch.device("cpu"))
        self.model = model.prepare(device)
        bound = model._eager
        assert bound is not None
        self._bound = bound
        self._loose = [k for k, t in enumerate(tensors) if not whole(t)]
        self._written = [recipe.inputs.index(i) for i in recipe.writes]
        self._asking = [k for k, t in enumerate(tensors) if t.requires_grad and torch.is_grad_enabled()]
        self._own: tuple[int, ...] | None = None
        self._apart: tuple[int, ...] = ()
        self._told = False
        self._run: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] = self.compute
        if replay:
            from redfuser.dynamo.replay import Replayed

            self._run = Replayed(self.compute, self._written, device, name, fallback)

    def __call__(self, *args: Any) -> Any:
        given = self._given(args)
        tensors = [given[i] for i in self.recipe.inputs]
        if self._written and not self._separate(tensors):
            return self.eager(*args)
        found = self._run(tensors)
        return [self._output(out, given, found) for out in self.recipe.outputs]

    def _given(self, args: tuple[Any, ...]) -> Sequence[Any]:
        return [*args, *(attribute(gm, target) for gm, target in self._constants)] if self._constants else args

    def compute(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The results, laid out as the graph's, in memory of their own; written inputs are written."""
        if self._asking:  # and no torch.no_grad(): a view that is made under it may not be written to later
            tensors = [t.detach() if k in self._asking else t for k, t in enumerate(tensors)]
        bound, given = self._bound, tensors
        if self._loose:
            given = list(tensors)
            for k in self._loose:
                given[k] = given[k].contiguous()
        found = list(bound.run(bound.device, *given, *bound.constants))
        if self._own is None:
            self._own = self._sharing(found, [*tensors, *given, *bound.constants])
        for k in self._own:
            found[k] = found[k].clone()
        for k, (shape, strides) in enumerate(self.recipe.results):
            if found[k].stride() != strides:
                found[k] = _laid_out(found[k], shape, strides)
        for k, value in zip(self._written, found[len(self.recipe.results):]):
            tensors[k].copy_(value)
        return found[:len(self.recipe.results)]

    def _sharing(self, found: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Results that lie in the memory of an input, a constant or an earlier result. It is the same at every call: the
        function is straight-line code."""
        seen = {_memory(t) for t in held}
        shared = []
        for k, value in enumerate(found):
            if value.numel() and _memory(value) in seen:
                shared.append(k)
            seen.add(_memory(value))
        return tuple(shared)

    def _separate(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether no input that is written lies in another's memory."""
        places = tuple([t.data_ptr() for t in tensors])
        if places == self._apart:
            return True
        memory = [_memory(t) for t in tensors]
        if all(memory.count(memory[k]) == 1 or not tensors[k].numel() for k in self._written):
            self._apart = places
            return True
        if not self._told or self.fallback == "error":
            self._told = True
            note = "writes into an input that shares memory with another: run as torch has it"
            told.tell(told.GraphReport(self.name, "given back", code="RF137", note=note), self.fallback)
        return False

    def _output(self, out: Any, given: Sequence[Any], found: Sequence[torch.Tensor]) -> Any:
        kind = out.kind
        if kind == "result":
            return found[out.of]
        if kind == "input":
            return given[out.of]
        if kind == "value":
            return out.value
        owner = given[out.of] if kind == "view" else found[out.of]
        if owner.requires_grad:  # the graph's result does not
            owner = owner.detach()
        return owner.as_strided(out.shape, out.strides, owner.storage_offset() + out.offset)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _laid_out(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    if all(a == b for n, a, b in zip(shape, tensor.stride(), strides) if n != 1):
        return tensor.as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
