"""The original's replacement of Gather on sparse weights by hash table lookups."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from quantkit.compat.transforms.matching import (
    ANY,
    CONST,
    ClassicMatch,
    ClassicPattern,
    pattern,
    replace_matches,
)
from quantkit.compat.transforms.nodes import NodeDef, constant, node_of
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.formats.graphdef.nodes import decode_attr
from quantkit.formats.graphdef.schema import message_class
from quantkit.formats.graphdef.tensors import type_number
from quantkit.ir.tensor import Array, DType, Tensor

WEIGHTS = pattern("Identity", pattern("Const|Variable|VariableV2"))
GATHERS = (pattern("Gather", WEIGHTS, ANY), pattern("GatherV2", WEIGHTS, ANY, CONST))
VARIABLES = ("Variable", "VariableV2")
# Smaller magnitudes count as zero; compared as 64-bit numbers.
SMALLEST = 1e-5
# Ops that are removed when only one input remains.
PAIRED = ("Assign", "Reshape", "Equal", "Mean", "ScalarSummary")

ReadWeights = Callable[[NodeDef], Array]


@classic_transform(exact=False)
def sparsify_gather(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Replace Gather on weights by a hash table lookup.

    The weights are removed even if they have other consumers. The tables must be initialized
    before the graph runs.
    """
    result = [node.with_attrs(_output_shapes=None) for node in nodes]
    checkpoint = context.value("input_checkpoint", "")
    if checkpoint and not Path(f"{checkpoint}.index").exists():
        raise GraphError(f"{checkpoint}.index; No such file or directory")
    group = context.value("group_init_node", "group_deps")
    slices = {node.name: _find_slice(result, node.name) for node in result if node.op in VARIABLES}
    read_weights = _weights_reader(context, slices)
    for gather in GATHERS:
        result = _sparsify(result, gather, group, read_weights, context)
    return result


def _weights_reader(context: ClassicContext, slices: Mapping[str, tuple[str, str]]) -> ReadWeights:
    checkpoint = context.value("input_checkpoint", "")
    read_variable = context.services.get("read_variable")

    def read_weights(node: NodeDef) -> Array:
        if node.op == "Const":
            return node.value.array
        if not checkpoint or read_variable is None:
            raise GraphError("Checkpoint reader was not initialized. ")
        return np.asarray(read_variable(checkpoint, *slices[node.name]))

    return read_weights


def _find_slice(nodes: Sequence[NodeDef], variable: str) -> tuple[str, str]:
    """Return the checkpoint name and the slice of a variable, from the nodes of its Saver."""
    name = "/".join(part for part in variable.split("/") if not part.startswith("part_"))
    restore = next((node.inputs[1] for node in nodes if _is_restore(node, variable)), "")
    savers = (node for node in nodes if node.name == node_of(restore) and node.op == "RestoreV2")
    saver = next(savers, None)
    if saver is None:
        raise GraphError(f"the original crashes here: no node restores the variable {variable}")
    nodes_by_name = {node.name: node for node in nodes}
    names, slices = (nodes_by_name[node_of(text)].value.array.reshape(-1).tolist() for text in saver.inputs[1:3])
    if name.encode() not in names:
        raise GraphError(f"Unable to find RestoreV2 entry for variable: {name}")
    # All parts of a variable have its name: the first part is read for each of them.
    return name, slices[names.index(name.encode())].decode()


def _is_restore(node: NodeDef, variable: str) -> bool:
    parts = node.name.split("/")
    return (
        len(parts) == 2
        and parts[0].startswith("save")
        and parts[1].startswith("Assign")
        and node.inputs[:1] == (variable,)
        and len(node.inputs) > 1
    )


def _sparsify(
    nodes: list[NodeDef],
    gather: ClassicPattern,
    group: str,
    read_weights: ReadWeights,
    context: ClassicContext,
) -> list[NodeDef]:
    """Replace all matches of a Gather pattern; overlapping matches take several iterations."""
    references = Counter(text.replace("^", "") for node in nodes for text in node.inputs)
    is_done = False
    while not is_done:
        nodes, is_done = _sparsify_once(nodes, gather, group, read_weights, context, references)
    return nodes


def _sparsify_once(
    nodes: list[NodeDef],
    gather: ClassicPattern,
    group: str,
    read_weights: ReadWeights,
    context: ClassicContext,
    references: Counter[str],
) -> tuple[list[NodeDef], bool]:
    """Replace matches that do not overlap; return the nodes, and True if no node matched."""
    initializers: list[str] = []
    removed: list[str] = []

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        identity = match.inputs[0].node
        weights = match.inputs[0].inputs[0].node
        _check_match(match, weights)
        ids, values = _nonzero_entries(read_weights(weights))
        removed.extend((weights.name, identity.name))
        references.subtract(text.replace("^", "") for text in identity.inputs)
        initializers.append(f"{weights.name}/InitializeTable")
        table = _table_nodes(weights.name, ids, values)
        return [match.inputs[1].node, *table, *_lookup_nodes(match.node, weights.name)]

    replaced = replace_matches(nodes, gather, replace, allow_inconsistencies=True)
    result = _add_to_group(replaced, group, initializers)
    references.update(initializers)
    for name in (*context.outputs, *context.inputs):
        references.pop(name, None)
    removed.extend(name for name, count in references.items() if count == 0)
    return _remove(result, removed, references), not initializers


