"""Plumber's model of a pipeline: the core time of each stage, and the rate that the cores allow.

From the time, the elements and the ratios that tf.data records for each stage i:

    w_i = V_i * c_i            core seconds per element of the pipeline
    V_i                        elements of the stage for one element of the pipeline
    c_i                        core seconds per element of the stage

The rate X of the pipeline satisfies:

    X * sum of w_i <= cores                            all stages
    X * sum of w_i <= 1                                stages that share one thread
    X * w_i        <= parallelism of the stage         parallel stages
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_NANOSECONDS = 1e-9
_PARALLELISM = "parallelism"
REPEAT = "ForeverRepeat"


@dataclass(frozen=True)
class StageTime:
    """Core time of one stage.

    Attributes:
        name: name of the stage in tf.data, after its own rewrites.
        visits: elements of the stage for one element of the pipeline.
        seconds: core seconds for one element of the stage.
        parallelism: number of parallel calls; 1 for a sequential stage.
        thread: number of the thread that runs the stage; parallel stages have threads of their own.
        bytes_per_element: size of an element of the stage.
    """

    name: str
    visits: float
    seconds: float
    parallelism: int
    thread: int
    bytes_per_element: float

    @property
    def core_seconds(self) -> float:
        """Core seconds for one element of the pipeline."""
        return self.visits * self.seconds

    @property
    def rate_per_core(self) -> float:
        """Elements of the pipeline per second, if one core runs only this stage."""
        return 1 / self.core_seconds if self.core_seconds else float("inf")

    def to_json(self) -> dict[str, Any]:
        has_time = self.core_seconds > 0
        return {
            "stage": self.name,
            "core_milliseconds": self.core_seconds * 1e3,
            "visits": self.visits,
            "parallelism": self.parallelism,
            "rate_per_core": self.rate_per_core if has_time else None,
            "bytes_per_element": self.bytes_per_element,
        }


def read_model(model: Any) -> tuple[StageTime, ...]:
    """Return the stages of a repeated dataset from its tf.data model, from the last one to the sources.

    Args:
        model: result of ``tf.data.experimental.get_model_proto``.
    """
    nodes: Mapping[int, Any] = model.nodes
    stages: list[StageTime] = []
    num_threads = 1
    stack = [(number, 1.0, 0) for number in _first_stage(model)]
    while stack:
        number, visits, thread = stack.pop()
        node = nodes[number]
        own_thread = thread
        if "ASYNC" in _kind_of(node):
            own_thread, num_threads = num_threads, num_threads + 2
        inputs, inner = _split_inputs(node)
        stages.append(_stage_time(node, visits, own_thread, _time_below(nodes, inner)))
        below = own_thread + 1 if own_thread != thread else thread
        stack += [(child, visits * _elements_per_output(node, nodes[child]), below) for child in reversed(inputs)]
    return tuple(stages)


def _first_stage(model: Any) -> list[int]:
    """Return the last stage of the dataset that is repeated: tf.data adds a root, and often a prefetch."""
    number = model.output
    while model.nodes[number].name != REPEAT:
        number = model.nodes[number].inputs[0]
    return list(model.nodes[number].inputs)


def model_extent(model: Any) -> tuple[int, int]:
    """Return the number of stages of a model, and of the elements of all stages, of the present epoch.

    Each epoch counts from 0. A stage is missing before its first element and after its last one. Sources are not
    counted: a shuffle ends them long before the epoch ends.
    """
    stack, num_stages, num_elements = _first_stage(model), 0, 0
    while stack:
        node = model.nodes[stack.pop()]
        num_stages += bool(node.inputs) or node.ratio != 0
        num_elements += node.num_elements
        stack += _split_inputs(node)[0]
    return num_stages, num_elements


def _split_inputs(node: Any) -> tuple[list[int], list[int]]:
    """Return the input stages, and the present inner datasets that an interleave has after its source."""
    inputs = list(node.inputs)
    return (inputs[:1], inputs[1:]) if "INTERLEAVE" in _kind_of(node) else (inputs, [])


def _kind_of(node: Any) -> str:
    kinds = type(node).DESCRIPTOR.fields_by_name["node_class"].enum_type.values_by_number
    return str(kinds[node.node_class].name)


def _time_below(nodes: Mapping[int, Any], numbers: Iterable[int]) -> int:
    """Return the processing time of stages and their inputs in nanoseconds."""
    return sum(nodes[number].processing_time + _time_below(nodes, nodes[number].inputs) for number in numbers)


def _stage_time(node: Any, visits: float, thread: int, inner_time: int) -> StageTime:
    count = max(node.num_elements, 1)
    values = [parameter.value for parameter in node.parameters if parameter.name == _PARALLELISM]
    return StageTime(
        node.name,
        visits,
        (node.processing_time + inner_time) * _NANOSECONDS / count,
        max(1, int(values[0])) if values else 1,
        thread,
        node.bytes_produced / count,
    )


def _elements_per_output(node: Any, child: Any) -> float:
    """Return the number of elements of an input stage for one element of a stage.

    Counts include elements in buffers; a ratio of tf.data does not.
    """
    return float(node.ratio) or child.num_elements / max(node.num_elements, 1)


@dataclass(frozen=True)
class RateLimit:
    """Upper limit of the rate of a pipeline.

    Attributes:
        elements_per_second: the limit.
        cause: name of the stage or resource that sets the limit.
    """

    elements_per_second: float
    cause: str


def configured_limit(stages: tuple[StageTime, ...], cores: int) -> RateLimit:
    """Return the limit of the pipeline with its present threads, and the stage that sets the limit."""
    by_thread: dict[int, list[StageTime]] = {}
    for stage in stages:
        by_thread.setdefault(stage.thread, []).append(stage)
    limits = [cores_limit(stages, cores)]
    for members in by_thread.values():
        seconds = sum(stage.core_seconds / stage.parallelism for stage in members)
        if seconds:
            slowest = max(members, key=lambda stage: stage.core_seconds / stage.parallelism)
            limits.append(RateLimit(1 / seconds, slowest.name))
    return min(limits, key=lambda limit: limit.elements_per_second)


def cores_limit(stages: tuple[StageTime, ...], cores: int) -> RateLimit:
    """Return the limit of all cores together, if every stage could be parallel."""
    seconds = sum(stage.core_seconds for stage in stages)
    return RateLimit(cores / seconds if seconds else float("inf"), f"{cores} cores")
