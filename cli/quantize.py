"""``quantkit quantize``: calibrate, convert to 8 bits, and say what came of it."""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from quantkit import formats
from quantkit.bench.candidate import Candidate, Settings
from quantkit.bench.comparison import Comparison
from quantkit.bench.machine import this_machine
from quantkit.bench.report import Benchmark
from quantkit.bench.rounds import Schedule, opening
from quantkit.classify.choices import choose_ends, choose_preprocessing, matching_card
from quantkit.classify.quality import Quality
from quantkit.data import KINDS, Data, find_data
from quantkit.dialects.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import CheckError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType
from quantkit.model.loading import MEANINGLESS, Model, load_model
from quantkit.ops.inference import UNKNOWN, infer_shapes
from quantkit.quantization import Plan, Ranges, Scheme, annotate, convert, prepare
from quantkit.quantization.calibrate import collect, memory_bound, open_observed
from quantkit.quantization.fallback import Fallback, search
from quantkit.quantization.fallback import Quality as Loss
from quantkit.quantization.ranges import graph_digest
from quantkit.quantization.scheme import TARGETS
from quantkit.quantization.verdict import EIGHT_BITS, FLOAT, census
from quantkit.recipe import parse
from quantkit.recipe import run as run_recipe
from quantkit.recipe.named import find_recipe
from quantkit.runtimes import open_session
from quantkit.runtimes.session import Engine, SessionOptions, TensorInfo
from quantkit.transforms.convert_precision import convert_precision
from quantkit.transforms.registry import find as find_transform
from quantkit.zoo import list_cards

from ._answers import KEPT_BYTES, Answers, Examples
from ._arguments import add_ends, add_normalization, add_offline, count, flags, seconds, share, whole
from ._render import counting, emit, log
from ._verdict import Verdict, cores

EXAMPLES = (
    "quantkit quantize digits -o digits.int8.onnx --calibration assets/digits_heldout.npz --target onnx",
    "quantkit quantize graph.pb -o fast.pb --calibration pictures/ --target tensorflow --save-ranges graph.ranges.json",
    "quantkit quantize digits -o digits.small.onnx --weights-only",
    "quantkit quantize graph.pb -o again.onnx --ranges graph.ranges.json --scheme scheme.toml",
)
# What makes 8 bits fast, each exact in float, applied behind the recipe that folds.
REWRITES = "pool_after_projection fold_pads fold_clamps"
# The engine that a target is for, and the threads that suit it there: many small ops gain from running side by side.
ENGINES = {"onnx": "openvino", "tensorflow": "tensorflow", "eightbit": "tensorflow", "litert": "litert"}
ENDINGS = {"onnx": (".onnx",), "tensorflow": (".pb", ".pbtxt"), "eightbit": (".pb", ".pbtxt"), "litert": (".tflite",)}
PICTURES = 100
# Enough to tell twice as fast from as fast; quantkit benchmark measures more closely.
RUNS, WARMUP = 12, 2


