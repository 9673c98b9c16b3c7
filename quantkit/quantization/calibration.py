"""Run data through the float graph and choose a range for every edge: the only step that needs data.

Pictures go through one by one; while the engine computes the next one, a thread looks at what the last one gave. So
memory holds two pictures' tensors and a histogram for each edge, however many pictures there are.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from math import prod
from pathlib import Path
from time import monotonic
from zipfile import BadZipFile

import numpy as np

from quantkit.data.feeders import require_arrays
from quantkit.errors import InputError, UsageError
from quantkit.formats.files import write_whole
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.observers import BINS, Observer, create_observer
from quantkit.quantization.plan import NOT_FINITE, Plan
from quantkit.quantization.ranges import Provenance, Range, Ranges
from quantkit.runtimes import AUTO, open_session
from quantkit.runtimes.session import Session, TensorInfo

Batch = Array | Mapping[str, Array]
# What a small network's examples may take together, where the graph leaves their number open.
CHUNK_BYTES = 32 << 20
MOST_AT_ONCE = 64
# Channels are looked at one by one in this many arrays of each edge only: it takes longer than all else.
GUARDED = 4
# A channel that reaches so many times as far as the middle one leaves the others few codes.
DWARFING = 100.0
# Copies of the weights that an engine makes until it runs, as measured; TensorFlow keeps messages of its graph.
USUAL_COPIES = 4
COPIES = {"tensorflow": 12}
MEAN_ROWS = 401
SAVE_SECONDS = 10.0


def memory_bound(graph: Graph, plan: Plan, *, engine: str = "", at_once: int = 1) -> int:
    """Bytes that calibrating takes at most beyond Python and the engine's own code.

    The engine holds its weights, copies of them from the forms they went through as it loaded, its working tensors
    and the observed ones; beside them there are the two last sets of observed tensors and the histograms.
    """
    shapes = infer_shapes(graph)
    weights = sum(node.value.num_bytes for node in graph.nodes.values() if node.is_constant)
    sizes = {edge: prod(size or at_once for size in shape.dims or ()) * 4 for edge, shape in shapes.items()}
    flowing = sum(size for edge, size in sizes.items() if not graph[edge.node].is_constant)
    observed = sum(sizes.get(edge, 0) for edge in {*plan.edges, *plan.averaged})
    return COPIES.get(engine, USUAL_COPIES) * weights + flowing + 3 * observed + len(plan.edges) * BINS * 16


def open_observed(graph: Graph, plan: Plan, runtime: str = AUTO) -> Session:
    """A session that gives every edge the plan observes, and the graph's outputs, in the fastest engine that can.

    Raises:
        UnavailableError: no engine can run the graph here.
        GraphError: the engine refuses the graph.
    """
    fed = set(graph.inputs)
    wanted = dict.fromkeys(edge for edge in (*graph.outputs, *plan.edges, *plan.averaged) if edge not in fed)
    return open_session(graph.with_endpoints(None, wanted), runtime)


def examples_at_once(graph: Graph, plan: Plan) -> int:
    """How many examples go through together: as many as the graph takes, or as memory allows where that is open."""
    shapes = infer_shapes(graph)
    first = shapes.get(graph.inputs[0]) if graph.inputs else None
    if first is None or not first.dims:
        return 1
    if first.dims[0] is not None:
        return first.dims[0]
    example = sum(prod(size or 1 for size in shapes[edge].dims or ()) * 4 for edge in plan.edges if edge in shapes)
    return int(np.clip(CHUNK_BYTES // max(example, 1), 1, MOST_AT_ONCE))


def collect(
    session: Session,
    plan: Plan,
    batches: Iterable[Batch],
    *,
    at_once: int | None = 1,
    counted: Callable[[Mapping[str, Array]], int] | None = None,
    graph_digest: str = "",
    progress: Callable[[int], None] = lambda count: None,
    answers: Callable[[Mapping[str, Array], Mapping[str, Array]], None] = lambda feeds, outputs: None,
    resume: Path | None = None,
) -> Ranges:
    """Choose a range for every edge that a plan quantizes.

    Args:
        session: of the float graph, whose outputs hold `Plan.edges` and `Plan.averaged`: `open_observed` opens it.
        plan: which edges, and how ranges are chosen.
        batches: arrays of examples (n, ...) for the only input, or arrays by input name.
        at_once: examples that run together; None: each batch is fed as it is.
        counted: how many examples there are in what is fed; None: as many as it has rows.
        graph_digest: of the float graph, for the provenance.
        progress: told how many examples are done.
        answers: given the feeds and outputs of every run, for whoever wants to know what the float graph says.
        resume: a file that keeps what was observed while it goes on; when it is there already and began with the
            same data, its examples are not run again. It is removed at the end.

    Raises:
        InputError: there is no example.
        UsageError: an example does not fit the input.
    """
    observation = _Observation(plan, session, graph_digest)
    state = _State(resume, observation)
    state.load()
    examples = _whole(session.inputs, batches) if at_once is None else _examples(session.inputs, batches, at_once)
    counted = counted or _num_rows
    with ThreadPoolExecutor(1) as observer:
        pending: Future[None] | None = None
        try:
            for feeds in examples:
                count = counted(feeds)
                if observation.skips(feeds, count):
                    continue
                outputs = session.run(feeds)
                answers(feeds, outputs)
                if pending is not None:
                    pending.result()
                    state.save()
                    progress(observation.count)
                pending = observer.submit(observation.observe, feeds, outputs, count)
        finally:
            if pending is not None:
                pending.result()
                state.save(last=True)
    progress(observation.count)
    if not observation.count:
        raise InputError("there is no example to calibrate with", hint="give at least one: a few dozen are usual")
    ranges = observation.ranges()
    state.remove()
    return ranges


def _examples(inputs: tuple[TensorInfo, ...], batches: Iterable[Batch], at_once: int) -> Iterator[dict[str, Array]]:
    """Feeds of at most ``at_once`` examples each."""
    require_arrays(batches)
    for batch in batches:
        if isinstance(batch, Mapping):
            named = dict(batch)
        elif len(inputs) == 1:
            named = {inputs[0].name: batch}
        else:
            raise UsageError(
                f"the graph takes {len(inputs)} inputs, and an array does not say for which it is",
                hint=f"give arrays by name: {', '.join(info.name for info in inputs)}",
            )
        known = {info.name: info for info in inputs}
        arrays = {name: _as_fed(np.asarray(array), known.get(name)) for name, array in named.items()}
        counts = {len(array) if array.ndim else 0 for array in arrays.values()}
        if len(counts) != 1:
            raise UsageError(
                "the arrays of one batch hold different numbers of examples",
                hint="the first dimension of each counts them",
            )
        for start in range(0, counts.pop(), at_once):
            yield {name: array[start : start + at_once] for name, array in arrays.items()}


def _whole(inputs: tuple[TensorInfo, ...], batches: Iterable[Batch]) -> Iterator[dict[str, Array]]:
    for batch in batches:
        yield dict(batch) if isinstance(batch, Mapping) else {inputs[0].name: batch}


def _num_rows(feeds: Mapping[str, Array]) -> int:
    return max(len(array) for array in feeds.values())


def _bytes(array: Array) -> bytes:
    """What an array holds; of encoded pictures, these."""
    if array.dtype.kind == "O":
        return b"".join(array.reshape(-1).tolist())
    return np.ascontiguousarray(array).tobytes()


def _as_fed(array: Array, info: TensorInfo | None) -> Array:
    """The array, in the precision of the input it is for; numbers in a row in its shape."""
    if info is None:
        return array
    dims = info.shape.dims or ()
    if array.ndim == 2 and len(dims) > 2 and array.shape[1] == prod(size or 0 for size in dims[1:]):
        array = array.reshape(len(array), *(size or 1 for size in dims[1:]))
    is_close = array.dtype.kind == "f" and info.dtype.numpy.kind == "f"
    return array.astype(info.dtype.numpy, copy=False) if is_close else array


class _Observation:
    """What has been seen so far."""

    def __init__(self, plan: Plan, session: Session, graph_digest: str) -> None:
        self.plan = plan
        self.count = 0
        self.resumed_count = 0
        self.graph_digest = graph_digest
        self.observers: dict[Edge, Observer] = {}
        for edge in plan.edges:
            # One observer sees all that shares a range.
            shared = next((self.observers[one] for one in plan.group_of(edge) if one in self.observers), None)
            self.observers[edge] = shared or create_observer(plan.scheme.observer, plan.activations[edge])
        self.guard = _Guard(plan)
        self.means = _Means() if plan.averaged else None
        self._given = {info.name for info in session.outputs}
        self._data = blake2b(digest_size=8)
        self._resumed_data = ""
        self._state: Path | None = None

    @property
    def data_digest(self) -> str:
        return self._data.hexdigest()

    def skips(self, feeds: Mapping[str, Array], count: int) -> bool:
        """Whether an earlier call has run this example already.

        Raises:
            InputError: the earlier call was fed something else.
        """
        if self.count >= self.resumed_count:
            return False
        self._note(feeds, count)
        if self.count >= self.resumed_count and self.data_digest != self._resumed_data:
            raise InputError(
                "the interrupted calibration was fed other data", hint=f"remove {self._state} to begin anew"
            )
        return True

    def go_on_after(self, count: int, data_digest: str, state: Path) -> None:
        self.resumed_count, self._resumed_data, self._state = count, data_digest, state

    def observe(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array], count: int) -> None:
        def values(edge: Edge) -> Array:
            name = str(edge)
            return outputs[name] if name in self._given else feeds[name]

        for edge, observer in self.observers.items():
            before = observer.num_nan, observer.num_infinite
            observer.observe(values(edge))
            self.guard.look(edge, values(edge), observer.num_nan - before[0], observer.num_infinite - before[1])
        for edge in self.plan.averaged:
            if self.means is not None:
                self.means.add(edge, values(edge))
        self._note(feeds, count)

    def _note(self, feeds: Mapping[str, Array], count: int) -> None:
        for name in sorted(feeds):
            self._data.update(name.encode() + _bytes(feeds[name]))
        self.count += count

    def ranges(self) -> Ranges:
        found = {id(observer): observer.range() for observer in self.observers.values()}
        by_edge: dict[Edge, Range] = {}
        for edge in self.plan.activations:
            seen = next(one for one in (edge, *self.plan.group_of(edge)) if one in self.observers)
            by_edge[edge] = found[id(self.observers[seen])]
        provenance = Provenance(self.graph_digest, self.data_digest, self.plan.scheme.digest, self.count)
        remarks = self.guard.remarks(self.observers)
        return Ranges(by_edge, provenance, remarks, {} if self.means is None else self.means.of_edges())


class _Guard:
    """Looks for numbers that no range serves: NaN, infinity, a single value, a channel that dwarfs the others."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.reach: dict[Edge, Array] = {}
        self.only: dict[Edge, float] = {}
        self.num_nan: Counter[Edge] = Counter()
        self.num_infinite: Counter[Edge] = Counter()
        self.looked: Counter[Edge] = Counter()

    def look(self, edge: Edge, values: Array, num_nan: int, num_infinite: int) -> None:
        self.num_nan[edge] += num_nan
        self.num_infinite[edge] += num_infinite
        self.looked[edge] += 1
        if self.looked[edge] == 1 or edge in self.only:
            self._look_for_one_value(edge, values)
        if self.looked[edge] > GUARDED or values.ndim < 2 or not values.size:
            return
        flat = values.reshape(-1, values.shape[-1])
        with np.errstate(invalid="ignore"):
            reach = np.maximum(np.abs(flat.max(0)), np.abs(flat.min(0)))
        self.reach[edge] = np.maximum(self.reach.get(edge, 0), reach)

    def _look_for_one_value(self, edge: Edge, values: Array) -> None:
        """Note the only value there ever was, which a range shared with other edges does not show."""
        flat = values.reshape(-1)
        if flat.size and flat[0] == self.only.get(edge, flat[0]) and (flat == flat[0]).all():
            self.only[edge] = float(flat[0])
        else:
            self.only.pop(edge, None)

    def remarks(self, observers: Mapping[Edge, Observer]) -> tuple[str, ...]:
        """Sentences; of what spreads from layer to layer only the first layer is told, and how many follow."""
        broken = [edge for edge in observers if self.num_nan[edge] + self.num_infinite[edge]]
        dwarfed = [text for edge in observers if (text := self._dwarfed(edge))]
        found = [f"{broken[0]}: {self._odd(broken[0])}{_followers(broken)}"] if broken else []
        found += [f"{dwarfed[0]}{_followers(dwarfed)}"] if dwarfed else []
        found += [
            f"{edge}: always {self.only[edge]:g}, so its range is dead"
            for edge in observers
            if edge in self.only and edge not in broken
        ]
        damaged = {name: why for name, why in self.plan.float_fallbacks.items() if NOT_FINITE in why}
        return (*found, *(f"{name}: {why}, so it stays float" for name, why in damaged.items()))

    def state(self) -> dict[str, Array]:
        """What has been seen, as arrays; `restore` takes them."""
        found: dict[str, Array] = {f"reach {edge}": reach for edge, reach in self.reach.items()}
        found |= {f"only {edge}": np.array(value) for edge, value in self.only.items()}
        seen = [(self.num_nan[edge], self.num_infinite[edge], self.looked[edge]) for edge in self.plan.edges]
        return {**found, "seen": np.array(seen, np.int64)}

    def restore(self, state: Mapping[str, Array]) -> None:
        for name, array in state.items():
            kind, _, where = name.partition(" ")
            if kind == "reach":
                self.reach[Edge.parse(where)] = array
            elif kind == "only":
                self.only[Edge.parse(where)] = float(array)
        for edge, counts in zip(self.plan.edges, state["seen"].tolist(), strict=True):
            self.num_nan[edge], self.num_infinite[edge], self.looked[edge] = counts

    def _odd(self, edge: Edge) -> str:
        nan, infinite = self.num_nan[edge], self.num_infinite[edge]
        return f"NaN in {nan} values" if nan else f"infinity in {infinite} values"

    def _dwarfed(self, edge: Edge) -> str:
        reach = self.reach.get(edge)
        alive = reach[np.isfinite(reach) & (reach > 0)] if reach is not None else np.zeros(0)
        if reach is None or alive.size < 3 or not np.isfinite(reach).all():
            return ""
        channel, times = int(reach.argmax()), float(reach.max() / np.median(alive))
        if times < DWARFING:
            return ""
        return f"{edge}: channel {channel} reaches {times:.0f} times as far as the middle one and takes its codes"


