"""Pictures for ``quantkit quantize``: ranges are chosen with some, and the result is judged on these or on others."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from quantkit.data import Data, find_data
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.quantization import Plan, Ranges
from quantkit.quantization.calibration import collect, memory_bound, open_observed
from quantkit.quantization.ranges import graph_digest
from quantkit.runtimes import open_session

from ._answers import KEPT_BYTES, Answers, Examples
from ._arguments import describe_assumption
from ._render import counting, log


def chosen_pictures(args: Namespace) -> tuple[Data | None, Data | None]:
    """What is calibrated with, and what the result is judged on; None: ranges are given, the same pictures judge.

    Raises:
        InputError: the data does not exist, or can not be read.
    """
    data = find_data(args.calibration, args.limit) if args.calibration else None
    if args.held_out:
        return data, find_data(args.held_out)
    if args.max_drop is None:
        return data, None
    try:
        return data, find_data(args.calibration, args.limit, skip=args.limit)
    except UsageError:
        return data, None  # calibration takes all there are


def chosen_ranges(
    args: Namespace, model: Model, graph: Graph, plan: Plan, data: Data | None, output: Path
) -> tuple[Ranges, Answers]:
    """The ranges of the plan's edges, and what the float graph answered where it was run for them.

    Raises:
        InputError: the ranges can not be read, or are those of another graph; no picture can be read.
        UsageError: the pictures do not fit the graph.
    """
    if plan.scheme.weights_only:
        return Ranges({}), Answers()
    if data is not None:
        return _calibrated(args, model, graph, plan, data, output.with_name(f"{output.name}.calibration"))
    ranges = Ranges.load(Path(args.ranges).expanduser())
    ranges.require_graph(graph)
    for doubt in ranges.doubts(plan.scheme.digest):
        log(args, doubt)
    return ranges, Answers()


def _calibrated(
    args: Namespace, model: Model, graph: Graph, plan: Plan, data: Data, state: Path
) -> tuple[Ranges, Answers]:
    answers = Answers()
    with open_observed(graph, plan, args.runtime) as session, counting(args, "calibrating") as shown:
        megabytes = (memory_bound(graph, plan, engine=session.runtime.name) + KEPT_BYTES) / 1e6
        log(args, f"calibrating with {len(data)} of {data.source}, in at most {megabytes:.0f} MB")
        if state.exists():
            log(args, f"going on from what {state} keeps of an interrupted calibration")
        examples = Examples.of(args, model, session, data)
        if examples.preparation.is_assumed:
            log(args, describe_assumption(examples.preparation))
        names = dict.fromkeys(map(str, graph.outputs))

        def note(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
            answers.take(examples, dict(feeds), {name: outputs[name] for name in names})

        try:
            ranges = collect(
                session,
                plan,
                examples,
                at_once=None,
                counted=lambda feeds: len(examples.shown),
                graph_digest=graph_digest(graph),
                progress=lambda count: shown(count, len(data)),
                answers=note,
                resume=state,
            )
        except KeyboardInterrupt:
            if state.exists():
                log(args, f"{state} keeps what was observed: the same command goes on from there")
            raise
    _name_refused(args, examples)
    answers.source = _judges(answers, len(data) - len(examples.refused), examples.noun)
    if args.save_ranges:
        ranges.save(Path(args.save_ranges).expanduser())
    return ranges, answers


def _judges(answers: Answers, total: int, noun: str) -> str:
    """Which of the calibration pictures judge the result, and why not all."""
    if len(answers) == total:
        return f"{total} calibration {noun}"
    # Of an interrupted calibration what was observed is kept, not what was answered.
    why = f"as many as {KEPT_BYTES >> 20} MB hold" if answers.is_full else "those after the interruption"
    return f"{len(answers)} of the {total} calibration {noun} ({why})"


def float_answers(args: Namespace, model: Model, graph: Graph, data: Data) -> Answers:
    """What the float graph says to pictures that ranges were not chosen with."""
    answers = Answers()
    with open_session(graph, args.runtime) as session, counting(args, "comparing") as shown:
        examples = Examples.of(args, model, session, data)
        if examples.preparation.is_assumed and not args.calibration:
            log(args, describe_assumption(examples.preparation))
        for done in answers.take_all(session, examples):
            shown(done, len(data))
    _name_refused(args, examples)
    answers.source = f"{len(answers)} {'' if args.held_out else 'more '}{examples.noun} of {data.source}"
    return answers


def _name_refused(args: Namespace, examples: Examples) -> None:
    for name, reason in examples.refused.items():
        log(args, f"left out {name}: {reason}")
