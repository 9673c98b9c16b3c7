"""Type of shape inference rules, tables of rules by op type, and shapes that the rules of both dialects compute."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

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


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that shapes are broadcast to.

    >>> str(broadcast_shapes([Shape((None, 3)), Shape((4, 1, 1))]))
    '4x?x3'
    """
    dims: Dims = ()
    for shape in shapes:
        other = dims_of(shape)
        rank = max(len(dims), len(other))
        pairs = zip((1,) * (rank - len(dims)) + dims, (1,) * (rank - len(other)) + other, strict=True)
        dims = tuple(b if a == 1 else a if b in (1, a) or b is None else b for a, b in pairs)
    return Shape(dims)


def replace_axis(shape: Shape, axis: int, *sizes: int | None) -> Shape:
    """Return a shape with any number of sizes instead of one axis.

    >>> str(replace_axis(Shape((2, 3)), -1, 5, 7)), str(replace_axis(Shape((2, 3)), 0))
    ('2x5x7', '3')
    """
    dims = dims_of(shape)
    position = range(len(dims))[axis]
    return Shape((*dims[:position], *sizes, *dims[position + 1 :]))


def insert_axis(shape: Shape, axis: int, size: int | None) -> Shape:
    """Return a shape with one more axis, at a position of the result."""
    dims = dims_of(shape)
    position = range(len(dims) + 1)[axis]
    return Shape((*dims[:position], size, *dims[position:]))


def reduce_axes(shape: Shape, axes: Iterable[int], keeps_axes: Any) -> Shape:
    """Return a shape without axes, or with the size 1 for them if ``keeps_axes``."""
    dims = dims_of(shape)
    reduced = {range(len(dims))[axis] for axis in axes}
    return Shape(
        [1 if axis in reduced else size for axis, size in enumerate(dims) if keeps_axes or axis not in reduced]
    )


def concat_shapes(shapes: Sequence[Shape], axis: int) -> Shape:
    """Return the shape of a concatenation."""
    sizes = [dims_of(shape)[axis] for shape in shapes]
    return replace_axis(shapes[0], axis, None if None in sizes else sum(size for size in sizes if size is not None))


def stated_shape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    """Infer the shape of a placeholder."""
    shape = node.attrs.get("shape")
    return [shape if isinstance(shape, Shape) else UNKNOWN]


def tiled_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    """Infer the shape of a Tile, whose input 1 has one count of copies per axis."""
    pairs = zip(dims_of(shapes[0]), sizes[1].tolist(), strict=True)
    return [Shape([None if size is None or count is None else size * count for size, count in pairs])]


def unknown_sizes(shape: Shape) -> Shape:
    """Return the shape that a vector of unknown integers states; ``shape`` is that of the vector."""
    (rank,) = dims_of(shape)
    return UNKNOWN if rank is None else Shape((None,) * rank)


def join_shapes(first: Shape, second: Shape) -> Shape:
    """Return the shape that both shapes have; sizes in which they differ are unknown."""
    if first.dims is None or second.dims is None or len(first.dims) != len(second.dims):
        return UNKNOWN
    return Shape([size if size == other else None for size, other in zip(first.dims, second.dims, strict=True)])
