"""Vectorization: a map after the batch, one call for each batch instead of one for each element.

    map(f) -> batch(n)   ==   batch(n) -> map(f of each row)

A map of little work costs its call. Stages between map and batch that only select or order elements stay where they
are; the map passes them.
"""

from dataclasses import replace

from quantkit.errors import QuantkitError
from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.names import unused_name
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.pipelines.batched_ops import RULES, BatchedBody, NotVectorizableError
from quantkit.pipelines.bridge import infer_specs
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


def vectorize_maps(graph: Graph) -> Outcome:
    """Apply maps to batches instead of elements.

    Before:  map(f) -> shuffle(k) -> batch(n)
    After:   shuffle(k) -> batch(n) -> map(f of each row)

    Skips functions with an op that has no rule for batches, with state, or with results of variable shape.
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
    try:
        inferred = infer_specs(function, graph, argument_shapes(graph, stage, function))
    except QuantkitError as error:
        raise NotVectorizableError(error.message) from None
    shapes = {edge: shape for edge, (shape, _) in inferred.items()}
    return vectorize_function(function, shapes, len(element_types(source)))


def vectorize_function(function: Function[Graph], shapes: dict[Edge, Shape], num_components: int) -> Function[Graph]:
    """Return the function that computes the results of every row of its arguments.

    Args:
        function: function of one element.
        shapes: shape of each tensor in the function.
        num_components: number of arguments that are components of an element; the others are the same for every row.

    Raises:
        NotVectorizableError: an op has no rule, or a parameter differs from row to row.
    """
    body = function.graph
    values = {Edge(node.name): node.value.array for node in body.nodes.values() if node.is_constant}
    batched = BatchedBody(dict(shapes), values)
    for node in body:
        _add_batched(batched, body[node], num_components)
    outputs = []
    for (name, dtype), edge in zip(function.results.items(), body.outputs, strict=True):
        outputs.append(batched.broadcast(edge, dtype, f"result_{name}"))
    graph = Graph.of(batched.nodes, body.inputs, outputs)
    return replace(function, name=f"{function.name}__batched", graph=graph, controls={})


def _add_batched(batched: BatchedBody, node: Node, num_components: int) -> None:
    if node.op == "_Arg":
        index = node.attrs["index"]
        assert isinstance(index, int)
        is_component = index < num_components
        added = node.with_attrs(_output_shapes=None) if is_component else node
        edge = batched.add(added, batched=is_component)
        dtype = node.attrs["T"]
        if is_component and isinstance(dtype, DType):
            batched.set_first_batched(edge, dtype)
    elif not any(edge in batched.batched for edge in node.inputs):
        batched.add(node.with_attrs(_class=None), batched=False)
    elif node.op == "NoOp":
        batched.add(node, batched=False)
    else:
        rule = RULES.get(node.op)
        if rule is None:
            raise NotVectorizableError(f"{node.name} ({node.op}) has no rule for batches")
        rule(batched, node.with_attrs(_class=None, _output_shapes=None))


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
