"""Vectorization: a map after the batch, one call for each batch instead of one for each element.

    map(f) -> batch(n)   ==   batch(n) -> map(f of each row)

A map of little work costs its call. Stages between map and batch that only select or order elements stay where they
are; the map passes them. The rules of the op types are those of ``tf.vectorized_map``.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quantkit.errors import QuantkitError, one_line
from quantkit.formats import graphdef
from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.names import unused_name
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.table import CONTROL_FLOW, LAYER, Fact, find_ops
from quantkit.pipelines.bridge import as_message, infer_specs
from quantkit.pipelines.stages import (
    BATCHES,
    MAPS,
    POSITIONAL,
    argument_shapes,
    element_shapes,
    element_types,
    function_of,
    stages_of,
)
from quantkit.pipelines.state import is_pure
from quantkit.runtimes.tensorflow_library import import_tensorflow
from quantkit.transforms.functions.inline_functions import inline_functions

# Ops on strings and pixels, and elementwise ops, for which TensorFlow may have no rule: the first input has a row for
# each element, and the others are the same for every row.
_ROW_OPS = find_ops(Fact.UNARY, "tensorflow") | {
    *("AsString", "Bitcast", "DecodeBase64", "DecodePaddedRaw", "EncodeBase64", "HSVToRGB", "RGBToHSV"),
    *("RegexFullMatch", "RegexReplace", "StaticRegexFullMatch", "StaticRegexReplace", "StringLength", "StringLower"),
    *("StringStrip", "StringToHashBucket", "StringToHashBucketFast", "StringToHashBucketStrong", "StringToNumber"),
    *("StringUpper", "Substr"),
}
# Ops whose results for a batch are rounded in another order, one whose results differ in size from row to row, and
# those that call functions.
_SINGLE_OPS = find_ops(LAYER | CONTROL_FLOW, "tensorflow").union(
    ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "DecodeRaw", "Einsum")
)
# Messages of TensorFlow about an op type.
_NO_RULE = re.compile(r"No pfor vectorization defined for (\w+)")
_VARYING = re.compile(r"of op '(\w+)' expected to be loop invariant")


class NotVectorizableError(Exception):
    """Reason why a function has no batched form."""


def vectorize_maps(graph: Graph) -> Outcome:
    """Apply maps to batches instead of elements.

    Before:  map(f) -> shuffle(k) -> batch(n)
    After:   shuffle(k) -> batch(n) -> map(f of each row)

    Skips functions with an op that has no rule for batches, with state, or with arguments or results of variable shape.
    """
    changes: list[str] = []
    skips: dict[str, Skip] = {}
    while (site := _find_site(graph, skips)) is not None:
        batch, between, stage, function = site
        graph = _move_after_batch(graph, batch, between, stage, function)
        changes.append(f"{stage.name} applied to the batches of {batch.name}")
    return Outcome(graph, tuple(changes), tuple(skips.values()))


def _find_site(graph: Graph, skips: dict[str, Skip]) -> tuple[Node, list[Node], Node, Function[Graph]] | None:
    """Return a batch, the stages before it, a map before those, and the function of the map for batches."""
    for batch in stages_of(graph):
        if batch.op not in BATCHES:
            continue
        between: list[Node] = []
        stage = graph[batch.inputs[0].node]
        while stage.op in POSITIONAL:
            between.append(stage)
            stage = graph[stage.inputs[0].node]
        if stage.op not in MAPS or stage.name in skips:
            continue
        try:
            return batch, between, stage, _vectorize(graph, stage)
        except NotVectorizableError as reason:
            skips[stage.name] = Skip(str(reason), stage.name)
    return None


def _vectorize(graph: Graph, stage: Node) -> Function[Graph]:
    """Return the function of a map for batches.

    Raises:
        NotVectorizableError: the function has no form for batches.
    """
    function = function_of(graph, stage)
    source = graph[stage.inputs[0].node]
    if function is None or not is_pure(graph, function):
        raise NotVectorizableError("the function is random or has state")
    if DType.VARIANT in (*element_types(source), *element_types(stage)):
        raise NotVectorizableError("elements are sparse, ragged or datasets")
    if not all(shape.is_known for shape in element_shapes(source)):
        raise NotVectorizableError("elements may differ in shape, which a batch of them would not have")
    for node in function.graph.nodes.values():
        if node.op in _SINGLE_OPS:
            raise NotVectorizableError(f"{node.name} ({node.op}) has no rule for batches")
        shapes: Any = node.attrs.get("dense_shapes", ())
        varies = node.attrs.get("num_sparse") or node.attrs.get("ragged_value_types")
        if varies or not all(shape.is_known for shape in shapes):
            raise NotVectorizableError(f"{node.name} ({node.op}) has sparse, ragged or variable features")
    arguments = argument_shapes(graph, stage, function)
    return vectorize_function(graph, _state_axes(graph, function, arguments), arguments, len(element_types(source)))


def _state_axes(graph: Graph, function: Function[Graph], arguments: Sequence[Shape]) -> Function[Graph]:
    """Return a function whose Squeeze nodes state their axes: without them, they would remove a batch of size 1.

    Raises:
        NotVectorizableError: a shape is not known.
    """
    squeezes = [
        node for node in function.graph.nodes.values() if node.op == "Squeeze" and not node.attrs.get("squeeze_dims")
    ]
    if not squeezes:
        return function
    draft = Draft(function.graph)
    try:
        specs = infer_specs(function, graph, arguments)
    except QuantkitError as error:
        raise NotVectorizableError(error.message) from None
    for node in squeezes:
        shape = specs[node.inputs[0]][0]
        if not shape.is_known:
            raise NotVectorizableError(f"the shape of {node.inputs[0]} is not known")
        axes = tuple(axis for axis, size in enumerate(shape.sizes) if size == 1)
        identity = Node(node.name, "Identity", node.inputs, node.controls, {"T": node.attrs["T"]})
        draft.replace(node.name, node.with_attrs(squeeze_dims=axes) if axes else identity)
    return replace(function, graph=draft.graph())


def vectorize_function(
    graph: Graph, function: Function[Graph], arguments: Sequence[Shape], num_components: int
) -> Function[Graph]:
    """Return the function that computes the results of every row of its arguments.

    Args:
        graph: graph with the library.
        function: function of one element.
        arguments: shape of each argument.
        num_components: number of arguments that are components of an element; the others are the same for every row.

    Raises:
        NotVectorizableError: an op has no rule, a parameter differs from row to row, or this version of TensorFlow has
            other modules.
    """
    tf = import_tensorflow()
    try:
        from tensorflow.python.ops.parallel_for.control_flow_ops import pfor
        from tensorflow.python.ops.parallel_for.pfor import ConversionNotImplementedError, wrap
    except ImportError as error:
        raise NotVectorizableError(f"TensorFlow {tf.__version__} has no rules for batches: {error}") from None
    rules = _rules(tf, wrap)
    message, body = as_message(function, graph, arguments), function.graph
    names = [f"{edge.node}:0" for edge in body.inputs]
    types = {f"{node.name}:0": node.attr["dtype"].type for node in message.node if node.op == "Placeholder"}
    rows = [None if shape.dims is None else (None, *shape.dims) for shape in arguments[:num_components]]
    shapes = [*rows, *(shape.dims for shape in arguments[num_components:])]
    outputs = [f"{edge.node}:{edge.port}" for edge in body.outputs]

    def compute(*values: Any) -> Any:
        def compute_row(index: Any) -> Any:
            row = [tf.gather(value, index) for value in values[:num_components]]
            for part, value in zip(row, values, strict=False):
                part.op.pfor_converter = lambda _, value=value: wrap(value, True)  # the rows, without a copy
            tensors = dict(zip(names, (*row, *values[num_components:]), strict=True))
            results = tf.graph_util.import_graph_def(message, tensors, outputs, name="")
            for operation in tf.compat.v1.get_default_graph().get_operations():
                if operation.type in rules:
                    operation.pfor_converter = rules[operation.type]
            return results

        return pfor(compute_row, tf.shape(values[0])[0], fallback_to_while_loop=False)

    specs = [tf.TensorSpec(shape, types[name]) for shape, name in zip(shapes, names, strict=True)]
    batched, logger = tf.function(compute, specs, autograph=False), tf.get_logger()
    level, logger.disabled = logger.disabled, True  # the error has the same message
    try:
        traced = batched.get_concrete_function()
    except Exception as error:
        cause = error.__context__ or error  # the report of TensorFlow about an error in an imported op fails, too
        expected = (ValueError, TypeError, NotImplementedError, AssertionError, tf.errors.OpError)
        if not isinstance(cause, (*expected, ConversionNotImplementedError)):
            raise cause from None
        raise NotVectorizableError(_reason(body, str(cause))) from None
    finally:
        logger.disabled = level
    return _as_function(function, traced)


def _reason(body: Graph, message: str) -> str:
    """Return the reason why TensorFlow does not vectorize a function, with the name of the first such node."""
    for pattern, reason in (
        (_NO_RULE, "has no rule for batches"),
        (_VARYING, "has a parameter that differs from row to row"),
    ):
        if match := pattern.search(message):
            name = next((node.name for node in body.nodes.values() if node.op == match[1]), "a node")
            return f"{name} ({match[1]}) {reason}"
    return one_line(message)


def _rules(tf: Any, wrap: Any) -> dict[str, Any]:
    """Return the rules of op types for rows of inputs, each a converter of TensorFlow that ends with ``wrap``."""

    def compute_rows(node: Any) -> Any:
        inputs = [node.stacked_input(0), *map(node.unstacked_input, range(1, node.num_inputs))]
        types = [each.dtype for each in node.outputs]
        graph = tf.compat.v1.get_default_graph()
        operation = graph.create_op(node.op_type, inputs, types, attrs=node.op.node_def.attr)
        return [wrap(output, True) for output in operation.outputs]

    def compute_norm(node: Any) -> Any:
        axes = node.unstacked_input(1)
        axes += tf.cast(axes >= 0, axes.dtype)
        return wrap(tf.math.reduce_euclidean_norm(node.stacked_input(0), axes, node.get_attr("keep_dims")), True)

    def mirror(node: Any) -> Any:
        paddings = tf.pad(node.unstacked_input(1), [[1, 0], [0, 0]])
        return wrap(tf.pad(node.stacked_input(0), paddings, node.get_attr("mode").decode()), True)

    return {**dict.fromkeys(_ROW_OPS, compute_rows), "EuclideanNorm": compute_norm, "MirrorPad": mirror}


def _as_function(function: Function[Graph], traced: Any) -> Function[Graph]:
    """Return a traced function as a function of the library, with the results of another one."""
    graph = graphdef.decode(traced.graph.as_graph_def().SerializeToString())
    graph = inline_functions(graph.with_endpoints([], [Edge.parse(tensor.name) for tensor in traced.outputs]))
    inputs = [Edge.parse(tensor.name) for tensor in traced.inputs]
    arguments = {
        edge.node: Node(edge.node, "_Arg", attrs={"T": graph[edge.node].attrs["dtype"], "index": index})
        for index, edge in enumerate(inputs)
    }
    used = graph.without_unused_nodes()
    nodes = [*arguments.values(), *(node for node in used.nodes.values() if node.name not in arguments)]
    return replace(function, name=f"{function.name}__batched", graph=Graph.of(nodes, inputs, used.outputs), controls={})


def _move_after_batch(graph: Graph, batch: Node, between: list[Node], stage: Node, function: Function[Graph]) -> Graph:
    source = stage.inputs[0]
    element = graph[source.node]
    spec: dict[str, Attr] = {"output_types": element_types(element), "output_shapes": element_shapes(element)}
    draft = Draft(graph)
    below = source
    for node in reversed(between):
        renamed = unused_name(graph, f"{node.name}/elements")
        draft.append(node.with_(name=renamed, inputs=(below, *node.inputs[1:])).with_attrs(**spec))
        below = Edge(renamed)
    rows = element_shapes(batch)[0].dims
    first = rows[0] if rows else None
    shapes = tuple(Shape(None if shape.dims is None else (first, *shape.dims)) for shape in element_shapes(element))
    name = unused_name(graph, f"{batch.name}/elements")
    draft.append(
        batch.with_(name=name, inputs=(below, *batch.inputs[1:])).with_attrs(
            output_types=element_types(element), output_shapes=shapes
        )
    )
    moved = stage.with_(name=batch.name, inputs=(Edge(name), *stage.inputs[1:])).with_attrs(
        f=FunctionName(function.name),
        output_types=element_types(batch),
        output_shapes=element_shapes(batch),
    )
    draft.replace(batch.name, moved)
    after = draft.graph()
    return after.with_(library=after.library.with_(function)).without_unused_nodes()
