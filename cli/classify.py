"""``quantkit classify``: say what is on pictures."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from quantkit.data.choices import choose_ends, choose_labels, choose_preprocessing, matching_card, needs_tensorflow
from quantkit.data.images import Found, find_pictures
from quantkit.data.labels import Order, read_labels
from quantkit.errors import InputError, UnavailableError, UsageError
from quantkit.evaluation.classifier import Classifier, Prediction, Refused
from quantkit.ir.graph import Graph
from quantkit.model import RANDOM_WEIGHTS_NOTE, Model
from quantkit.runtimes import open_session
from quantkit.runtimes.session import Session
from quantkit.zoo import ModelCard, list_cards

from ._arguments import (
    add_classifier_flags,
    add_offline,
    add_precision,
    add_random_weights,
    add_threads,
    describe_assumption,
    parse_positive,
    preprocessing_flags,
    session_options,
)
from ._loading import named_model
from ._render import emit, log

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = (
    "quantkit classify assets --model digits --top 3",
    "quantkit classify panda.jpg holiday_photos/ --json",
    "quantkit classify --image=panda.jpg --graph=graph.pb --labels=labels.txt --input_layer=Mul --output_layer=softmax",
    "quantkit classify panda.jpg --input-layer DecodeJpeg/contents --runtime tensorflow",
)
DEFAULT_MODEL = "inception_v3"
BAR_CELLS = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Our flags, and those of the classic label_image."""
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="JPEG, PNG, BMP, GIF or WebP file, or a folder")
    parser.add_argument("--model", help=f"model file, SavedModel folder, or name of a card ({DEFAULT_MODEL})")
    parser.add_argument("--runtime", default="auto", help="engine: auto takes the fastest that runs the model here")
    parser.add_argument("--top", type=parse_positive, default=5, help="how many classes to show for each picture (5)")
    parser.add_argument("--image", action="append", default=[], help="a picture, as label_image has it")
    parser.add_argument("--graph", help="the same as --model, as label_image has it")
    parser.add_argument("--classic", action="store_true", help="print what the original label_image printed")
    add_classifier_flags(parser)
    add_threads(parser)
    add_precision(parser)
    add_random_weights(parser)
    add_offline(parser)


def run(args: Namespace) -> int:
    """Find pictures, open the model, and answer for each."""
    answered(args)
    return 0


def answered(args: Namespace) -> list[Prediction | Refused]:
    """The same; the answers that were printed.

    Raises:
        InputError: pictures can not be read; the others are answered all the same.
    """
    found = _pictures(args)
    model = _model(args)
    runnable = model.runnable
    runtime = args.runtime
    if isinstance(runnable, Graph):
        runnable = choose_ends(runnable, model.card, list_cards(), args.input_layer, args.output_layer)
        if needs_tensorflow(runnable):
            runtime = _tensorflow(args)
    start = perf_counter()
    with open_session(runnable, runtime, session_options(args)) as session:
        opened_seconds = perf_counter() - start
        classifier, card = _classifier(args, model, session)
        _remarks(args, found, model, classifier, card)
        answers = classifier.classify(found.paths)
        done: list[Prediction | Refused] = []
        stopped = _all_of(answers, done) if args.json else None
        emit(
            args,
            "quantkit.evaluation/1",
            _document(model, classifier, found, done, opened_seconds),
            lambda console: done.extend(
                _print_classic(console, answers)
                if args.classic
                else _print(console, answers, model, session, opened_seconds)
            ),
        )
    if stopped:
        raise stopped
    _raise_refused([one for one in done if isinstance(one, Refused)], len(done))
    return done


def _all_of(answers: Iterator[Prediction | Refused], done: list[Prediction | Refused]) -> KeyboardInterrupt | None:
    """Collect the answers; Ctrl-C ends that, and those that are there are kept."""
    try:
        done.extend(answers)
    except KeyboardInterrupt as stopped:
        return stopped
    return None


def _pictures(args: Namespace) -> Found:
    sources = [*args.pictures, *args.image]
    if not sources:
        raise UsageError("no picture was named", hint="quantkit classify PICTURE..., or --image PICTURE")
    return find_pictures(str(Path(source).expanduser()) if "://" not in source else source for source in sources)


def _model(args: Namespace) -> Model:
    if args.model and args.graph:
        raise UsageError("--model and --graph name two models", hint="give one of them")
    word = args.model or args.graph or DEFAULT_MODEL
    return named_model(args, word, random_weights=args.random_weights)


def _tensorflow(args: Namespace) -> str:
    if args.runtime not in ("auto", "tensorflow"):
        raise UnavailableError(
            f"{args.input_layer} takes encoded pictures, which only TensorFlow decodes inside a graph; "
            f"{args.runtime} can not",
            hint="use --runtime tensorflow, or leave out --input-layer: quantkit then decodes the pictures",
        )
    return "tensorflow"


def _classifier(args: Namespace, model: Model, session: Session) -> tuple[Classifier, ModelCard | None]:
    source, result = session.inputs[0], session.outputs[0]
    card = model.card or matching_card(source, result, list_cards())
    labels = read_labels(Path(args.labels).expanduser()) if args.labels else choose_labels(card, model.path, result)
    order = Order(card.labels.order) if card else None
    return Classifier(
        session, choose_preprocessing(source, card, preprocessing_flags(args)), labels, order=order, top=args.top
    ), card


