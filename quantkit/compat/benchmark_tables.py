"""The tables of TensorFlow's ``benchmark_model``: nodes by run order, time, memory and type."""

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
    "[Node type]",
    "[count]",
    "[avg ms]",
    "[avg %]",
    "[cdf %]",
    "[mem KB]",
    "[times called]",
)
RULE = "=" * 30


@dataclass
class NodeStats:
    """A node over all traced runs; times are in milliseconds."""

    name: str
    op: str
    place: int
    starts: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    kilobytes: list[float] = field(default_factory=list)
    shapes: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        return fmean(self.times)


class NodeTable:
    """What traced runs told of the nodes of a model."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeStats] = {}
        self.totals: list[float] = []
        self.memory: list[float] = []

    def add(self, run: Sequence[NodeRun]) -> None:
        """One run more."""
        for one in run:
            stats = self.nodes.setdefault(one.name, NodeStats(one.name, one.op, len(self.nodes)))
            stats.starts.append(one.start * 1e3)
            stats.times.append(one.seconds * 1e3)
            stats.kilobytes.append(one.num_bytes / 1e3)
            stats.shapes = one.shapes
        self.totals.append(sum(one.seconds for one in run) * 1e6)
        self.memory.append(float(sum(one.num_bytes for one in run)))

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
        total, runs = self._mean_total, max(len(self.totals), 1)
        rows, sum_of_parts = [], 0.0
        for op, nodes in sorted(types.items(), key=lambda one: -sum(sum(node.times) for node in one[1])):
            mean = sum(sum(node.times) for node in nodes) / runs
            part = 100 * mean / total
            sum_of_parts += part
            called = sum(len(node.times) for node in nodes) / runs
            kilobytes = sum(fmean(node.kilobytes) for node in nodes)
            rows.append(
                (
                    op,
                    str(len(nodes)),
                    f"{mean:.3f}",
                    f"{part:.3f}%",
                    f"{sum_of_parts:.3f}%",
                    f"{kilobytes:.3f}",
                    f"{called:g}",
                )
            )
        return _text("Summary by node type", TYPE_COLUMNS, rows)

    def sizes(self) -> str:
        """The shapes of what each node gives."""
        lines = [f"{node.name}: {', '.join(node.shapes)}" for node in self.nodes.values() if node.shapes]
        return "\n".join([f"{RULE} Output sizes {RULE}", *lines, ""])

    def summary(self) -> str:
        return "\n".join(
            [
                f"Timings (microseconds): {_spread(self.totals)}",
                f"Memory (bytes): {_spread(self.memory)}",
                f"{len(self.nodes)} nodes observed",
            ]
        )

    @property
    def _mean_total(self) -> float:
        """Milliseconds of all nodes in a run."""
        return fmean(self.totals) / 1e3 if any(self.totals) else 1.0

    def _table(self, title: str, key: Callable[[NodeStats], float], limit: int) -> str:
        nodes = sorted(self.nodes.values(), key=lambda node: (key(node), node.place))
        rows, sum_of_parts, runs = [], 0.0, max(len(self.totals), 1)
        for node in nodes[: limit or None]:
            part = 100 * sum(node.times) / runs / self._mean_total
            sum_of_parts += part
            rows.append(
                (
                    node.op,
                    f"{fmean(node.starts):.3f}",
                    f"{node.times[0]:.3f}",
                    f"{node.mean:.3f}",
                    f"{part:.3f}%",
                    f"{sum_of_parts:.3f}%",
                    f"{fmean(node.kilobytes):.3f}",
                    f"{len(node.times) / runs:g}",
                    node.name,
                )
            )
        return _text(title, NODE_COLUMNS, rows)


def _text(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["\t".join(f"{cell:>{24 if not at else 9}}" for at, cell in enumerate(row)) for row in (columns, *rows)]
    return "\n".join([f"{RULE} {title} {RULE}", *lines, ""])


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "count=0"
    if len(set(values)) == 1:
        return f"count={len(values)} curr={values[-1]:.0f}"
    low, high = min(values), max(values)
    return (
        f"count={len(values)} first={values[0]:.0f} curr={values[-1]:.0f} min={low:.0f} max={high:.0f} "
        f"avg={fmean(values):g} std={pstdev(values):.0f}"
    )
