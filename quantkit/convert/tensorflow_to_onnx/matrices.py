"""Conversion of ops on the last two axes: diagonals and bands."""

import numpy as np

from quantkit.convert.tensorflow_to_onnx.translator import PLAIN, Translator, conversion_error, converts
from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import DType


@converts("MatrixBandPart")
def _band(translator: Translator, node: Node) -> None:
    value = translator.plain(node.inputs[0])
    for slot, upper in ((1, 1), (2, 0)):
        count = int(translator.constant(node, slot).item())
        if count >= 0:
            limit = translator.add_array(node, f"limit_{slot}", -count if upper else count)
            value = translator.add_intermediate(node, f"band_{slot}", "Trilu", [value, limit], upper=upper)
    translator.emit(node, "Identity", [value], PLAIN)


def _check_main_diagonal(translator: Translator, node: Node, slot: int) -> None:
    """Check that the diagonal with the number of input ``slot`` is the main one."""
    if slot < len(node.inputs) and translator.constant(node, slot).reshape(-1).tolist() not in ([0], [0, 0]):
        raise conversion_error(node, "only the main diagonal is supported")


def _size(translator: Translator, node: Node, axis: int) -> int:
    dims = translator.shape(node.inputs[0]).dims
    size = dims[axis] if dims else None
    if size is None:
        raise conversion_error(node, "the shape of its input is unknown")
    return size


def _as_columns(translator: Translator, node: Node, edge: Edge) -> Edge:
    return translator.add_intermediate(node, "columns", "Unsqueeze", [edge, translator.add_array(node, "axis", [-1])])


@converts("MatrixDiag MatrixDiagV2 MatrixDiagV3")
def _from_diagonal(translator: Translator, node: Node) -> None:
    _check_main_diagonal(translator, node, 1)
    size = _size(translator, node, -1)
    for slot in (2, 3):
        if slot < len(node.inputs) and translator.constant(node, slot).item() not in (-1, size):
            raise conversion_error(node, "only square matrices are supported")
    dtype = translator.dtype(node.inputs[0])
    fill = translator.plain(node.inputs[4]) if len(node.inputs) > 4 else translator.add_array(node, "zero", 0, dtype)
    is_diagonal = translator.add_array(node, "is_diagonal", np.eye(size), DType.BOOL)
    columns = _as_columns(translator, node, translator.plain(node.inputs[0]))
    translator.emit(node, "Where", [is_diagonal, columns, fill], PLAIN)


@converts("MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3")
def _diagonal(translator: Translator, node: Node) -> None:
    """Select element i of row i."""
    _check_main_diagonal(translator, node, 1)
    rank = translator.rank(node.inputs[0])
    if rank is None:
        raise conversion_error(node, "the shape of its input is unknown")
    count = min(_size(translator, node, axis) for axis in (-2, -1))
    order = (rank - 2, rank - 1, *range(rank - 2))
    front = translator.add_intermediate(node, "front", "Transpose", [translator.plain(node.inputs[0])], perm=order)
    positions = translator.add_array(node, "positions", np.arange(count)[:, None].repeat(2, 1))
    rows = translator.add_intermediate(node, "rows", "GatherND", [front, positions])
    translator.emit(node, "Transpose", [rows], PLAIN, perm=(*range(1, rank - 1), 0))


@converts("MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3")
def _set_diagonal(translator: Translator, node: Node) -> None:
    _check_main_diagonal(translator, node, 2)
    rows, columns = (_size(translator, node, axis) for axis in (-2, -1))
    if rows != columns:
        raise conversion_error(node, "only square matrices are supported")
    is_diagonal = translator.add_array(node, "is_diagonal", np.eye(rows), DType.BOOL)
    values = _as_columns(translator, node, translator.plain(node.inputs[1]))
    translator.emit(node, "Where", [is_diagonal, values, translator.plain(node.inputs[0])], PLAIN)
