"""Flags that several commands share, and the functions that parse their values."""

import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable
from math import isfinite
from typing import Any

from quantkit.arguments import keywords_of, parse_duration, parse_percentage
from quantkit.errors import UsageError
from quantkit.limits import Limits


def options_of(function: Callable[..., Any], args: Namespace, *omitted: str) -> dict[str, Any]:
    """Return the flags that are keyword arguments of a library function with the same name, with their values.

    Args:
        function: function, or class of values.
        args: parsed arguments of the command.
        omitted: names of keyword arguments that the command gives itself.
    """
    names = set(keywords_of(function)) - {*omitted}
    return {name: value for name, value in vars(args).items() if name in names}


def add_model_flags(parser: ArgumentParser, parse_endpoints: Callable[[str], object] | None = None) -> None:
    """Add the flags of every command that takes a MODEL: how it is loaded, plugins and libraries of custom ops.

    Args:
        parser: parser of the command.
        parse_endpoints: parser of the values of ``--inputs`` and ``--outputs``; None: `parse_names`.
    """
    flags = parser.add_argument_group("model")
    add_endpoints(flags, parse_endpoints)
    add_saved_model(flags)
    flags.add_argument(
        "--checkpoint", metavar="PREFIX", help="checkpoint with the variables of a GraphDef that is not frozen"
    )
    add_random_weights(flags)
    add_offline(flags)
    add_limits(flags)
    add_plugin(flags)
    flags.add_argument(
        "--custom-op-library",
        action="append",
        metavar="FILE",
        help="register this shared library of custom ops in ONNX Runtime; may be repeated",
    )


def add_endpoints(parser: _ActionsContainer, parse_endpoints: Callable[[str], object] | None = None) -> None:
    """Add ``--inputs`` and ``--outputs``."""
    for name in ("input", "output"):
        parser.add_argument(
            f"--{name}s",
            type=parse_endpoints or parse_names,
            metavar="NAMES",
            help=f"comma-separated {name} names (default: from the model card, else inferred)",
        )


def add_saved_model(parser: _ActionsContainer) -> None:
    """Add the flags that select a graph and a signature of a SavedModel."""
    parser.add_argument("--signature", help="signature of a SavedModel (default: serving_default)")
    parser.add_argument("--tags", type=parse_names, help="comma-separated tags of a SavedModel graph (default: serve)")


def add_random_weights(parser: _ActionsContainer) -> None:
    """Add ``--random-weights``."""
    parser.add_argument(
        "--random-weights", action="store_true", help="build the architecture of a model card with random weights"
    )


def add_offline(parser: _ActionsContainer) -> None:
    """Add ``--offline``."""
    parser.add_argument("--offline", action="store_true", help="never download; fail if the model is not cached")


def add_limits(parser: _ActionsContainer) -> None:
    """Add the limits of the work that a file can cause; `limits` applies them."""
    default = Limits()
    parser.add_argument(
        "--max-nodes",
        type=parse_positive,
        metavar="N",
        help=f"maximum number of nodes after function calls are inlined (default: {default.max_nodes:,})",
    )
    parser.add_argument(
        "--max-constant-bytes",
        type=parse_positive,
        metavar="BYTES",
        help=f"maximum size of a computed tensor and of all folded constants (default: {default.max_constant_bytes:,})",
    )


def add_plugin(parser: _ActionsContainer) -> None:
    """Add ``--plugin``; the files are run before the command, which gets ``args.plugin_transforms``."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="load extra transforms and Keras objects from this Python file; may be repeated",
    )
    parser.set_defaults(plugin_transforms=[])


def add_output_flags(parser: ArgumentParser) -> None:
    """Add the flags of every command: form and amount of the output."""
    flags = parser.add_argument_group("output")
    flags.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    flags.add_argument("-q", "--quiet", action="store_true", help="print neither progress nor messages")
    flags.add_argument("-v", "--verbose", action="store_true", help="print more details")
    flags.add_argument("--debug", action="store_true", default=SUPPRESS, help="print the traceback of an error")


def add_threads(parser: ArgumentParser) -> None:
    """Add the thread counts of a runtime."""
    parser.add_argument(
        "--intra-op", type=parse_positive, help="number of threads within one op (default: the runtime's choice)"
    )
    parser.add_argument(
        "--inter-op", type=parse_positive, help="number of ops that run in parallel (default: the runtime's choice)"
    )


def add_isa(parser: ArgumentParser) -> None:
    """Add the instruction set of oneDNN."""
    from quantkit.runtimes.runtime import ISAS

    parser.add_argument(
        "--isa",
        choices=tuple(ISAS),
        help="limit OpenVINO and TensorFlow to the kernels of this instruction set (default: all of the processor)",
    )


def add_precision(parser: ArgumentParser, subject: str = "") -> None:
    """Add the arithmetic of a runtime.

    Args:
        parser: parser of the command.
        subject: model that the flag applies to, with a leading space; empty if it applies to all.
    """
    from quantkit.runtimes.session import PRECISIONS

    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help=f"lowest precision that the runtime may compute in{subject} (default: float32)",
    )


def add_size(parser: ArgumentParser) -> None:
    """Add the size that images are resized to."""
    for side in ("width", "height"):
        parser.add_argument(
            f"--input-{side}",
            type=_parse_size,
            help=f"{side} of the resized images in pixels (default: from the model)",
        )


def add_normalization(parser: ArgumentParser) -> None:
    """Add the order of the channels and the normalization (pixels - mean) / std."""
    from quantkit.data.preprocessing import COLOR_ORDERS

    source = "(default: from the file, else from the model card, else from a scaling layer, else 128)"
    parser.add_argument(
        "--input-color-order",
        choices=COLOR_ORDERS,
        help="order of the channels of the input (default: from the file, else rgb)",
    )
    parser.add_argument(
        "--input-mean",
        type=_parse_numbers,
        help=f"value subtracted from the pixels, or one per channel such as 123.68,116.78,103.94 {source}",
    )
    parser.add_argument(
        "--input-std",
        type=_parse_divisors,
        help=f"value the pixels are then divided by, or one per channel {source}",
    )


def add_classifier_flags(parser: ArgumentParser) -> None:
    """Add labels, endpoints and preprocessing of an image classifier, with label_image's flag names."""
    parser.add_argument(
        "--labels",
        help="label file: one label per line, or the 2015 label map (default: the model's own)",
    )
    parser.add_argument(
        "--input-layer", default="", help="input name (default: from the model card, else the image input)"
    )
    parser.add_argument("--output-layer", default="", help="name of the class scores (default: from the model card)")
    add_size(parser)
    add_normalization(parser)


