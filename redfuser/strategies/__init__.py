"""How a fused state runs over the r-axis: segment programs, the choice of strategy, and their scalar TIR.

``realise`` and ``select`` need neither TVM nor a GPU; :mod:`redfuser.strategies.tir` and :mod:`redfuser.strategies.cpu`
import TVM and are loaded by whoever uses them."""

from redfuser.strategies.check import check
from redfuser.strategies.program import Block, Kernel, Program, split_range
from redfuser.strategies.realise import realise
from redfuser.strategies.select import alone, columns, cpu_segment, select

__all__ = ["Block", "Kernel", "Program", "alone", "check", "columns", "cpu_segment", "realise", "select", "split_range"]