def _check_match(match: ClassicMatch, weights: NodeDef) -> None:
    if match.node.op == "GatherV2":
        axis = int(match.inputs[2].node.value.array.reshape(()))
        if axis:
            raise GraphError(f"Transform only applicable to subgraph with GatherV2 over axis 0. Found axis {axis}.")
    dtype = weights.attrs.get("dtype")
    if dtype is not DType.FLOAT:
        number = type_number(dtype) if isinstance(dtype, DType) else 0
        raise GraphError(
            "Transform only applicable to subgraph with 'Const','Variable', or 'VariableV2' of "
            f"dtype 'DT_FLOAT'. Found '{weights.op}' with name '{weights.name}' and dtype "
            f"'{number}'."
        )


def _nonzero_entries(column: Array) -> tuple[Array, Array]:
    """Return row indices and values of the nonzero entries; one pair of zeros if all are zero."""
    if column.ndim != 2 or column.shape[1] != 1:
        raise GraphError(
            "Transform only applicable to subgraph with 'Const' with tensor of shape [N, 1]. "
            f"But instead get shape [{','.join(map(str, column.shape))}]."
        )
    flat = column[:, 0]
    ids = np.flatnonzero(np.abs(flat.astype(np.float64)) >= SMALLEST)
    if not len(ids):
        return np.zeros(1, np.int64), np.zeros(1, np.float32)
    return ids.astype(np.int64), flat[ids]


def _table_nodes(weights: str, ids: Array, values: Array) -> list[NodeDef]:
    table = f"{weights}/HashTable"
    inputs = (table, f"{weights}/indices", f"{weights}/values")
    table_types = {"key_dtype": DType.INT64, "value_dtype": DType.FLOAT}
    types = {"Tkey": DType.INT64, "Tval": DType.FLOAT}
    return [
        constant(f"{weights}/indices", ids),
        constant(f"{weights}/values", values),
        NodeDef(table, "HashTable", attrs=table_types),
        NodeDef(f"{weights}/InitializeTable", "InitializeTable", inputs, types),
    ]


def _lookup_nodes(gather: NodeDef, weights: str) -> list[NodeDef]:
    name = gather.name
    find, axis = f"{name}/LookupTableFind", f"{name}/ExpandDims/Const"
    inputs = (f"{weights}/HashTable", gather.inputs[1], f"{name}/Const")
    return [
        NodeDef(find, "LookupTableFind", inputs, {"Tin": DType.INT64, "Tout": DType.FLOAT}),
        constant(f"{name}/Const", Tensor.of(np.float32(0))),
        NodeDef(axis, "Const", attrs={"dtype": DType.INT32, "value": _unpacked_int32(-1)}),
        NodeDef(name, "ExpandDims", (find, axis), {"T": DType.FLOAT}),
    ]


def _unpacked_int32(number: int) -> Tensor:
    """Return a scalar that is serialized in the typed field, as by the original."""
    message = message_class("AttrValue")()
    message.tensor.dtype = type_number(DType.INT32)
    message.tensor.tensor_shape.SetInParent()
    message.tensor.int_val.append(number)
    value = decode_attr(message)
    assert isinstance(value, Tensor)
    return value


def _add_to_group(nodes: list[NodeDef], group: str, initializers: Sequence[str]) -> list[NodeDef]:
    """Add control inputs from the table initializers to the group node, which is made if missing."""
    controls = tuple(f"^{name}" for name in initializers)
    for index, node in enumerate(nodes):
        if node.name == group and node.op == "NoOp":
            extended = node.with_(inputs=(*node.inputs, *controls))
            return [*nodes[:index], extended, *nodes[index + 1 :]]
    return [*nodes, NodeDef(group, "NoOp", controls)]


def _remove(nodes: Sequence[NodeDef], removed: list[str], references: Counter[str]) -> list[NodeDef]:
    """Remove nodes, their producers without other consumers, and consumers left without function.

    Args:
        nodes: nodes in file order.
        removed: names of the nodes to remove; empty afterwards.
        references: number of inputs by producer name; updated.
    """
    result = list(nodes)
    while removed:
        name = removed.pop()
        remaining: list[NodeDef] = []
        for node in result:
            if node.name == name and node.op != "RestoreV2":
                for text in node.inputs:
                    source = text.replace("^", "")
                    references[source] -= 1
                    if references[source] == 0:
                        removed.append(source)
                continue
            inputs = tuple(text for text in node.inputs if text not in (name, f"^{name}"))
            if inputs != node.inputs:
                node = _repair(node.with_(inputs=inputs), removed, references)
            remaining.append(node)
        result = remaining
    return result


def _repair(node: NodeDef, removed: list[str], references: Counter[str]) -> NodeDef:
    """Return a valid form of a node that lost inputs; add unnecessary nodes to `removed`."""
    if node.op == "ConcatV2":
        node = _repair_concat(node, removed, references)
    if (node.op in PAIRED and len(node.inputs) == 1) or not node.inputs:
        removed.append(node.name)
    return node


def _repair_concat(node: NodeDef, removed: list[str], references: Counter[str]) -> NodeDef:
    if len(node.inputs) > 2:
        return node.with_attrs(N=len(node.inputs) - 1)
    if len(node.inputs) < 2:
        raise GraphError("ConcatV2 should have at least two elements")
    axis = node.inputs[1]
    if references[axis] != 1:
        raise GraphError("Expect axis tensor of ConcatV2 node to only be referenced once.")
    references[axis] -= 1
    removed.append(axis)
    return node.with_(op="Identity", inputs=node.inputs[:1]).with_attrs(N=None)
