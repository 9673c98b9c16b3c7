"""Tables of TensorFlow's ``benchmark_model``: nodes by run order, time, memory and op type."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from quantkit.runtimes.tensorflow_trace import NodeRun

NODE_COLUMNS = (
    "[node type]",
    "[start]",
    "[first]",
    "[avg ms]",
    "[%]",
    "[cdf%]",
    "[mem KB]",
    "[times called]",
    "[Name]",
)
TYPE_COLUMNS = (
    *("[Node type]", "[count]", "[avg ms]", "[avg %]"),
    *("[cdf %]", "[mem KB]", "[times called]"),
)
RULE = "=" * 30


@dataclass
class NodeStats:
    """Statistics of one node over all traced runs.

    Attributes:
        name: node name.
        op: op type.
        index: position among the nodes, in the order of the first run.
        starts: start of each run in milliseconds.
        times: duration of each run in milliseconds.
        kilobytes: allocated memory of each run.
        shapes: output shapes of the last run.
    """

    name: str
    op: str
    index: int
    starts: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    kilobytes: list[float] = field(default_factory=list)
    shapes: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Mean duration in milliseconds."""
        return fmean(self.times)


class NodeTable:
    """Statistics of the nodes of a model over traced runs."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeStats] = {}
        self.totals: list[float] = []
        self.memory: list[float] = []

    def add(self, run: Sequence[NodeRun]) -> None:
        """Add one traced run of the model."""
        for node in run:
            stats = NodeStats(node.name, node.op, len(self.nodes))
            stats = self.nodes.setdefault(node.name, stats)
            stats.starts.append(node.start * 1e3)
            stats.times.append(node.seconds * 1e3)
            stats.kilobytes.append(node.num_bytes / 1e3)
            stats.shapes = node.shapes
        self.totals.append(sum(node.seconds for node in run) * 1e6)
        self.memory.append(float(sum(node.num_bytes for node in run)))

    def run_order(self, limit: int) -> str:
        return self._table("Run Order", lambda node: fmean(node.starts), limit)

    def by_time(self, limit: int) -> str:
        return self._table("Top by Computation Time", lambda node: -sum(node.times), limit)

    def by_memory(self, limit: int) -> str:
        return self._table("Top by Memory Use", lambda node: -fmean(node.kilobytes), limit)

    def by_type(self) -> str:
        types: dict[str, list[NodeStats]] = {}
        for node in self.nodes.values():
            types.setdefault(node.op, []).append(node)
        milliseconds = {op: sum(sum(node.times) for node in types[op]) for op in types}
        total, runs = self._mean_total, max(len(self.totals), 1)
        rows, cumulative = [], 0.0
        for op in sorted(types, key=lambda op: -milliseconds[op]):
            mean = milliseconds[op] / runs
            percent = 100 * mean / total
            cumulative += percent
            called = sum(len(node.times) for node in types[op]) / runs
            kilobytes = sum(fmean(node.kilobytes) for node in types[op])
            rows.append(
                (
                    op,
                    str(len(types[op])),
                    f"{mean:.3f}",
                    f"{percent:.3f}%",
                    f"{cumulative:.3f}%",
                    f"{kilobytes:.3f}",
                    f"{called:g}",
                )
            )
        return _format_table("Summary by node type", TYPE_COLUMNS, rows)

    def sizes(self) -> str:
        """Format the output shapes of each node."""
        nodes = [node for node in self.nodes.values() if node.shapes]
        lines = [f"{node.name}: {', '.join(node.shapes)}" for node in nodes]
        return "\n".join([f"{RULE} Output sizes {RULE}", *lines, ""])

    def summary(self) -> str:
        return "\n".join(
            [
                f"Timings (microseconds): {_format_spread(self.totals)}",
                f"Memory (bytes): {_format_spread(self.memory)}",
                f"{len(self.nodes)} nodes observed",
            ]
        )

    @property
    def _mean_total(self) -> float:
        """Mean duration of a run in milliseconds, summed over all nodes."""
        return fmean(self.totals) / 1e3 if any(self.totals) else 1.0

    def _table(self, title: str, key: Callable[[NodeStats], float], limit: int) -> str:
        nodes = sorted(self.nodes.values(), key=lambda node: (key(node), node.index))
        rows, cumulative, runs = [], 0.0, max(len(self.totals), 1)
        for node in nodes[: limit or None]:
            percent = 100 * sum(node.times) / runs / self._mean_total
            cumulative += percent
            rows.append(
                (
                    node.op,
                    f"{fmean(node.starts):.3f}",
                    f"{node.times[0]:.3f}",
                    f"{node.mean:.3f}",
                    f"{percent:.3f}%",
                    f"{cumulative:.3f}%",
                    f"{fmean(node.kilobytes):.3f}",
                    f"{len(node.times) / runs:g}",
                    node.name,
                )
            )
        return _format_table(title, NODE_COLUMNS, rows)


def _format_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["\t".join(f"{cell:>{9 if column else 24}}" for column, cell in enumerate(row)) for row in (columns, *rows)]
    return "\n".join([f"{RULE} {title} {RULE}", *lines, ""])


def _format_spread(values: Sequence[float]) -> str:
    if not values:
        return "count=0"
    if len(set(values)) == 1:
        return f"count={len(values)} curr={values[-1]:.0f}"
    low, high = min(values), max(values)
    return (
        f"count={len(values)} first={values[0]:.0f} curr={values[-1]:.0f} min={low:.0f} "
        f"max={high:.0f} avg={fmean(values):g} std={pstdev(values):.0f}"
    )