def add_arguments(parser: ArgumentParser) -> None:
    """What to quantize, with which data, into what, and how it is judged."""
    parser.add_argument("model", metavar="MODEL", help="model file, SavedModel folder, or name of a card")
    parser.add_argument("-o", "--output", required=True, help="file to write")
    parser.add_argument("--calibration", help=f"pictures: {KINDS}")
    parser.add_argument("--target", choices=sorted(TARGETS), help="form of the 8-bit graph (the scheme's, or onnx)")
    parser.add_argument("--scheme", help="TOML file: what becomes 8 bits, and how (what suits the target)")
    parser.add_argument(
        "--weights-only", action="store_true", help="store weights in 8 bits and compute in float; takes no pictures"
    )
    parser.add_argument(
        "--pixels",
        action="store_true",
        help="let the result take uint8 pixels: what prepares them goes into its layers",
    )
    parser.add_argument("--observer", help="how ranges are chosen, such as min_max or percentile(99.9) (the scheme's)")
    parser.add_argument("--half-range", action="store_true", help="7-bit weights, for processors without VNNI (auto)")
    parser.add_argument("--ranges", help="ranges of an earlier calibration, instead of --calibration")
    parser.add_argument("--save-ranges", help="file to write the ranges to")
    parser.add_argument("--plan", help="such a file, perhaps edited, instead of deciding anew; it holds its scheme")
    parser.add_argument("--save-plan", help="file to write to what becomes 8 bits, and why the rest does not")
    parser.add_argument("--limit", type=count, default=PICTURES, help=f"pictures to calibrate with ({PICTURES})")
    parser.add_argument(
        "--held-out", help="other pictures to compare with float on (those of --calibration; for --max-drop the next)"
    )
    parser.add_argument("--labels", help="what the numbers mean: a list, or a file of the 2015 pair (the model's own)")
    parser.add_argument(
        "--recipe", help="prepare the float graph with this recipe (the card's, or inference; rewrites)"
    )
    add_ends(parser)
    add_normalization(parser)
    parser.add_argument("--runtime", default="auto", help="engine that calibrates (the fastest that can)")
    parser.add_argument("--runs", type=whole, default=RUNS, help=f"timed calls for the speed-up; 0: none ({RUNS})")
    parser.add_argument(
        "--max-drop",
        type=share,
        help="keep layers in float until no more is lost than this part, e.g. 0.01: of top-1 where pictures have "
        "labels, else of the agreement with float",
    )
    parser.add_argument(
        "--fallback",
        choices=("float", "bfloat16"),
        default="float",
        help="what --max-drop keeps layers in: bfloat16 for --target tensorflow, where the processor has it (float)",
    )
    parser.add_argument("--time-budget", type=seconds, default=600.0, help="for --max-drop, as 90s or 10m (10m)")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Prepare, calibrate, convert, judge."""
    scheme = _scheme(args)
    output = Path(args.output).expanduser()
    if args.ranges and args.calibration:
        raise UsageError("--ranges and --calibration both say where ranges come from", hint="give one of them")
    formats.check_target(output)
    if output.suffix.lower() not in ENDINGS[scheme.target]:
        raise UsageError(
            f"{output.name} can not hold the target {scheme.target}",
            hint=f"name a file that ends in {' or '.join(ENDINGS[scheme.target])}",
        )
    if args.max_drop is not None and args.ranges and not args.held_out:
        raise UsageError("--max-drop needs pictures to measure the drop with", hint="give --held-out PICTURES")
    if args.fallback != "float" and scheme.target != "tensorflow":
        raise UsageError(
            f"--fallback {args.fallback} is for --target tensorflow",
            hint=f"engines of {scheme.target} files choose it as they load: quantkit benchmark --precision bfloat16",
        )
    _check_pictures(args, scheme)
    data, held_out = _pictures(args)
    model, graph = _float_graph(args, scheme)
    if model.has_random_weights:
        log(args, f"{model.name}: {MEANINGLESS}")
    plan = _plan(args, graph, scheme)
    answers = Answers()
    if scheme.weights_only:
        ranges = Ranges({})
    elif data is None:
        ranges = Ranges.load(Path(args.ranges).expanduser())
        for doubt in ranges.doubts(graph, scheme.digest):
            log(args, doubt)
    else:
        ranges = _calibrated(args, model, graph, plan, data, answers, output)
    if held_out is not None:
        answers = _answers(args, model, graph, held_out)
    found = None if args.max_drop is None else _fallback(args, graph, plan, ranges, answers, output)
    if found is not None:
        plan = annotate(graph, scheme.with_(keep_float=(*scheme.keep_float, *sorted(found.keep_float))))
    quantized = _converted(args, graph, plan, ranges, found.keep_float if found else frozenset())
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        # What has to be checked first is written elsewhere first: it opens while the check runs.
        file = Path(folder) / output.name if _is_checked(scheme) else output
        _write(quantized, file, scheme)
        with _opening(args, graph, file, scheme, Path(folder)) as finish:
            if file != output:
                _check(graph, plan, ranges, quantized)
                _write(quantized, output, scheme)
            verdict = Verdict(model.name, output, plan, ranges, census(graph, plan, ranges, quantized))
            verdict = replace(verdict, float_bytes=_num_bytes(graph), fallback=found, kept_in=args.fallback)
            verdict = _compared(graph, answers, verdict)
            verdict = _timed(finish, verdict)
    emit(args, "quantkit.quantize/1", verdict.to_json(), verdict.print)
    if found is not None and not found.is_reached:
        raise CheckError(
            f"the drop is {found.quality.drop:.4f}, and --max-drop is {args.max_drop:g}",
            hint="give --time-budget more, or quantize fewer layers with keep_float in a --scheme",
        )
    return 0


def _scheme(args: Namespace) -> Scheme:
    if args.plan:
        for flag in ("scheme", "observer", "half_range", "weights_only", "max_drop"):
            given = getattr(args, flag)
            if given is not None and given is not False:
                raise UsageError(
                    f"--{flag.replace('_', '-')} decides anew what --plan has decided",
                    hint="leave one out; what is to be 8 bits can be edited in the plan",
                )
        scheme = Plan.load(Path(args.plan).expanduser()).scheme
    elif args.scheme:
        scheme = Scheme.load(Path(args.scheme).expanduser())
    else:
        scheme = Scheme.for_target(args.target or "onnx")
    if args.target and args.target != scheme.target:
        given = args.plan or args.scheme
        raise UsageError(f"--target is {args.target}, and {given} is for {scheme.target}", hint="leave one out")
    if args.observer:
        scheme = scheme.with_(observer=args.observer)
    if args.weights_only:
        scheme = scheme.with_(weights_only=True)
    is_needed = not args.plan and not args.half_range and not scheme.weights_only and _saturates(scheme)
    if is_needed:
        log(args, "this processor adds products of codes in 16 bits: weights take 7 bits, which it can not overflow")
    return scheme.with_(weights=replace(scheme.weights, half_range=True)) if args.half_range or is_needed else scheme


def _plan(args: Namespace, graph: Graph, scheme: Scheme) -> Plan:
    """The plan of ``--plan``, or a new one; it goes to ``--save-plan``."""
    if args.plan:
        plan = Plan.load(Path(args.plan).expanduser())
        plan.require_nodes(graph)
        if plan.graph and plan.graph != graph_digest(graph):
            log(args, "the plan was made for another graph, which has nodes of the same names")
    else:
        plan = annotate(graph, scheme)
    if args.save_plan:
        replace(plan, graph=graph_digest(graph)).save(Path(args.save_plan).expanduser())
    return plan


def _check_pictures(args: Namespace, scheme: Scheme) -> None:
    """See that there is something to choose ranges by, where there are ranges to choose.

    Raises:
        UsageError: there is nothing, or there is something where nothing is needed.
    """
    if scheme.weights_only:
        for flag in ("calibration", "ranges", "save_ranges", "max_drop"):
            if getattr(args, flag) is not None:
                raise UsageError(
                    f"--{flag.replace('_', '-')} is about ranges, and weights alone have none",
                    hint="leave it out; --held-out PICTURES compares the answers with float",
                )
    elif not args.ranges and not args.calibration:
        raise UsageError(
            "there are no pictures to calibrate with",
            hint="give --calibration PICTURES, or --ranges FILE; --weights-only needs none",
        )


def _saturates(scheme: Scheme) -> bool:
    """Whether this processor adds pairs of u8 x s8 products in 16 bits, which full weights overflow."""
    isa = this_machine().isa
    has_dot_products = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"} & set(isa)
    return scheme.target in ("onnx", "tensorflow") and "avx2" in isa and not has_dot_products


def _float_graph(args: Namespace, scheme: Scheme) -> tuple[Model, Graph]:
    """The model, and its graph with all that is exact in float done already."""
    model = load_model(args.model, inputs=args.inputs, outputs=args.outputs, offline=args.offline)
    model = _recognized(args, model, as_tensorflow(model.rewritable))
    if args.recipe:
        recipe = find_recipe(args.recipe) if " " not in args.recipe and "(" not in args.recipe else parse(args.recipe)
    else:
        before = parse(model.card.recipe) if model.card is not None else find_recipe("inference")
        recipe = parse(f"{before} {REWRITES}")
    assert model.graph is not None
    graph, _ = run_recipe(recipe, model.graph)
    return model, prepare(_on_pixels(args, model, graph) if args.pixels else graph, scheme)


def _on_pixels(args: Namespace, model: Model, graph: Graph) -> Graph:
    """The graph with its preparation of pixels absorbed.

    Raises:
        UsageError: its inputs take no pictures, or nothing can absorb it.
    """
    if len(graph.inputs) != 1:
        raise UsageError(
            f"--pixels is for one input of pictures, and there are {len(graph.inputs)}", hint="leave it out"
        )
    source = TensorInfo(str(graph.inputs[0]), DType.FLOAT, infer_shapes(graph).get(graph.inputs[0], UNKNOWN))
    known = choose_preprocessing(source, model.card, flags(args))
    mean, std = (tuple(np.ravel(one).tolist()) for one in (known.mean, known.std))
    made = find_transform("absorb_preprocessing").outcome(graph, input_name=source.name, mean=mean, std=std)
    if not made.changes:
        raise UsageError(f"--pixels: {'; '.join(map(str, made.skips))}", hint="leave it out")
    return made.graph


def _recognized(args: Namespace, model: Model, graph: Graph) -> Model:
    """The model with the ends that pictures go through, and the card whose file or transformed form it is."""
    if not args.inputs and not args.outputs:
        with suppress(UsageError):  # it takes no pictures: its own ends are right
            graph = choose_ends(graph, model.card, list_cards())
    if len(graph.inputs) != 1 or not graph.outputs:
        return replace(model, graph=graph)
    shapes = infer_shapes(graph)
    source, result = (
        TensorInfo(str(edge), DType.FLOAT, shapes.get(edge, UNKNOWN)) for edge in (graph.inputs[0], graph.outputs[0])
    )
    return replace(model, graph=graph, card=model.card or matching_card(source, result, list_cards()))


def _pictures(args: Namespace) -> tuple[Data | None, Data | None]:
    """What is calibrated with, and what the result is judged on; None: ranges are given, the same pictures judge."""
    data = find_data(args.calibration, args.limit) if args.calibration else None
    if args.held_out:
        return data, find_data(args.held_out)
    if args.max_drop is None:
        return data, None
    try:
        return data, find_data(args.calibration, args.limit, skip=args.limit)
    except UsageError:
        return data, None  # calibration takes all there are


def _calibrated(
    args: Namespace, model: Model, graph: Graph, plan: Plan, data: Data, answers: Answers, output: Path
) -> Ranges:
    state = output.with_name(f"{output.name}.calibration")
    with open_observed(graph, plan, args.runtime) as session, counting(args, "calibrating") as shown:
        megabytes = (memory_bound(graph, plan, engine=session.runtime.name) + KEPT_BYTES) / 1e6
        log(args, f"calibrating with {len(data)} of {data.source}, in at most {megabytes:.0f} MB")
        examples = Examples.of(args, model, session, data)
        name = str(graph.outputs[0])

        def note(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
            answers.take(dict(feeds), outputs[name], examples.shown)

        ranges = collect(
            session,
            plan,
            examples,
            at_once=examples.at_once,
            graph_digest=graph_digest(graph),
            progress=lambda count: shown(count, len(data)),
            answers=note,
            resume=state,
        )
    _name_refused(args, examples)
    answers.source = f"{len(answers)} calibration pictures"
    if args.save_ranges:
        ranges.save(Path(args.save_ranges).expanduser())
    return ranges


def _answers(args: Namespace, model: Model, graph: Graph, data: Data) -> Answers:
    """What the float graph says to pictures that ranges were not chosen with."""
    answers = Answers()
    with open_session(graph, args.runtime) as session, counting(args, "comparing") as shown:
        examples = Examples.of(args, model, session, data)
        for done in answers.take_all(session, examples):
            shown(done, len(data))
    _name_refused(args, examples)
    answers.source = f"{len(answers)} {'' if args.held_out else 'more '}pictures of {data.source}"
    return answers


def _name_refused(args: Namespace, examples: Examples) -> None:
    for name, reason in examples.refused.items():
        log(args, f"left out {name}: {reason}")


def _converted(args: Namespace, graph: Graph, plan: Plan, ranges: Ranges, layers: frozenset[str]) -> Graph:
    """The 8-bit graph, some layers of which are left out, in the precision that ``--fallback`` says."""
    quantized = convert(graph, plan, ranges)
    if args.fallback == "float" or not layers:
        return quantized
    unit_of = annotate(graph, plan.scheme.with_(keep_float=())).unit_of
    half = {name for layer in layers if layer in unit_of for name in unit_of[layer].nodes} | layers
    keep = tuple(name for name, node in quantized.nodes.items() if name not in half and not node.is_constant)
    return convert_precision(quantized, to=args.fallback, weights_only=False, keep=keep)


def _is_checked(scheme: Scheme) -> bool:
    """Whether the graph is made of ops some of whose kernels are known to be broken on some hosts."""
    return scheme.target == "tensorflow" and not scheme.weights_only


def _check(graph: Graph, plan: Plan, ranges: Ranges, quantized: Graph) -> None:
    """See that this host computes the graph right."""
    from quantkit.quantization.targets.tensorflow_check import check_on_this_host

    try:
        check_on_this_host(graph, plan, ranges, quantized)
    except CheckError as error:
        if not ranges.remarks:
            raise
        raise CheckError(
            f"{error.message}; {ranges.remarks[0]}",
            hint=f"--max-drop keeps such layers in float, or {error.hint.removeprefix('keep it in float: ')}",
        ) from None


def _write(quantized: Graph, output: Path, scheme: Scheme) -> None:
    if scheme.target == "litert":
        from quantkit.runtimes.to_litert import save_litert

        save_litert(quantized, output, small_weights=scheme.weights_only)
    else:
        formats.save(quantized, output)


def _fallback(args: Namespace, graph: Graph, plan: Plan, ranges: Ranges, answers: Answers, output: Path) -> Fallback:
    """The layers that must stay float for the answers to stay within ``--max-drop``.

    Raises:
        CheckError: there is nothing to tell the drop by.
    """
    scheme = plan.scheme
    if not len(answers) or answers.are_broken:
        what = "holds NaN or infinity in every answer" if len(answers) else "has given no answers"
        raise CheckError(
            f"--max-drop {args.max_drop:g} can not be told: the float graph {what}",
            hint="; ".join(ranges.remarks) or "quantkit compare names the layer",
        )
    before = answers.top1
    by = "agreement with float" if before is None else f"top-1, in float {before}"
    log(args, f"the drop is that of {by}, on {answers.source}")
    facts = ranges.provenance
    key = blake2b(" ".join((facts.graph, facts.data, facts.scheme, answers.digest)).encode(), digest_size=8).hexdigest()
    state = output.with_name(f"{output.name}.{key}.fallback")

    def measured(layers: frozenset[str]) -> Loss:
        fewer = annotate(graph, scheme.with_(keep_float=(*scheme.keep_float, *sorted(layers))))
        with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
            file = Path(folder) / f"tried{output.suffix}"
            _write(_converted(args, graph, fewer, ranges, layers), file, scheme)
            return answers.loss(_quality(file, graph, scheme, answers)[0])

    suspects = {remark.partition(":")[0] for remark in ranges.remarks}
    likely = [unit.layer for unit in plan.units if suspects & {str(unit.output), str(unit.input)}]
    with counting(args, "searching") as shown:
        found = search(
            [unit.layer for unit in plan.units],
            measured,
            max_drop=args.max_drop,
            seconds=args.time_budget,
            likely=likely,
            state=state,
            progress=lambda what, share: shown(round(1000 * share), 1000),
        )
    if found.is_complete:
        state.unlink(missing_ok=True)
    return found


def _quality(file: Path, graph: Graph, scheme: Scheme, answers: Answers) -> tuple[Quality, Engine]:
    """Answers of a written graph beside those of the float graph, in the engine that the target is for."""
    target = scheme.target
    with open_session(_runnable(file, graph, target), ENGINES[target], _threads(scheme)) as session:
        return answers.quality(session), session.runtime


def _runnable(file: Path, graph: Graph, target: str) -> Graph | Path:
    """What the engine opens; a frozen graph's file does not keep its ends."""
    return file if target in ("onnx", "litert") else formats.load(file, graph.inputs, graph.outputs)