def _followers(affected: Sequence[object]) -> str:
    return f"; {len(affected) - 1} layers behind it, too" if len(affected) > 1 else ""


class _Means:
    """The mean of each channel, over a sample of positions."""

    def __init__(self) -> None:
        self.sums: dict[Edge, Array] = {}
        self.rows: dict[Edge, int] = {}

    def add(self, edge: Edge, values: Array) -> None:
        if values.ndim < 2:
            return
        rows = values.reshape(-1, values.shape[-1])
        # Neighbours are alike: a few hundred positions, others for each picture, say as much as all.
        step = max(len(rows) // MEAN_ROWS, 1)
        rows = rows[self.rows.get(edge, 0) % step :: step]
        self.sums[edge] = self.sums.get(edge, 0) + rows.sum(0, dtype=np.float64)
        self.rows[edge] = self.rows.get(edge, 0) + len(rows)

    def of_edges(self) -> dict[Edge, tuple[float, ...]]:
        return {edge: tuple((total / self.rows[edge]).tolist()) for edge, total in self.sums.items()}


class _State:
    """What was observed, on disk, so that an interrupted calibration goes on where it stopped."""

    def __init__(self, path: Path | None, observation: _Observation) -> None:
        self.path = path
        self.observation = observation
        self._saved = monotonic()

    @property
    def _key(self) -> str:
        seen = self.observation
        return f"{seen.graph_digest} {seen.plan.scheme.digest} {' '.join(map(str, seen.plan.edges))}"

    def load(self) -> None:
        """Take up what an earlier call saved; what belongs to another graph or scheme is not used."""
        if self.path is None or not self.path.exists():
            return
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                if str(stored["key"]) != self._key:
                    return
                arrays = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, KeyError, BadZipFile):
            return
        for number, observer in enumerate(self._observers()):
            prefix = f"{number}/"
            observer.restore({name[len(prefix) :]: one for name, one in arrays.items() if name.startswith(prefix)})
        guarded = {name.removeprefix("guard "): one for name, one in arrays.items() if name.startswith("guard ")}
        self.observation.guard.restore(guarded)
        if self.observation.means is not None:
            self._restore_means(arrays)
        self.observation.go_on_after(int(arrays["count"]), str(arrays["data"]), self.path)

    def _restore_means(self, arrays: Mapping[str, Array]) -> None:
        means = self.observation.means
        for name, array in arrays.items():
            if means is not None and name.startswith("mean "):
                edge = Edge.parse(name[5:])
                means.sums[edge], means.rows[edge] = array[:-1], int(array[-1])

    def save(self, *, last: bool = False) -> None:
        """Write the state, not more often than every few seconds."""
        if self.path is None or (not last and monotonic() - self._saved < SAVE_SECONDS):
            return
        self._saved = monotonic()
        observation = self.observation
        arrays: dict[str, Array] = {
            f"{number}/{name}": array
            for number, observer in enumerate(self._observers())
            for name, array in observer.state().items()
        }
        if observation.means is not None:
            for edge, total in observation.means.sums.items():
                arrays[f"mean {edge}"] = np.append(total, observation.means.rows[edge])
        arrays |= {f"guard {name}": array for name, array in observation.guard.state().items()}
        facts = {"key": self._key, "data": observation.data_digest, "count": observation.count}
        arrays.update({name: np.array(value) for name, value in facts.items()})
        write_whole(self.path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]

    def remove(self) -> None:
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)

    def _observers(self) -> list[Observer]:
        return list({id(observer): observer for observer in self.observation.observers.values()}.values())
