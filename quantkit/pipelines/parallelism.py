"""Parallel calls and prefetching, in the order of the sequential pipeline."""

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.names import unused_name
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.pipelines.stages import (
    AUTOTUNE,
    PARALLEL_MAP,
    SEQUENTIAL_MAP,
    constant_of,
    element_shapes,
    element_types,
    function_of,
    root_of,
    stages_of,
)
from quantkit.pipelines.state import order_dependence

_INTERLEAVE, _PARALLEL_INTERLEAVE = "InterleaveDataset", "ParallelInterleaveDatasetV4"
_COMMON = ("f", "Targuments", "output_types", "output_shapes", "metadata")


def parallelize(graph: Graph, calls: int = AUTOTUNE) -> Outcome:
    """Call the functions of maps and interleaves in parallel, with the order of the sequential calls.

    Before:  map(f)
    After:   map(f, num_parallel_calls=calls, deterministic=True)

    A number of calls also replaces the automatic number of parallel maps. Interleaves have the automatic number, which
    is at most their cycle length. Skips functions whose calls depend on their order.
    """
    draft = Draft(graph)
    automatic, number = (unused_name(graph, f"quantkit/{name}") for name in ("autotune", "parallel_calls"))
    changes: list[str] = []
    skips: list[Skip] = []
    for stage in stages_of(graph):
        function = function_of(graph, stage)
        if stage.op == PARALLEL_MAP and calls != AUTOTUNE and constant_of(graph, stage.inputs[-1]) == AUTOTUNE:
            draft.replace(stage.name, stage.with_(inputs=(*stage.inputs[:-1], Edge(number))))
            changes.append(f"{stage.name} has {calls} parallel calls")
        if stage.op not in (SEQUENTIAL_MAP, _INTERLEAVE) or function is None:
            continue
        reason = order_dependence(graph, function)
        if reason:
            skips.append(Skip(reason, stage.name))
            continue
        draft.replace(stage.name, _parallel(stage, Edge(automatic), Edge(number)))
        changes.append(f"{stage.name} calls its function in parallel")
    if changes:
        draft.append(constant(automatic, AUTOTUNE, DType.INT64))
        draft.append(constant(number, calls, DType.INT64))
    return Outcome(draft.graph().without_unused_nodes() if changes else graph, tuple(changes), tuple(skips))


def _parallel(stage: Node, automatic: Edge, calls: Edge) -> Node:
    attrs = {key: stage.attrs[key] for key in _COMMON if key in stage.attrs} | {"deterministic": b"true"}
    if stage.op == _INTERLEAVE:
        # buffer_output_elements, prefetch_input_elements, num_parallel_calls
        inputs = (*stage.inputs, automatic, automatic, automatic)
        return Node(stage.name, _PARALLEL_INTERLEAVE, inputs, stage.controls, attrs, extra=stage.extra)
    shared = ("preserve_cardinality", "use_inter_op_parallelism")
    attrs |= {key: stage.attrs[key] for key in shared if key in stage.attrs} | {"use_unbounded_threadpool": False}
    return Node(stage.name, PARALLEL_MAP, (*stage.inputs, calls), stage.controls, attrs, extra=stage.extra)


def add_prefetch(graph: Graph) -> Outcome:
    """Prefetch at the end of the pipeline, so that the consumer and the pipeline work at the same time.

    Before:  batch(n)
    After:   batch(n) -> prefetch(AUTOTUNE)
    """
    root = root_of(graph)
    last = graph[root.inputs[0].node] if root.op == "OptionsDataset" else root
    if "Prefetch" in last.op:
        return Outcome(graph, (), (Skip("the pipeline ends with a prefetch", last.name),))
    size = constant(unused_name(graph, "quantkit/prefetch_size"), AUTOTUNE, DType.INT64)
    prefetch = Node(
        unused_name(graph, "quantkit/prefetch"),
        "PrefetchDataset",
        (Edge(root.name), Edge(size.name)),
        attrs={
            "output_types": element_types(root),
            "output_shapes": element_shapes(root),
            "slack_period": 0,
            "legacy_autotune": True,
            "buffer_size_min": 0,
            "metadata": b"",
        },
    )
    nodes = [*graph.nodes.values(), size, prefetch]
    return Outcome(graph.with_nodes(nodes).with_endpoints([], [Edge(prefetch.name)]), (f"prefetch after {root.name}",))
