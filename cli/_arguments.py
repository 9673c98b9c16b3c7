"""Arguments that several commands take, and what makes values of their words."""

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from quantkit.data.choices import Flags
from quantkit.runtimes.session import PRECISIONS, SessionOptions

_SECONDS_IN = {"": 1, "s": 1, "m": 60, "h": 3600}


def add_offline(parser: ArgumentParser) -> None:
    """Whether models are fetched."""
    parser.add_argument("--offline", action="store_true", help="never fetch a model")


def add_random_weights(parser: ArgumentParser) -> None:
    """Architectures without their parameters."""
    parser.add_argument(
        "--random-weights", action="store_true", help="build a card's architecture with random parameters"
    )


def add_saved_model(parser: ArgumentParser) -> None:
    """Which graph of a SavedModel, and which of its uses."""
    parser.add_argument("--signature", help="of a SavedModel: what gives inputs and outputs (serving_default)")
    parser.add_argument("--tags", type=names, help="of a SavedModel: which of its graphs, as serve,gpu (serve)")


def add_ends(parser: ArgumentParser) -> None:
    """What is fed and what is asked for, as tuples."""
    parser.add_argument("--inputs", type=names, help="names of what is fed, separated by commas (the card's, or found)")
    parser.add_argument(
        "--outputs", type=names, help="names of what is asked for, separated by commas (the card's, or found)"
    )


def add_threads(parser: ArgumentParser) -> None:
    """Threads of an engine; `options` reads them."""
    parser.add_argument("--intra-op", type=count, help="threads inside one operation (the engine's default)")
    parser.add_argument("--inter-op", type=count, help="operations run side by side (the engine's default)")


def add_precision(parser: ArgumentParser, whose: str = "") -> None:
    """Arithmetic of an engine; `options` reads it."""
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help=f"arithmetic the engine may use{whose} (float32)"
    )


def add_size(parser: ArgumentParser) -> None:
    """What pictures are resized to; `flags` reads it."""
    parser.add_argument("--input-width", type=whole, help="pixels of the resized picture (the graph's)")
    parser.add_argument("--input-height", type=whole, help="pixels of the resized picture (the graph's)")


def add_normalization(parser: ArgumentParser) -> None:
    """What is done to pixels; `flags` reads it."""
    parser.add_argument("--input-mean", type=float, help="subtracted from the pixels (the card's, or 128)")
    parser.add_argument("--input-std", type=_divisor, help="what they are then divided by (the card's, or 128)")


def add_pictures_layers(parser: ArgumentParser) -> None:
    """What a classifier is fed, what it answers, and what the answers mean, as the classic label_image has it."""
    parser.add_argument("--labels", help="what the numbers mean: a list, or a file of the 2015 pair (the model's own)")
    parser.add_argument("--input-layer", default="", help="what to feed (the card's, or what takes pictures)")
    parser.add_argument("--output-layer", default="", help="what gives a number for each class (the card's)")
    add_size(parser)
    add_normalization(parser)


def add_truth(parser: ArgumentParser, name: str, what: str, *, default: bool = False) -> None:
    """A flag as the old tools have them: ``--name``, ``--name=true`` or ``--name=false``."""
    parser.add_argument(name, nargs="?", const=True, default=default, type=truth, metavar="true|false", help=what)


def assumed(preprocessing: object) -> str:
    """What to say where nobody said how pixels are normalised."""
    return f"no card knows this model: {preprocessing} is assumed (--input-mean, --input-std)"


def flags(args: Namespace) -> Flags:
    """What the command line says of the preprocessing; label_image takes a size of 0 as not given."""
    height, width = (getattr(args, name, None) or None for name in ("input_height", "input_width"))
    return Flags(height, width, args.input_mean, args.input_std)


def options(args: Namespace) -> SessionOptions:
    """What `add_threads` and `add_precision` read."""
    return SessionOptions(args.intra_op, args.inter_op, precision=args.precision)


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def precisions(text: str) -> tuple[str, ...]:
    """Words of `PRECISIONS` between commas."""
    found = names(text)
    for word in found:
        if word not in PRECISIONS:
            raise ArgumentTypeError(f"{word!r} is not a precision: use {', '.join(PRECISIONS)}")
    if not found:
        raise ArgumentTypeError(f"name a precision: {', '.join(PRECISIONS)}")
    return found


def truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


def whole(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def share(text: str) -> float:
    """A part of one."""
    if not re.fullmatch(r"0?\.\d+|0|1(\.0*)?", text):
        raise ArgumentTypeError(f"{text!r} is not a part of one such as 0.985")
    return float(text)


def ratio(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
        raise ArgumentTypeError(f"{text!r} is not a ratio such as 1.5")
    return float(text)


def seconds(text: str) -> float:
    """A time with its unit: seconds, minutes or hours."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or float(found[1]) == 0:
        raise ArgumentTypeError(f"{text!r} is not a time such as 90s or 10m")
    return float(found[1]) * _SECONDS_IN[found[2]]


def _divisor(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number == 0:
        raise ArgumentTypeError(f"{text!r} is not a number to divide by")
    return number
