"""Transforms of the original that edit names, op types, attributes and devices."""

from collections.abc import Sequence

from quantkit.compat.transforms.matching import execution_order, rename_inputs
from quantkit.compat.transforms.nodes import NodeDef, constant, split
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.transforms.metadata.obfuscate_names import to_base_62

# Tensor array ops of version 2 by op type of version 3.
OLD_ARRAY_OPS = {
    f"TensorArray{operation}V3": f"TensorArray{operation}V2"
    for operation in ("Write", "Read", "Gather", "Scatter", "Concat", "Split", "Size", "Close")
}


@classic_transform()
def rename_attribute(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Rename an attribute; if the node already has the new name, the moved value is lost."""
    if len(context.values("old_attribute_name")) != 1 or len(context.values("new_attribute_name")) != 1:
        raise GraphError(
            "rename_attribute expects exactly one 'old_attribute_name' and one "
            "'new_attribute_name' argument, "
            "e.g. rename_attribute(old_attribute_name=foo, new_attribute_name=bar)"
        )
    op = (context.values("op_name") or ("*",))[0]
    old = context.values("old_attribute_name")[0]
    new = context.values("new_attribute_name")[0]
    result = []
    for node in nodes:
        if op in ("*", node.op) and old in node.attrs and old != new:
            node = node.with_attrs(**{old: None, new: node.attrs.get(new, node.attrs[old])})
        result.append(node)
    return result


@classic_transform()
def rename_node(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Rename a node and all references to the node."""
    if len(context.values("old_node_name")) != 1 or len(context.values("new_node_name")) != 1:
        raise GraphError(
            "rename_node expects exactly one 'old_node_name' and one 'new_node_name' argument, "
            "e.g. rename_node(old_attribute_name=super/deep/output, new_attribute_name=output)"
        )
    old, new = context.values("old_node_name")[0], context.values("new_node_name")[0]
    result = []
    for node in nodes:
        if node.name == new:
            raise GraphError(f"A node is alreading using {new}as name.")
        inputs = tuple(_rename_reference(text, old, new) for text in node.inputs)
        result.append(node.with_(name=new if node.name == old else node.name, inputs=inputs))
    return result


def _rename_reference(text: str, old: str, new: str) -> str:
    prefix, node, suffix = split(text)
    return f"{prefix}{new}{suffix}" if node == old else text


@classic_transform()
def set_device(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Set the device of every node, or of the nodes without a device."""
    device = context.value("device", "")
    only_default = context.boolean("if_default", False)
    return [node if only_default and node.device else node.with_(device=device) for node in nodes]


@classic_transform()
def remove_control_dependencies(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Remove all control dependencies."""
    return [node.with_(inputs=node.data_inputs) for node in nodes]


@classic_transform()
def sort_by_execution_order(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Sort nodes topologically."""
    return execution_order(nodes)


@classic_transform()
def obfuscate_names(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Replace names by numbers in base 62.

    Graph inputs and outputs keep their names if the caller names them without a port.
    """
    endpoints = {*context.inputs, *context.outputs}
    names: dict[str, str] = {}
    number = 0
    for node in nodes:
        if node.name in endpoints:
            names[node.name] = node.name
            continue
        while (name := to_base_62(number)) in endpoints:
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


@classic_transform()
def backport_concatv2(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Replace ``ConcatV2`` by ``Concat``: the last input becomes the first, even a control input."""
    result = []
    for node in nodes:
        if node.op == "ConcatV2":
            inputs = (*node.inputs[-1:], *node.inputs[:-1])
            node = node.with_(op="Concat", inputs=inputs).with_attrs(Tidx=None)
        result.append(node)
    return result


@classic_transform()
def backport_tensor_array_v3(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Replace tensor array ops by those of version 2, with a constant for the flow output."""
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
