"""An 8-bit file beside its float graph: how near its answers are, and how much faster it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from quantkit import formats
from quantkit.bench.candidate import Candidate, Settings
from quantkit.bench.comparison import Comparison
from quantkit.bench.report import Benchmark
from quantkit.bench.rounds import Schedule, opening
from quantkit.classify.quality import Quality
from quantkit.quantization.fidelity import Fidelity
from quantkit.quantization.verdict import EIGHT_BITS, FLOAT
from quantkit.runtimes import open_session
from quantkit.runtimes.session import Engine, SessionOptions

from ._answers import Answers
from ._conversion import Conversion
from ._verdict import Verdict, cores

# The engine that a target is for.
ENGINES = {"onnx": "openvino", "tensorflow": "tensorflow", "eightbit": "tensorflow", "litert": "litert"}
# Targets whose files keep their own inputs and outputs; a frozen graph's does not.
KEEP_ENDS = ("onnx", "litert")
WARMUP = 2
ROUNDS = 10


def quality_of(file: Path, conversion: Conversion, answers: Answers) -> tuple[Quality | Fidelity, Engine]:
    """Answers of a written graph beside those of the float graph, in the engine that the target is for.

    Raises:
        UnavailableError: the engine is not installed, or can not run it.
    """
    graph, target = conversion.graph, conversion.target
    model = file if target in KEEP_ENDS else formats.load(file, graph.inputs, graph.outputs)
    with open_session(model, ENGINES[target], _options(conversion)) as session:
        return answers.judged(session), session.runtime


def compared(verdict: Verdict, conversion: Conversion, answers: Answers) -> Verdict:
    """How near the answers are to those of the float graph."""
    if not len(answers):
        return verdict
    judged, engine = quality_of(verdict.output, conversion, answers)
    verdict = replace(verdict, engine=engine, judged_on=answers.source)
    if isinstance(judged, Fidelity):
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
    engine, source = ENGINES[conversion.target], folder / "float.pb"
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
    return replace(verdict, speed=speed, milliseconds=(before, after), engine=Engine(context.runtime, context.version))


def _options(conversion: Conversion) -> SessionOptions:
    """Threads that suit the graph: many small ops gain from running side by side."""
    return SessionOptions(intra_op=1, inter_op=cores()) if conversion.is_checked else SessionOptions()
