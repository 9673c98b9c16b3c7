"""Type of shape inference rules, and tables of rules by op type."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Shape, Tensor

UNKNOWN = Shape(None)
SCALAR = Shape(())

Dims = tuple[int | None, ...]
# Integers that a graph computes from shapes; None for an unknown one.
Sizes = npt.NDArray[np.object_]
# (node, shapes of its inputs, constant inputs by input index) -> shapes of its first outputs
ShapeRule = Callable[[Node, Sequence[Shape], Mapping[int, Tensor]], Sequence[Shape]]
# (node, shapes of its inputs, sizes of its inputs by index) -> shapes of its first outputs
PartialShapeRule = Callable[[Node, Sequence[Shape], Mapping[int, Sizes]], Sequence[Shape]]

Rule = TypeVar("Rule")


class Rules(dict[str, Rule]):
    """Rules by op type: functions that infer, compute or convert."""

    def rule(self, *ops: str) -> Callable[[Rule], Rule]:
        """Register a rule for op types; a text may have several separated by spaces.

        Raises:
            ValueError: an op type already has a rule.
        """

        def register(rule: Rule) -> Rule:
            for op in " ".join(ops).split():
                if op in self:
                    raise ValueError(f"op type {op!r} already has a rule")
                self[op] = rule
            return rule

        return register


def dims_of(shape: Shape) -> Dims:
    """Return the sizes of a shape; None for an unknown size.

    Raises:
        ValueError: the rank is unknown.
    """
    if shape.dims is None:
        raise ValueError("unknown rank")
    return shape.dims


def as_shape(sizes: Sequence[int | None]) -> Shape:
    """Return the shape with these sizes; a negative one, which an op computes, is unknown."""
    return Shape(tuple(None if size is None or size < 0 else size for size in sizes))


def join_shapes(first: Shape, second: Shape) -> Shape:
    """Return the shape that both shapes have; sizes in which they differ are unknown."""
    if first.dims is None or second.dims is None or len(first.dims) != len(second.dims):
        return UNKNOWN
    return Shape([size if size == other else None for size, other in zip(first.dims, second.dims, strict=True)])
