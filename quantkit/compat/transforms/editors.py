"""The original's small editors of names, ops, attributes and devices."""

from collections.abc import Sequence

from quantkit.compat.transforms.matching import rename_inputs, run_order
from quantkit.compat.transforms.nodes import NodeDef, constant, split
from quantkit.compat.transforms.table import Context, classic_transform
from quantkit.errors import GraphError

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# What became of the ops of tensor arrays.
OLD_ARRAY_OPS = {
    f"TensorArray{word}V3": f"TensorArray{word}V2"
    for word in ("Write", "Read", "Gather", "Scatter", "Concat", "Split", "Size", "Close")
}


@classic_transform
def remove_attribute(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """An attribute goes, from all nodes or those of one op."""
    if len(context.words("attribute_name")) != 1:
        raise GraphError(
            "remove_attribute expects exactly one 'attribute_name' argument, "
            "e.g. remove_attribute(op_name=Mul, attribute_name=foo)"
        )
    ops = context.words("op_name")
    if len(ops) > 1:
        raise GraphError(f"remove_attribute expects a single op_name argument, but found {len(ops)}")
    op = ops[0] if ops else "*"
    key = context.words("attribute_name")[0]
    return [node.with_attrs(**{key: None}) if op in ("*", node.op) else node for node in nodes]


@classic_transform
def rename_attribute(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """An attribute gets another name; where that name is taken, the value that was moved is lost."""
    if len(context.words("old_attribute_name")) != 1 or len(context.words("new_attribute_name")) != 1:
        raise GraphError(
            "rename_attribute expects exactly one 'old_attribute_name' and one 'new_attribute_name' argument, "
            "e.g. rename_attribute(old_attribute_name=foo, new_attribute_name=bar)"
        )
    op = (context.words("op_name") or ("*",))[0]
    old, new = context.words("old_attribute_name")[0], context.words("new_attribute_name")[0]
    result = []
    for node in nodes:
        if op in ("*", node.op) and old in node.attrs and old != new:
            node = node.with_attrs(**{old: None, new: node.attrs.get(new, node.attrs[old])})
        result.append(node)
    return result


@classic_transform
def rename_op(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Nodes of one op become nodes of another."""
    if len(context.words("old_op_name")) != 1 or len(context.words("new_op_name")) != 1:
        raise GraphError(
            "rename_op expects exactly one 'old_op_name' and 'new_op_name' argument, "
            "e.g. rename_op(old_op_name=Mul, new_op_name=Multiply)"
        )
    old, new = context.words("old_op_name")[0], context.words("new_op_name")[0]
    return [node.with_(op=new) if node.op == old else node for node in nodes]


@classic_transform
def rename_node(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """A node and all references to it get another name."""
    if len(context.words("old_node_name")) != 1 or len(context.words("new_node_name")) != 1:
        raise GraphError(
            "rename_node expects exactly one 'old_node_name' and one 'new_node_name' argument, "
            "e.g. rename_node(old_attribute_name=super/deep/output, new_attribute_name=output)"
        )
    old, new = context.words("old_node_name")[0], context.words("new_node_name")[0]
    result = []
    for node in nodes:
        if node.name == new:
            raise GraphError(f"A node is alreading using {new}as name.")
        inputs = tuple(_renamed(text, old, new) for text in node.inputs)
        result.append(node.with_(name=new if node.name == old else node.name, inputs=inputs))
    return result


def _renamed(text: str, old: str, new: str) -> str:
    prefix, node, suffix = split(text)
    return f"{prefix}{new}{suffix}" if node == old else text


@classic_transform
def remove_device(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """No node says where it runs."""
    return [node.with_(device="") for node in nodes]


@classic_transform
def set_device(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Every node, or each that had none, runs on one device."""
    device = context.word("device", "")
    only_default = context.truth("if_default", False)
    return [node.with_(device=device) if not (only_default and node.device) else node for node in nodes]


@classic_transform
def remove_control_dependencies(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Nothing waits for a node whose tensors it does not read."""
    return [node.with_(inputs=node.data_inputs) for node in nodes]


@classic_transform
def sort_by_execution_order(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Every node stands behind those that it reads."""
    return run_order(nodes)


@classic_transform
def obfuscate_names(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Numbers in base 62 take the place of names; the ends keep theirs, if they are given without a port."""
    kept = {*context.inputs, *context.outputs}
    names: dict[str, str] = {}
    number = 0
    for node in nodes:
        if node.name in kept:
            names[node.name] = node.name
            continue
        while (name := _in_base_62(number)) in kept:
            number += 1
        names[node.name] = name
        number += 1
    result = []
    for node in nodes:
        inputs = []
        for text in node.inputs:
            prefix, source, suffix = split(text)
            if source not in names:
                raise GraphError(f"No node named {source} for input to {node.name}")
            inputs.append(f"{prefix}{names[source]}{suffix}")
        result.append(node.with_(name=names[node.name], inputs=tuple(inputs)))
    return result


def _in_base_62(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
        if not number:
            return digits


@classic_transform
def backport_concatv2(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """``ConcatV2`` becomes ``Concat``: the last input, a control input if need be, becomes the first."""
    result = []
    for node in nodes:
        if node.op == "ConcatV2":
            node = node.with_(op="Concat", inputs=(*node.inputs[-1:], *node.inputs[:-1])).with_attrs(Tidx=None)
        result.append(node)
    return result


@classic_transform
def backport_tensor_array_v3(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Tensor arrays become those of version 2, whose flow is a constant."""
    result: list[NodeDef] = []
    flows: dict[str, str] = {}
    for node in nodes:
        if node.op in ("TensorArrayV3", "TensorArrayGradV3"):
            flow = f"{node.name}/replacement_flow_node"
            flows[f"{node.name}:1"] = flow
            result.append(node.with_(op=f"{node.op[:-2]}V2"))
            result.append(constant(flow, 1.0))
        else:
            result.append(node.with_(op=OLD_ARRAY_OPS.get(node.op, node.op)))
    return rename_inputs(result, flows)
