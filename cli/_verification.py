"""Flags of ``--verify``, and the check that they describe."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from functools import partial

import numpy as np

from quantkit.data import Data, find_data
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.recipes.outputs import TOLERANCE
from quantkit.recipes.trace import SKIP, STOP
from quantkit.recipes.verify import Verifier
from quantkit.runtimes import AUTO, find_runtime, open_session
from quantkit.runtimes.session import TensorInfo

# Samples of --data that are run where a graph takes any number of them.
ROWS = 8


def add_verification(parser: ArgumentParser) -> None:
    """Whether answers are compared, on what, how closely, and what follows."""
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run inputs before and after each transform; stop where answers change",
    )
    parser.add_argument(
        "--on-mismatch",
        choices=(STOP, SKIP),
        help="where answers change: stop with exit code 1 and write nothing, or skip (undo) that step (stop)",
    )
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        help=f"largest change of an output by an exact transform, as a part of its largest number ({TOLERANCE:g})",
    )
    parser.add_argument("--data", help="pictures or arrays (.npz by input name, .npy) to verify with (seeded numbers)")
    parser.add_argument("--runtime", help="engine that --verify runs (tensorflow where installed, else reference)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs that --verify runs (0)")


def verifier(args: Namespace, model: Model, graph: Graph) -> Verifier | None:
    """The check that the flags ask for; a flag that only it heeds asks for it, too.

    Args:
        args: of the command.
        model: whose card says how pictures are fed.
        graph: of it, the one that is transformed.

    Raises:
        UsageError: a misspelled engine.
        InputError: the data can not be read.
    """
    if not (args.verify or args.on_mismatch or args.tolerance is not None or args.data):
        return None
    # The engine the graph was made for; the others would compare their own converters, too.
    runtime = args.runtime or _natural(graph)
    if runtime != AUTO:
        find_runtime(runtime)  # a misspelled one is refused before any work
    tolerance = TOLERANCE if args.tolerance is None else args.tolerance
    feeder = partial(_fed, model, find_data(args.data, ROWS)) if args.data else None
    return Verifier(lambda graph: open_session(graph, runtime), args.seed, tolerance, feeder)


def _natural(graph: Graph) -> str:
    if graph.dialect == "onnx":
        return AUTO
    return "tensorflow" if find_runtime("tensorflow").available().ok else "reference"


def _fed(model: Model, data: Data, infos: tuple[TensorInfo, ...]) -> Mapping[str, Array]:
    """The first samples of the data, as many as the inputs take at once."""
    named = {info.name: _rows(data, info, info.name) for info in infos if info.name in data.arrays}
    if named:
        return named
    if len(infos) != 1 or len(data.arrays) > 1:
        raise UsageError(
            f"{data.source} does not say which input it is for",
            hint=f"write an .npz with an array for each of {', '.join(info.name for info in infos)}",
        )
    (info,) = infos
    dims = info.shape.dims
    is_exact = [array.dtype == info.dtype.numpy and dims and array.ndim == len(dims) for array in data.arrays.values()]
    if any(is_exact) or (data.arrays and dims is not None and len(dims) not in (3, 4)):
        return {info.name: _rows(data, info, next(iter(data.arrays)))}
    return {info.name: _pictures(model, data, info)}


def _rows(data: Data, info: TensorInfo, name: str) -> Array:
    rows = data.rows(name, data.samples[: _num_rows(info)])
    return rows.astype(info.dtype.numpy, copy=False)


def _pictures(model: Model, data: Data, info: TensorInfo) -> Array:
    from quantkit.data.preparation import Preparation, prepared_samples

    preparation = Preparation.of([info], data, model.card)
    refused: dict[str, str] = {}
    samples = data.samples[: _num_rows(info)]
    fed = [preparation.feeds([one])[info.name] for _, (one,) in prepared_samples(data, samples, [preparation], refused)]
    if not fed:
        raise UsageError(f"no picture of {data.source} can be read", hint=next(iter(refused.values()), ""))
    return np.concatenate(fed) if len(fed) > 1 else fed[0]


def _num_rows(info: TensorInfo) -> int:
    dims = info.shape.dims
    return (dims[0] or ROWS) if dims else 1


def _tolerance(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise ArgumentTypeError(f"{text!r} is not a part of one such as 1e-5")
    return number