def _compared(graph: Graph, answers: Answers, verdict: Verdict) -> Verdict:
    """How near the answers are to those of the float graph."""
    if not len(answers) or len(graph.outputs) != 1:
        return verdict
    quality, engine = _quality(verdict.output, graph, verdict.plan.scheme, answers)
    return replace(verdict, quality=quality, float_top1=answers.top1, engine=engine, judged_on=answers.source)


@contextmanager
def _opening(
    args: Namespace, graph: Graph, file: Path, scheme: Scheme, folder: Path
) -> Iterator[Callable[[], Benchmark] | None]:
    """Lets both graphs open in processes of their own; gives what measures them, unless runs are 0."""
    if not args.runs:
        yield None
        return
    engine = ENGINES[scheme.target]
    source = folder / "float.pb"
    formats.save(graph, source)
    ends = (tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs)))
    inputs, outputs = (None, None) if scheme.target in ("onnx", "litert") else ends
    candidates = (
        Candidate(FLOAT, source, Settings(engine, inputs=ends[0], outputs=ends[1])),
        Candidate(EIGHT_BITS, file, Settings(engine, _threads(scheme), inputs=inputs, outputs=outputs)),
    )
    with opening(candidates, Schedule(args.runs, WARMUP, rounds=min(args.runs, 10))) as finish:
        yield finish


def _timed(finish: Callable[[], Benchmark] | None, verdict: Verdict) -> Verdict:
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


def _threads(scheme: Scheme) -> SessionOptions:
    return SessionOptions(intra_op=1, inter_op=cores()) if _is_checked(scheme) else SessionOptions()


def _num_bytes(graph: Graph) -> int:
    return sum(node.value.num_bytes for node in graph.nodes.values() if node.is_constant)
