"""What a rule of static shapes is, and tables of rules by op."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Shape, Tensor

UNKNOWN = Shape(None)
SCALAR = Shape(())

Dims = tuple[int | None, ...]
# (node, shapes of its inputs, constants it reads by slot) -> shapes of its outputs, as far as they matter
ShapeRule = Callable[[Node, Sequence[Shape], Mapping[int, Tensor]], Sequence[Shape]]

Rule = TypeVar("Rule")


class Rules(dict[str, Rule]):
    """Rules by op."""

    def rule(self, ops: str) -> Callable[[Rule], Rule]:
        """Register a rule for ops, separated by spaces."""

        def register(rule: Rule) -> Rule:
            self.update(dict.fromkeys(ops.split(), rule))
            return rule

        return register


def dims_of(shape: Shape) -> Dims:
    """The sizes of a shape, known or not.

    Raises:
        ValueError: not even their number is known.
    """
    if shape.dims is None:
        raise ValueError("unknown rank")
    return shape.dims
