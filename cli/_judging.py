"""An 8-bit file beside its float graph: how near its answers are, and how much faster it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from quantkit import formats
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.comparison import Comparison
from quantkit.benchmark.report import Benchmark
from quantkit.benchmark.rounds import Schedule, opening
from quantkit.errors import GraphError, InputError, UnavailableError
from quantkit.evaluation.classification_metrics import ClassificationMetrics
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.quantization.census import EIGHT_BITS, FLOAT
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.session import RuntimeVersion, SessionOptions

from ._answers import Answers
from ._conversion import Conversion
from ._verdict import Verdict, cores

# The engines that a target is for, the fastest first.
ENGINES = {
    "onnx": ("openvino", "onnxruntime"),
    "tensorflow": ("tensorflow",),
    "eightbit": ("tensorflow",),
    "litert": ("litert",),
}
# Targets whose files keep their own inputs and outputs; a frozen graph's does not.
KEEP_ENDS = ("onnx", "litert")
WARMUP = 2
ROUNDS = 10


class Judgement(NamedTuple):
    """What came of running an 8-bit graph.

    Attributes:
        quality: its answers beside those of the float graph.
        engine: that gave them.
        refusals: why engines before this one could not.
    """

    quality: ClassificationMetrics | OutputSqnr
    engine: RuntimeVersion
    refusals: tuple[str, ...] = ()


def quality_of(file: Path, conversion: Conversion, answers: Answers) -> Judgement:
    """Answers of a written graph beside those of the float graph, in the first engine of its target that can run it.

    Raises:
        UnavailableError, GraphError, InputError: none can.
    """
    graph, target = conversion.graph, conversion.target
    model = file if target in KEEP_ENDS else formats.load(file, graph.inputs, graph.outputs)
    refusals: list[UnavailableError | GraphError | InputError] = []
    for name in _engines(target):
        try:
            with open_session(model, name, _options(conversion)) as session:
                return Judgement(answers.judged(session), session.runtime, tuple(one.message for one in refusals))
        except (UnavailableError, GraphError, InputError) as error:
            refusals.append(error)
    raise refusals[0]


def _engines(target: str) -> tuple[str, ...]:
    """Those of a target that are here, or else all, each of which says why it is not."""
    return tuple(name for name in ENGINES[target] if find_runtime(name).available().ok) or ENGINES[target]


def compared(verdict: Verdict, conversion: Conversion, answers: Answers) -> Verdict:
    """How near the answers are to those of the float graph."""
    if not len(answers):
        return verdict
    try:
        judged, engine, refusals = quality_of(verdict.output, conversion, answers)
    except (UnavailableError, GraphError, InputError) as error:
        return replace(verdict, refusals=(error.message,))
    verdict = replace(verdict, engine=engine, judged_on=answers.source, refusals=refusals)
    if isinstance(judged, OutputSqnr):
        return replace(verdict, fidelity=judged)
    return replace(verdict, quality=judged, float_top1=answers.top1)


@contextmanager
def racing(conversion: Conversion, file: Path, num_runs: int, folder: Path) -> Iterator[Callable[[], Benchmark] | None]:
    """Lets both graphs open in processes of their own; gives what measures them, unless there are no runs.

    Args:
        conversion: knows the float graph.
        file: the 8-bit graph.
        num_runs: timed calls of each.
        folder: for the float graph, while it races.
    """
    if not num_runs:
        yield None
        return
    engine, source = _engines(conversion.target)[0], folder / "float.pb"
    formats.save(conversion.graph, source)
    inputs, outputs = (tuple(map(str, ends)) for ends in (conversion.graph.inputs, conversion.graph.outputs))
    before = Settings(engine, inputs=inputs, outputs=outputs)
    after = Settings(engine, _options(conversion))
    if conversion.target not in KEEP_ENDS:
        after = replace(after, inputs=inputs, outputs=outputs)
    candidates = (Candidate(FLOAT, source, before), Candidate(EIGHT_BITS, file, after))
    with opening(candidates, Schedule(num_runs, WARMUP, rounds=min(num_runs, ROUNDS))) as finish:
        yield finish


def timed(verdict: Verdict, finish: Callable[[], Benchmark] | None) -> Verdict:
    """The speed-up over the float graph in the same engine, each with the threads that suit it."""
    if finish is None:
        return replace(verdict, unmeasured="--runs is 0")
    made = finish()
    if made.failures:
        return replace(verdict, unmeasured=made.failures[0].reason)
    speed = made.comparisons[1]
    if not isinstance(speed, Comparison):
        return replace(verdict, unmeasured=speed.message if speed else "nothing to compare with")
    before, after = (one.summary.median * 1e3 for one in made.measurements)
    context = made.measurements[1].context
    return replace(
        verdict, speed=speed, milliseconds=(before, after), engine=RuntimeVersion(context.runtime, context.version)
    )


def _options(conversion: Conversion) -> SessionOptions:
    """Threads that suit the graph: many small ops gain from running side by side."""
    return SessionOptions(intra_op=1, inter_op=cores()) if conversion.is_checked else SessionOptions()
