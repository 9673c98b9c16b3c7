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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NANOSECONDS = 1e-9
_PARALLELISM = "parallelism"


@dataclass(frozen=True)
class StageTime:
    """Core time of one stage.

    Attributes:
        name: name of the stage in tf.data, after its own rewrites.
        visits: elements of the stage for one element of the pipeline.
        seconds: core seconds for one element of the stage.
        parallelism: number of parallel calls; 1 for a sequential stage.
        bytes_per_element: size of an element of the stage.
        is_source: True if the stage has no input stage.
        thread: number of the thread that runs the stage; parallel stages have threads of their own.
    """

    name: str
    visits: float
    seconds: float
    parallelism: int
    bytes_per_element: float
    is_source: bool
    thread: int

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
    """Return the stages of a tf.data model, from the last one to the sources.

    Args:
        model: result of ``tf.data.experimental.get_model_proto``.
    """
    nodes: Mapping[int, Any] = model.nodes
    stages: list[StageTime] = []
    num_threads = 1
    stack = [(model.output, 1.0, 0)]
    while stack:
        number, visits, thread = stack.pop()
        node = nodes[number]
        own_thread = thread
        if _is_asynchronous(node):
            own_thread, num_threads = num_threads, num_threads + 2
        stages.append(_stage_time(node, visits, own_thread))
        below = own_thread + 1 if own_thread != thread else thread
        stack += [(child, visits * _elements_per_output(node, nodes[child]), below) for child in reversed(node.inputs)]
    return tuple(stages)


def _is_asynchronous(node: Any) -> bool:
    kinds = type(node).DESCRIPTOR.fields_by_name["node_class"].enum_type.values_by_number
    return "ASYNC" in kinds[node.node_class].name


def _stage_time(node: Any, visits: float, thread: int) -> StageTime:
    count = max(node.num_elements, 1)
    values = [parameter.value for parameter in node.parameters if parameter.name == _PARALLELISM]
    return StageTime(
        node.name,
        visits,
        node.processing_time * _NANOSECONDS / count,
        max(1, int(values[0])) if values else 1,
        node.bytes_produced / count,
        not node.inputs,
        thread,
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
