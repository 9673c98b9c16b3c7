"""Stages of an input pipeline: the dataset nodes of its graph."""

from collections.abc import Iterator
from typing import Any

from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.names import unused_name
from quantkit.ir.tensor import DType, Shape

SEQUENTIAL_MAP = "MapDataset"
PARALLEL_MAP = "ParallelMapDatasetV2"
MAPS = frozenset({SEQUENTIAL_MAP, PARALLEL_MAP})
BATCHES = frozenset({"BatchDatasetV2", "ParallelBatchDataset"})
SHUFFLES = frozenset({"ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2"})
# Stages that pass elements on unchanged; only order, number or time of the elements differ.
POSITIONAL = SHUFFLES | {"PrefetchDataset", "TakeDataset", "SkipDataset", "RepeatDataset", "ShardDataset"}
# Stages with one element for each element of their input.
ONE_TO_ONE = MAPS | SHUFFLES | {"PrefetchDataset", "OptionsDataset", "CacheDataset", "CacheDatasetV2"}
AUTOTUNE = -1


def is_dataset(node: Node) -> bool:
    """Return True if the output of a node is a dataset."""
    return "output_shapes" in node.attrs and "Dataset" in node.op


def root_of(graph: Graph) -> Node:
    """Return the last stage."""
    return graph[graph.outputs[0].node]


def input_stages(graph: Graph, node: Node) -> list[Node]:
    """Return the stages whose elements a stage takes."""
    return [graph[edge.node] for edge in node.inputs if is_dataset(graph[edge.node])]


def stages_of(graph: Graph, node: Node | None = None) -> Iterator[Node]:
    """Yield the stages from the last one, or from a node, to the sources; each stage once."""
    stack, visited = [node or root_of(graph)], set()
    while stack:
        stage = stack.pop()
        if stage.name not in visited:
            visited.add(stage.name)
            yield stage
            stack.extend(reversed(input_stages(graph, stage)))


def is_one_to_one(graph: Graph, stage: str, source: str) -> bool:
    """Return True if a stage has one element for each element of a source."""
    for node in stages_of(graph, graph[stage]):
        if node.name == source:
            return True
        if node.op not in ONE_TO_ONE:
            return False
    return False


def element_types(node: Node) -> tuple[DType, ...]:
    """Return the type of each component of an element."""
    types: Any = node.attrs.get("output_types", node.attrs.get("Toutput_types", ()))
    return tuple(types)


def element_shapes(node: Node) -> tuple[Shape, ...]:
    """Return the shape of each component of an element."""
    shapes: Any = node.attrs["output_shapes"]
    return tuple(shapes)


def captured_inputs(node: Node) -> tuple[Edge, ...]:
    """Return the tensors that a map passes to its function after the components of the element."""
    return node.inputs[1:-1] if node.op == PARALLEL_MAP else node.inputs[1:]


def function_of(graph: Graph, node: Node) -> Function[Graph] | None:
    """Return the function of a stage; None if the stage has no function."""
    name = node.attrs.get("f", node.attrs.get("predicate"))
    return graph.library[name.name] if isinstance(name, FunctionName) and name.name in graph.library else None


def argument_shapes(graph: Graph, stage: Node, function: Function[Graph]) -> list[Shape]:
    """Return the shape of each argument of the function of a map: the components of an element, then the captures."""
    components = element_shapes(graph[stage.inputs[0].node])
    captured: list[Any] = [
        function.graph[edge.node].attrs.get("_output_shapes") for edge in function.graph.inputs[len(components) :]
    ]
    return [*components, *(shapes[0] if shapes else Shape(None) for shapes in captured)]


def constant_of(graph: Graph, edge: Edge) -> Any:
    """Return the value of a constant as a NumPy scalar or array; None if the node is not a constant."""
    node = graph[edge.node]
    return node.value.array if node.is_constant else None


def insert_after(graph: Graph, name: str, nodes: tuple[Node, ...]) -> Graph:
    """Insert nodes after a stage; its consumers use the last one instead."""
    old, new = Edge(name), Edge(nodes[-1].name)
    redirected = [
        node.with_(inputs=tuple(new if edge == old else edge for edge in node.inputs)) for node in graph.nodes.values()
    ]
    outputs = [new if edge == old else edge for edge in graph.outputs]
    return graph.with_nodes([*redirected, *nodes]).with_endpoints([], outputs)


def take_first(graph: Graph, stage: str, count: int) -> Graph:
    """Return the pipeline with the first elements of a stage only."""
    node = graph[stage]
    limit = constant(unused_name(graph, "quantkit/take/count"), count, DType.INT64)
    attrs: dict[str, Attr] = {
        "output_types": element_types(node),
        "output_shapes": element_shapes(node),
        "metadata": b"",
    }
    take = Node(unused_name(graph, "quantkit/take"), "TakeDataset", (Edge(stage), Edge(limit.name)), attrs=attrs)
    return insert_after(graph, stage, (limit, take))
