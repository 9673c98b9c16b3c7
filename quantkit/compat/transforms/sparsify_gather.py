"""The original's way to read columns of weights through hash tables."""

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

READ = pattern("Identity", pattern("Const|Variable|VariableV2"))
FORMS = (pattern("Gather", READ, ANY), pattern("GatherV2", READ, ANY, CONST))
VARIABLES = ("Variable", "VariableV2")
# What is nearer to zero is taken for zero; compared as 64-bit numbers.
SMALLEST = 1e-5
# With one input left, these have nothing to do any more.
PAIRED = ("Assign", "Reshape", "Equal", "Mean", "ScalarSummary")

Values = Callable[[NodeDef], Array]


@classic_transform(exact=False)
def sparsify_gather(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """The weights go, even where others read them; tables must be filled before the graph is run."""
    result = [node.with_attrs(_output_shapes=None) for node in nodes]
    checkpoint = context.value("input_checkpoint", "")
    if checkpoint and not Path(f"{checkpoint}.index").exists():
        raise GraphError(f"{checkpoint}.index; No such file or directory")
    group = context.value("group_init_node", "group_deps")
    slices = {node.name: _slice(result, node.name) for node in result if node.op in VARIABLES}
    for form in FORMS:
        result = _sparsified(result, form, group, _reader(context, slices), context)
    return result


def _reader(context: ClassicContext, slices: Mapping[str, tuple[str, str]]) -> Values:
    checkpoint = context.value("input_checkpoint", "")
    read = context.services.get("read_variable")

    def values(node: NodeDef) -> Array:
        if node.op == "Const":
            return node.value.array
        if not checkpoint or read is None:
            raise GraphError("Checkpoint reader was not initialized. ")
        return np.asarray(read(checkpoint, *slices[node.name]))

    return values


def _slice(nodes: Sequence[NodeDef], variable: str) -> tuple[str, str]:
    """Name and slice of a variable, as the nodes of a Saver restore it."""
    whole = "/".join(part for part in variable.split("/") if not part.startswith("part_"))
    restore = next((node.inputs[1] for node in nodes if _restores(node, variable)), "")
    saver = next(
        (node for node in nodes if node.name == node_of(restore) and node.op == "RestoreV2"), None
    )
    if saver is None:
        raise GraphError(f"the original crashes here: nothing restores the variable {variable}")
    named = {node.name: node for node in nodes}
    names, slices = (
        named[node_of(text)].value.array.reshape(-1).tolist() for text in saver.inputs[1:3]
    )
    if whole.encode() not in names:
        raise GraphError(f"Unable to find RestoreV2 entry for variable: {whole}")
    # All parts of a variable have its name: the first part is read for each of them.
    return whole, slices[names.index(whole.encode())].decode()


def _restores(node: NodeDef, variable: str) -> bool:
    parts = node.name.split("/")
    return (
        len(parts) == 2
        and parts[0].startswith("save")
        and parts[1].startswith("Assign")
        and node.inputs[:1] == (variable,)
        and len(node.inputs) > 1
    )


def _sparsified(
    nodes: list[NodeDef], form: ClassicPattern, group: str, values: Values, context: ClassicContext
) -> list[NodeDef]:
    """All gathers of one form read tables; matches that overlap take several rounds."""
    references = Counter(text.replace("^", "") for node in nodes for text in node.inputs)
    is_done = False
    while not is_done:
        nodes, is_done = _one_round(nodes, form, group, values, context, references)
    return nodes


def _one_round(
    nodes: list[NodeDef],
    form: ClassicPattern,
    group: str,
    values: Values,
    context: ClassicContext,
    references: Counter[str],
) -> tuple[list[NodeDef], bool]:
    """The nodes after the matches that do not overlap, and whether there was none."""
    inits: list[str] = []
    gone: list[str] = []

    def make(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        gather, passing = match.node, match.inputs[0].node
        weights = match.inputs[0].inputs[0].node
        _check(match, weights)
        pairs = _pairs(values(weights))
        gone.extend((weights.name, passing.name))
        references.subtract(text.replace("^", "") for text in passing.inputs)
        inits.append(f"{weights.name}/InitializeTable")
        return [match.inputs[1].node, *_table(weights.name, *pairs), *_lookup(gather, weights.name)]

    made = _grouped(replace_matches(nodes, form, make, allow_inconsistencies=True), group, inits)
    references.update(inits)
    for name in (*context.outputs, *context.inputs):
        references.pop(name, None)
    gone.extend(name for name, count in references.items() if count == 0)
    return _without(made, gone, references), not inits


def _check(match: ClassicMatch, weights: NodeDef) -> None:
    if match.node.op == "GatherV2":
        axis = int(match.inputs[2].node.value.array.reshape(()))
        if axis:
            raise GraphError(
                f"Transform only applicable to subgraph with GatherV2 over axis 0. Found axis {axis}."
            )
    dtype = weights.attrs.get("dtype")
    if dtype is not DType.FLOAT:
        number = type_number(dtype) if isinstance(dtype, DType) else 0
        raise GraphError(
            "Transform only applicable to subgraph with 'Const','Variable', or 'VariableV2' of dtype 'DT_FLOAT'. "
            f"Found '{weights.op}' with name '{weights.name}' and dtype '{number}'."
        )


def _pairs(column: Array) -> tuple[Array, Array]:
    """Ids and values of what is not near zero; one pair of zeros where nothing is."""
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


def _table(weights: str, ids: Array, found: Array) -> list[NodeDef]:
    table = f"{weights}/HashTable"
    inputs = (table, f"{weights}/indices", f"{weights}/values")
    return [
        constant(f"{weights}/indices", ids),
        constant(f"{weights}/values", found),
        NodeDef(table, "HashTable", attrs={"key_dtype": DType.INT64, "value_dtype": DType.FLOAT}),
        NodeDef(
            f"{weights}/InitializeTable",
            "InitializeTable",
            inputs,
            {"Tkey": DType.INT64, "Tval": DType.FLOAT},
        ),
    ]


def _lookup(gather: NodeDef, weights: str) -> list[NodeDef]:
    name = gather.name
    find = (f"{weights}/HashTable", gather.inputs[1], f"{name}/Const")
    return [
        NodeDef(
            f"{name}/LookupTableFind",
            "LookupTableFind",
            find,
            {"Tin": DType.INT64, "Tout": DType.FLOAT},
        ),
        constant(f"{name}/Const", Tensor.of(np.float32(0))),
        NodeDef(
            f"{name}/ExpandDims/Const", "Const", attrs={"dtype": DType.INT32, "value": _listed(-1)}
        ),
        NodeDef(
            name,
            "ExpandDims",
            (f"{name}/LookupTableFind", f"{name}/ExpandDims/Const"),
            {"T": DType.FLOAT},
        ),
    ]


def _listed(number: int) -> Tensor:
    """An int32 as the original wrote this one: in a list, not packed."""
    message = message_class("AttrValue")()
    message.tensor.dtype = type_number(DType.INT32)
    message.tensor.tensor_shape.SetInParent()
    message.tensor.int_val.append(number)
    value = decode_attr(message)
    assert isinstance(value, Tensor)
    return value


def _grouped(nodes: list[NodeDef], group: str, inits: Sequence[str]) -> list[NodeDef]:
    """The nodes with one of the group's name, which is made where there is none and waits for the tables."""
    waits = tuple(f"^{name}" for name in inits)
    place = next(
        (i for i, node in enumerate(nodes) if node.name == group and node.op == "NoOp"), None
    )
    if place is None:
        return [*nodes, NodeDef(group, "NoOp", waits)]
    found = nodes[place]
    return [*nodes[:place], found.with_(inputs=(*found.inputs, *waits)), *nodes[place + 1 :]]


def _without(nodes: Sequence[NodeDef], gone: list[str], references: Counter[str]) -> list[NodeDef]:
    """The nodes without some, without what only these read, and without what is left with nothing to do."""
    result = list(nodes)
    while gone:
        name = gone.pop()
        kept: list[NodeDef] = []
        for node in result:
            if node.name == name and node.op != "RestoreV2":
                for text in node.inputs:
                    source = text.replace("^", "")
                    references[source] -= 1
                    if references[source] == 0:
                        gone.append(source)
                continue
            inputs = tuple(text for text in node.inputs if text not in (name, f"^{name}"))
            kept.append(
                node
                if inputs == node.inputs
                else _shortened(node.with_(inputs=inputs), gone, references)
            )
        result = kept
    return result


def _shortened(node: NodeDef, gone: list[str], references: Counter[str]) -> NodeDef:
    """A node that lost inputs; what it does not need any more is added to what goes."""
    if node.op == "ConcatV2":
        node = _joining_less(node, gone, references)
    if (node.op in PAIRED and len(node.inputs) == 1) or not node.inputs:
        gone.append(node.name)
    return node


def _joining_less(node: NodeDef, gone: list[str], references: Counter[str]) -> NodeDef:
    if len(node.inputs) > 2:
        return node.with_attrs(N=len(node.inputs) - 1)
    if len(node.inputs) < 2:
        raise GraphError("ConcatV2 should have at least two elements")
    axis = node.inputs[1]
    if references[axis] != 1:
        raise GraphError("Expect axis tensor of ConcatV2 node to only be referenced once.")
    references[axis] -= 1
    gone.append(axis)
    return node.with_(op="Identity", inputs=node.inputs[:1]).with_attrs(N=None)
