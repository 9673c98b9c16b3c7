"""State of the functions of a pipeline: which ones may be called in another order, or once instead of every epoch."""

from collections.abc import Iterable, Iterator

from quantkit.ir.functions import Function, function_names
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.semantics import CALL_OPS
from quantkit.pipelines.bridge import is_stateful
from quantkit.pipelines.stages import SHUFFLES, function_of, is_dataset, stages_of

# Stateful op types whose calls do not depend on each other: files and tables are read, errors are raised.
_INDEPENDENT = frozenset({"ReadFile", "Assert", "LookupTableFindV2", "LookupTableSizeV2", "IsVariableInitialized"})
RANDOM_OPS = frozenset(
    {
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "RandomShuffle"),
        *("ParameterizedTruncatedNormal", "RandomGammaV3", "RandomPoissonV2", "Multinomial"),
        *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "RandomCrop"),
    }
)
_RANDOM_STAGES = SHUFFLES | {"RandomDataset", "RandomDatasetV2", "GeneratorDataset", "SamplingDataset"}


def function_nodes(graph: Graph, function: Function[Graph]) -> Iterator[Node]:
    """Yield the nodes of a function and of the functions that it calls."""
    yield from _called_nodes(graph, [function.name])


def _called_nodes(graph: Graph, names: Iterable[str]) -> Iterator[Node]:
    stack, visited = list(names), set()
    while stack:
        name = stack.pop()
        if name in visited or name not in graph.library:
            continue
        visited.add(name)
        for node in graph.library[name].graph.nodes.values():
            yield node
            stack.extend(function_names(node.attrs))


def order_dependence(graph: Graph, function: Function[Graph]) -> str:
    """Return the reason why the calls of a function depend on their order; empty if they do not."""
    for node in function_nodes(graph, function):
        if node.op in RANDOM_OPS:
            if node.attrs.get("seed") or node.attrs.get("seed2"):
                return f"{node.name} ({node.op}) has a seed, and its values depend on the order of the calls"
        elif _is_dependent(node):
            return f"{node.name} ({node.op}) has state"
    return ""


def randomness(graph: Graph, stage: Node) -> str:
    """Return the reason why two epochs of a stage and its inputs may differ; empty if they do not."""
    for node in stages_of(graph, stage):
        if node.op in _RANDOM_STAGES:
            return f"{node.name} ({node.op}) is random or unknown"
        function = function_of(graph, node)
        if function is None:
            continue
        for inner in function_nodes(graph, function):
            if depends_on_calls(graph, inner):
                return f"{inner.name} ({inner.op}) in the function of {node.name} is random or has state"
    return ""


def is_pure(graph: Graph, function: Function[Graph]) -> bool:
    """Return True if no node of a function is random or has state."""
    return not any(depends_on_calls(graph, node) for node in function.graph.nodes.values())


def depends_on_calls(graph: Graph, node: Node) -> bool:
    """Return True if a node, or a node of the functions that it calls, is random or has state."""
    nodes = (node, *_called_nodes(graph, function_names(node.attrs)))
    return any(each.op in RANDOM_OPS or each.op in _RANDOM_STAGES or _is_dependent(each) for each in nodes)


def _is_dependent(node: Node) -> bool:
    has_own_state = node.op not in _INDEPENDENT and node.op not in CALL_OPS and not is_dataset(node)
    is_source = "Dataset" in node.op  # sources such as TFRecordDataset have no types in a function
    return has_own_state and not is_source and node.op != "_Arg" and is_stateful(node.op)


def captured_variable(graph: Graph) -> str:
    """Return the reason why a pipeline cannot be rewritten; empty if it can.

    The graph of a pipeline has copies of its variables: the rewritten pipeline would not change the original ones, and
    would not see their later values. Lookup tables are shared.
    """
    for stage in stages_of(graph):
        function = function_of(graph, stage)
        if function is None:
            continue
        arguments = function.graph.inputs
        resources = {edge.node for edge in arguments if function.graph[edge.node].attrs["T"] is DType.RESOURCE}
        for node in function.graph.nodes.values():
            if resources & {edge.node for edge in node.inputs} and not node.op.startswith("LookupTable"):
                return f"the function of {stage.name} uses a variable, which the rewritten pipeline would copy"
    return ""