def add_dataset(parser: ArgumentParser) -> None:
    """Add the dataset of a model, the number of samples, and the runtime."""
    from quantkit.data import DATA_KINDS
    from quantkit.evaluation.accuracy import BATCH

    parser.add_argument("--data", required=True, help=f"dataset: {DATA_KINDS}")
    parser.add_argument("--limit", type=parse_positive, help="maximum number of samples, a fixed subset (default: all)")
    parser.add_argument(
        "--batch",
        type=parse_positive,
        default=BATCH,
        help=f"samples per run for models with a dynamic batch (default: {BATCH})",
    )
    parser.add_argument(
        "--runtime", default="auto", help="runtime for models without @RUNTIME (default: the fastest installed one)"
    )


def add_boolean(parser: ArgumentParser, name: str, text: str, *, default: bool = False) -> None:
    """Add a flag in TensorFlow's three spellings: ``--name``, ``--name=true`` and ``--name=false``."""
    parser.add_argument(
        name, nargs="?", const=True, default=default, type=parse_boolean, metavar="true|false", help=text
    )


def add_input_shape(parser: _ActionsContainer) -> None:
    """Add ``--input-shape``."""
    parser.add_argument(
        "--input-shape",
        type=_parse_shape,
        action="append",
        dest="input_shapes",
        metavar="NAME:SIZES",
        help="sizes of an input with dynamic dimensions, for example x:1x3x640x640; may be repeated",
    )


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse an input name and its sizes."""
    name, _, sizes = text.rpartition(":")
    if not name or not all(size.isdecimal() and int(size) for size in sizes.split("x")):
        raise ArgumentTypeError(f"{text!r} is not an input with its sizes, such as x:1x3x640x640")
    return name, tuple(map(int, sizes.split("x")))


def parse_names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_precisions(text: str) -> tuple[str, ...]:
    """Parse comma-separated members of `PRECISIONS`."""
    from quantkit.runtimes.session import PRECISIONS

    precisions = parse_names(text)
    for precision in precisions:
        if precision not in PRECISIONS:
            raise ArgumentTypeError(f"{precision!r} is not a precision: use {', '.join(PRECISIONS)}")
    if not precisions:
        raise ArgumentTypeError(f"name a precision: {', '.join(PRECISIONS)}")
    return precisions


def parse_boolean(text: str) -> bool:
    """Parse ``true``, ``false``, ``1`` or ``0``."""
    if text.lower() not in ("true", "false", "1", "0"):
        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


def parse_natural(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _parse_size(text: str) -> int | None:
    """Parse a size in pixels; 0 counts as absent, as in label_image."""
    return parse_natural(text) or None


def parse_positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def parse_fraction(text: str) -> float:
    """Parse a fraction in [0, 1]."""
    if not re.fullmatch(r"0?\.\d+|0|1(\.0*)?", text):
        raise ArgumentTypeError(f"{text!r} is not a fraction such as 0.985")
    return float(text)


def parse_number(text: str) -> float:
    """Parse a finite number."""
    try:
        if isfinite(number := float(text)):
            return number
    except ValueError:
        pass
    raise ArgumentTypeError(f"{text!r} is not a finite number")


def parse_ratio(text: str) -> float:
    """Parse a ratio of at least 0."""
    if not re.fullmatch(r"(\d+(\.\d*)?|\.\d+)(e-?\d+)?", text):
        raise ArgumentTypeError(f"{text!r} is not a ratio such as 1.5")
    return float(text)


def parse_interval_width(text: str) -> float:
    """Parse a fraction between 0 and 1, or a percentage such as ``2%``."""
    try:
        return parse_percentage(text, "the width")
    except UsageError as error:
        raise ArgumentTypeError(error.message) from None


def parse_seconds(text: str) -> float:
    """Parse a positive time such as ``90s``, ``10m`` or ``1h``; a plain number counts seconds."""
    try:
        return parse_duration(text)
    except UsageError:
        raise ArgumentTypeError(f"{text!r} is not a time such as 90s or 10m, up to 8760h") from None


def _parse_numbers(text: str) -> float | tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(isfinite, numbers)):
        raise ArgumentTypeError(f"{text!r} is neither a number nor a list of numbers such as 123.68,116.78,103.94")
    return numbers if len(numbers) > 1 else numbers[0]


def _parse_divisors(text: str) -> float | tuple[float, ...]:
    numbers = _parse_numbers(text)
    if 0 in (numbers if isinstance(numbers, tuple) else (numbers,)):
        raise ArgumentTypeError(f"{text!r} is not a number to divide by")
    return numbers