def _remarks(args: Namespace, found: Found, model: Model, classifier: Classifier, card: ModelCard | None) -> None:
    """What the user should know before the answers, on stderr."""
    if found.skipped:
        files = "1 file that is no picture" if found.skipped == 1 else f"{found.skipped} files that are no pictures"
        log(args, f"skipped {files}")
    if model.has_random_weights:
        log(args, f"{model.name}: {RANDOM_WEIGHTS_NOTE}")
    if not classifier.labels.are_known:
        owner = card.labels.card or card.name if card else ""
        cure = f"quantkit models fetch {owner} brings them" if owner else "give --labels FILE"
        log(args, f"no labels are here for this model, so class numbers are shown; {cure}")
    if classifier.normalizes and card is None and (args.input_mean is None or args.input_std is None):
        log(args, describe_assumption(classifier.preprocessing))
    if args.verbose:
        log(args, f"preprocessing: {classifier.preprocessing}; labels: {classifier.labels.source or 'none'}")
        for skipped in classifier.session.skipped:
            log(args, f"passed over {skipped}")


def _print(
    console: "Console",
    answers: Iterator[Prediction | Refused],
    model: Model,
    session: Session,
    opened_seconds: float,
) -> Iterator[Prediction | Refused]:
    """Print each answer as it comes, and a line on the whole at the end."""
    predictions: list[Prediction] = []
    for answer in answers:
        if isinstance(answer, Prediction):
            predictions.append(answer)
            _print_prediction(console, answer)
        yield answer
    if not predictions:
        return
    stages = (median(stage) for stage in zip(*(one.seconds for one in predictions), strict=True))
    times = ", ".join(f"{name} {_ms(s)}" for name, s in zip(("decode", "preprocess", "run"), stages, strict=True))
    many = f"{len(predictions)} pictures, medians" if len(predictions) > 1 else "1 picture, the engine's first run"
    console.print(f"{model.name} in {session.runtime}, opened in {opened_seconds:.2f} s; {many}: {times}", markup=False)
    if not all(one.are_probabilities for one in predictions):
        console.print(
            f"The numbers of {session.outputs[0].name!r} do not sum to one: they are scores, not probabilities.",
            markup=False,
        )
    if model.has_random_weights:
        console.print(RANDOM_WEIGHTS_NOTE, markup=False)


def _print_classic(console: "Console", answers: Iterator[Prediction | Refused]) -> Iterator[Prediction | Refused]:
    for answer in answers:
        for score in answer.scores if isinstance(answer, Prediction) else ():
            console.print(f"{score.words} ({score.id}): {score.probability:g}", markup=False)
        yield answer


def _print_prediction(console: "Console", prediction: Prediction) -> None:
    from rich.text import Text

    console.print(Text(str(prediction.path), "bold"), Text(_ms(prediction.seconds.total), "dim"))
    full = "█" if "utf" in console.encoding.lower() else "#"
    for score in prediction.scores:
        if prediction.are_probabilities:
            cells = round(min(max(score.probability, 0.0), 1.0) * BAR_CELLS)
            number = f"{score.probability:8.2%}  {full * cells:<{BAR_CELLS}}"
        else:
            number = f"{score.probability:12.4f}"
        # Two classes may have the same words, so the number is always there.
        number_of_class = "" if score.words.split()[-1:] == [str(score.id)] else f" ({score.id})"
        console.print(Text(number, "cyan") + Text(f"  {score.words}", "default") + Text(number_of_class, "dim"))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _document(
    model: Model,
    classifier: Classifier,
    found: Found,
    answers: Iterable[Prediction | Refused],
    opened_seconds: float,
) -> dict[str, Any]:
    session, labels, said = classifier.session, classifier.labels, classifier.preprocessing
    return {
        "model": model.name,
        "random_weights": model.has_random_weights,
        "runtime": {"name": session.runtime.name, "version": session.runtime.version},
        "opened_seconds": opened_seconds,
        "input": session.inputs[0].name,
        "output": session.outputs[0].name,
        "preprocessing": {
            "height": said.height,
            "width": said.width,
            "channels": said.channels,
            "mean": said.mean,
            "std": said.std,
            "resize": said.resize,
            "crop": said.crop,
        },
        "labels": {"source": labels.source, "order": labels.order.value, "are_known": labels.are_known},
        "skipped_files": found.skipped,
        "pictures": [_picture(one) for one in answers if isinstance(one, Prediction)],
        "refused": [
            {"path": str(one.path), "message": one.error.message} for one in answers if isinstance(one, Refused)
        ],
    }


def _picture(prediction: Prediction) -> dict[str, Any]:
    return {
        "path": str(prediction.path),
        "seconds": prediction.seconds._asdict(),
        "are_probabilities": prediction.are_probabilities,
        "scores": [
            {"id": score.id, "wordnet": score.wordnet or None, "words": score.words, "probability": score.probability}
            for score in prediction.scores
        ],
    }


def _raise_refused(refused: list[Refused], num_pictures: int) -> None:
    """End with the exit code of broken input when a picture could not be read."""
    if len(refused) == 1:
        raise refused[0].error
    if refused:
        names = ", ".join(str(one.path) for one in refused[:5]) + (", ..." if len(refused) > 5 else "")
        raise InputError(
            f"{len(refused)} of {num_pictures} pictures can not be read: {names}", hint=refused[0].error.message
        )
