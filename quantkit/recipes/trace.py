"""What happened on the way through a recipe, and whether a step may stand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantkit.errors import CheckError
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Skip
from quantkit.recipes.grammar import Step
from quantkit.transforms.registry import Claim

# What happens where a check refuses a step: the run stops, or the step is undone and the run goes on.
STOP, SKIP = "stop", "skip"

# What is asked after each step: (graph before, graph after, transform) -> a line to keep, or an error.
Check = Callable[[Graph, Graph, Claim], str]


@dataclass(frozen=True)
class Record:
    """What one step did.

    Attributes:
        step: as written.
        nodes: how many there were before and after.
        changes: what was matched and done.
        skips: near-matches that were declined, with reasons.
        seconds: wall time of the transform.
        ignored: the error that ``ignore_errors`` swallowed, or nothing.
        check: what the check after the step found, or nothing.
        undone: why the check refused the step, which then counts as not done, or nothing.
        ops: by op how many nodes there are more than before; less than 0: fewer.
    """

    step: Step
    nodes: tuple[int, int]
    changes: tuple[str, ...]
    skips: tuple[Skip, ...]
    seconds: float
    ignored: str = ""
    check: str = ""
    undone: str = ""
    ops: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "transform": str(self.step),
            "nodes_before": self.nodes[0],
            "nodes_after": self.nodes[1],
            "changes": list(self.changes),
            "skips": [{"node": skip.node, "reason": skip.reason} for skip in self.skips],
            "seconds": self.seconds,
            "ignored_error": self.ignored,
            "check": self.check,
            "undone": self.undone,
            "ops": dict(self.ops),
        }


@dataclass(frozen=True)
class Trace:
    """What every step of a run did, in order."""

    records: tuple[Record, ...] = field(default=())

    def to_json(self) -> list[dict[str, Any]]:
        return [record.to_json() for record in self.records]


def judged(check: Check | None, before: Graph, after: Graph, transform: Claim, on_mismatch: str) -> tuple[str, str]:
    """What a check finds, and why the step is undone where it is.

    Raises:
        CheckError: the check refuses the step, and `on_mismatch` says to stop.
    """
    if check is None:
        return "", ""
    try:
        return check(before, after, transform), ""
    except CheckError as error:
        if on_mismatch == STOP:
            raise
        return "", error.message


def op_changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By op, in order of name, how many more nodes there are.

    >>> op_changes({"Relu": 2, "Identity": 3}, {"Relu": 2, "Relu6": 1})
    {'Identity': -3, 'Relu6': 1}
    """
    counts = {op: after.get(op, 0) - before.get(op, 0) for op in sorted({*before, *after})}
    return {op: count for op, count in counts.items() if count}


def node_changes(before: Graph, after: Graph) -> tuple[str, ...]:
    """What became of the nodes, in the order of the graph before, for a transform that does not tell."""
    lines = []
    for name, node in before.nodes.items():
        made = after.nodes.get(name)
        if made is None:
            lines.append(f"{name} ({node.op}) is gone")
        elif made is not node and made != node:
            lines.append(f"{name} ({node.op})" + (f" -> {made.op}" if made.op != node.op else " changed"))
    lines.extend(f"{name} ({node.op}) is new" for name, node in after.nodes.items() if name not in before.nodes)
    return tuple(lines)
