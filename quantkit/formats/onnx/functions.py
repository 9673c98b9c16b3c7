"""Inlining of the functions of an ONNX model, on its messages.

    y = my.Block(x, w)     Block(a, b) = o:  h = Conv(a, b),  o = Relu(h)
    y/h = Conv(x, w)       y = Relu(y/h)

As in runtimes, the nodes of a function get the versions of the model's operator sets.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from quantkit.errors import GraphError
from quantkit.formats.onnx.schema import message_class
from quantkit.ir.names import unused_name
from quantkit.ir.tensor import Tensor
from quantkit.limits import check_num_nodes

# Message of a node without its large tensors, and these tensors by attribute name.
NodeMessage = tuple[Any, Mapping[str, Tensor]]


class Functions:
    """Functions of one model.

    Args:
        model: ModelProto; `inline` removes its functions.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._functions = {(_domain(each.domain), each.name, each.overload): each for each in model.functions}
        self._names: set[str] = set()
        self._domains: set[str] = set()
        self._num_nodes = 0

    def find(self, node: Any) -> Any:
        """Return the function that a node calls; None for another node."""
        return self._functions.get((_domain(node.domain), node.op_type, node.overload)) if self._functions else None

    def inline(self, messages: list[NodeMessage], names: Iterable[str]) -> list[NodeMessage]:
        """Return the nodes with all calls replaced, those of subgraphs included.

        Args:
            messages: nodes of the graph; those that call functions have all their tensors.
            names: names of its inputs and initializers.

        Raises:
            GraphError: a function calls itself, a call has too many arguments or outputs, or the graph has more than
                ``max_nodes`` nodes (see `quantkit.limits`) after inlining.
        """
        if not self._functions:
            return messages
        self._names.update(names)
        for message, _ in messages:
            self._names.update(message.output, *map(_names_of, _subgraphs(message)))
        inlined = [
            (new, tensors if new is message else {}) for message, tensors in messages for new in self._expand(message)
        ]
        self._update_opsets()
        return inlined

    def _expand(self, call: Any, depth: int = 0) -> Iterator[Any]:
        """Yield the nodes that replace a node."""
        stack = [(call, depth)]
        while stack:
            node, depth = stack.pop()
            for graph in _subgraphs(node):
                nodes = [new for each in graph.node for new in self._expand(each, depth)]
                graph.ClearField("node")
                graph.node.extend(nodes)
            function = self.find(node) if any(node.output) else None
            if function is None:
                self._domains.add(_domain(node.domain))
                yield node
                continue
            # A chain of calls without repetition has each function once.
            if depth == len(self._functions):
                raise GraphError(
                    f"function {node.op_type!r} calls itself, or functions that call it",
                    hint="export the model again: ONNX has no recursive functions",
                )
            body = self._body(function, node)
            self._num_nodes += len(body)
            check_num_nodes(self._num_nodes)
            stack.extend((inner, depth + 1) for inner in reversed(body))

    def _body(self, function: Any, call: Any) -> list[Any]:
        """Return the nodes of a function with the values and attributes of a call."""
        prefix = next(filter(None, call.output))
        for kind, formal, actual in (
            ("inputs", function.input, call.input),
            ("outputs", function.output, call.output),
        ):
            if len(actual) > len(formal):
                raise GraphError(
                    f"node {prefix!r} has {len(actual)} {kind}, and its function {function.name!r} has {len(formal)}",
                    hint="export the model again: the file is invalid",
                )
        values = {"": "", **dict(zip_longest(function.input, call.input, fillvalue=""))}
        copies: list[Any] = []
        for name, output in zip(function.output, call.output, strict=False):
            if output and name in values:  # an input, or the value of another output
                copies.append(message_class("NodeProto")(op_type="Identity", input=[values[name]], output=[output]))
            elif output:
                values[name] = output
        attributes = {each.name: each for each in (*function.attribute_proto, *call.attribute)}
        body = []
        for node in function.node:
            new = message_class("NodeProto")()
            new.CopyFrom(node)
            if new.name:
                new.name = f"{call.name or prefix}/{new.name}"
            self._bind(new, values, attributes, prefix)
            body.append(new)
        return body + copies

    def _bind(self, node: Any, values: dict[str, str], attributes: Mapping[str, Any], prefix: str) -> None:
        """Replace the names of values, and the attributes that refer to attributes of the call."""
        for field in (node.input, node.output):
            field[:] = [self._rename(name, values, prefix) for name in field]
        bound = []
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in attributes:
                    continue  # the op's default
                name = attribute.name
                attribute.CopyFrom(attributes[attribute.ref_attr_name])
                attribute.name = name
            bound.append(attribute)
        if len(bound) < len(node.attribute):
            bound = [type(each).FromString(each.SerializeToString()) for each in bound]
            node.ClearField("attribute")
            node.attribute.extend(bound)
        for graph in _subgraphs(node):
            sparse = [each.values for each in graph.sparse_initializer]
            for value in (*graph.input, *graph.initializer, *sparse, *graph.value_info, *graph.output):
                value.name = self._rename(value.name, values, prefix)
            for inner in graph.node:
                self._bind(inner, values, attributes, prefix)

    def _rename(self, name: str, values: dict[str, str], prefix: str) -> str:
        if name not in values:
            values[name] = unused_name(self._names, f"{prefix}/{name}")
            self._names.add(values[name])
        return values[name]

    def _update_opsets(self) -> None:
        """Import the operator sets of the inlined nodes, and no longer those of functions only."""
        own = {function.domain for function in self._functions.values()} - self._domains
        versions = {_domain(each.domain): each.version for each in self._model.opset_import if each.domain not in own}
        for function in self._functions.values():
            for entry in function.opset_import:
                if _domain(entry.domain) in self._domains:
                    versions.setdefault(_domain(entry.domain), entry.version)
        self._model.ClearField("functions")
        self._model.ClearField("opset_import")
        for domain, version in versions.items():
            self._model.opset_import.add(domain=domain, version=version)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        yield from (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)


def _names_of(graph: Any) -> Iterator[str]:
    """Yield the names of all values that a graph has, those of its subgraphs included."""
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output
        for inner in _subgraphs(node):
            yield from _names_of(inner)
