"""Removal of stages without effect."""

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.pipelines.stages import MAPS, captured_inputs, constant_of, function_of, stages_of

# Value of the second input with which a stage passes every element on.
_NEUTRAL = {"TakeDataset": -1, "SkipDataset": 0, "RepeatDataset": 1, "ShardDataset": 1}
_PREFETCH = "PrefetchDataset"


def remove_no_ops(graph: Graph) -> Outcome:
    """Remove stages without effect.

    Removes ``take(-1)``, ``skip(0)``, ``repeat(1)``, ``shard(1, 0)``, a map of the identity, and a prefetch directly
    after another one.
    """
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for stage in stages_of(graph):
        if _is_neutral(graph, stage):
            draft.redirect(Edge(stage.name), stage.inputs[0])
            changes.append(f"{stage.name} removed")
    return Outcome(draft.graph().without_unused_nodes() if changes else graph, tuple(changes), tuple(skips))


def _is_neutral(graph: Graph, stage: Node) -> bool:
    if stage.op in _NEUTRAL:
        value = constant_of(graph, stage.inputs[1])
        return value is not None and int(value) == _NEUTRAL[stage.op]
    if stage.op == _PREFETCH:
        return graph[stage.inputs[0].node].op == _PREFETCH
    return stage.op in MAPS and _is_identity(graph, stage)


def _is_identity(graph: Graph, stage: Node) -> bool:
    function = function_of(graph, stage)
    if function is None or function.controls or captured_inputs(stage):
        return False
    body = function.graph
    sources = []
    for edge in body.outputs:
        while body[edge.node].op == "Identity":
            edge = body[edge.node].inputs[0]
        sources.append(edge)
    return tuple(sources) == tuple(body.inputs)
