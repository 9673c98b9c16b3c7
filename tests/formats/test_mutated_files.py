"""Ten thousand mutated files of all formats: read or rejected with a message, within limits of time and memory.

Every run uses the same files; ``QUANTKIT_MUTATED_FILES_SEED=1 pytest tests/formats/test_mutated_files.py`` uses
other files.
"""

import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from conformance_cases import CASES
from mutations import BINARY, TEXT, Mutation, mutate_files, overwrite

from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.errors import QuantkitError
from quantkit.formats import graphdef, load, meta_graphs, onnx, tfrecord
from quantkit.formats.files import save_saved_model
from quantkit.formats.wire import header
from quantkit.ir.check import verify
from quantkit.ir.functions import Function, FunctionName, Library
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.validation import find_invalid_node
from quantkit.quantization.annotation import annotate
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.recipes.named import read_recipe
from quantkit.zoo.cards import model_files, read_card

COUNT = 10_000
SEED = int(os.environ.get("QUANTKIT_MUTATED_FILES_SEED", "0"))
# Limit of the time to read a file, ten times the usual maximum.
MAX_SECONDS = 10.0
# Memory of the objects of a small graph and of a deep stack of Python frames.
BASE_BYTES = 4 << 20
MAX_RATIO = 4


def looping_graph() -> Graph:
    """Return a graph with a function library, lists of all types, and a large lazy weight."""
    body = Graph.of(
        [
            Node("n", "_Arg", attrs={"T": DType.INT32, "index": 0}),
            constant("one", np.int32(1)),
            Node("sum", "AddV2", (Edge("n"), Edge("one")), attrs={"T": DType.INT32}),
        ],
        ["n"],
        ["sum"],
    )
    functions = {name: Function(name, body, {"sum": DType.INT32}) for name in ("body", "condition")}
    types = (DType.INT32,)
    attrs = {"T": types, "body": FunctionName("body"), "cond": FunctionName("condition"), "output_shapes": (Shape(()),)}
    weights = np.random.default_rng(SEED).standard_normal((16, 64)).astype(np.float32)
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.INT32, "shape": Shape((None, 3))}),
        constant("zero", np.int32(0)),
        constant("text", np.array([b"one", b"two"], object)),
        constant("weights", weights),
        Node("loop", "While", (Edge("zero"),), ("x",), attrs),
        Node("kinds", "NoOp", attrs={"f": (0.5, 2.0), "b": (True, False), "s": (b"a", b""), "t": (Tensor.of([1, 2]),)}),
    ]
    return Graph.of(nodes, ["x"], ["loop"], library=Library(functions))


@cache
def graphs() -> tuple[Graph, ...]:
    return (*(case.graph for case in CASES.values()), looping_graph())


def walk(graph: Graph) -> None:
    """Read the parts of a graph that commands use: nodes, functions, small values, order, invalid nodes."""
    with suppress(QuantkitError):
        verify(graph)
    find_invalid_node(graph)
    for name in graph.library:
        with suppress(QuantkitError):
            walk(graph.library[name].graph)
    for node in graph.nodes.values():
        for value in node.attrs.values():
            if isinstance(value, Tensor) and value.num_bytes <= 1 << 16:
                with suppress(QuantkitError):
                    _ = value.array


def read_model(path: Path) -> None:
    walk(load(path))


def read_saved_model(path: Path) -> None:
    for meta_graph in meta_graphs(path.parent):
        walk(meta_graph.read())


def read_records(path: Path) -> None:
    with suppress(QuantkitError):
        tfrecord.parse_example(path.read_bytes()[12:], "a record")
    for offset in tfrecord.record_offsets(path):
        tfrecord.parse_example(tfrecord.read_record(path, offset), "a record")


def read_model_card(path: Path) -> None:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    read_card(text, path.name)


def saved_models(folder: Path) -> list[bytes]:
    encoded = []
    for number, graph in enumerate(graphs()):
        with suppress(QuantkitError):
            save_saved_model(graph, folder / str(number))
            encoded.append((folder / str(number) / "saved_model.pb").read_bytes())
    return encoded


def onnx_models(folder: Path) -> list[bytes]:
    encoded = []
    for graph in graphs():
        with suppress(QuantkitError):
            encoded.append(onnx.encode(convert(graph)))
    return encoded


def _field(number: int, data: bytes) -> bytes:
    return header(number, len(data)) + data


def records(folder: Path) -> list[bytes]:
    values = _field(2, _field(1, _field(1, b"0123456789abc")))
    example = _field(1, _field(1, _field(1, b"image") + values))
    length = len(example).to_bytes(8, "little")
    checksums = [tfrecord.masked_checksum(part).to_bytes(4, "little") for part in (length, example)]
    return [(length + checksums[0] + example + checksums[1]) * 5]


def ranges(folder: Path) -> list[bytes]:
    graph = CASES["convolution"].graph
    plan = annotate(graph)
    calibrated = Ranges({edge: Range(-1.5, 2.0) for edge in plan.edges})
    return [calibrated.text.encode()]


def recipes(folder: Path) -> list[bytes]:
    return [
        b'inputs = ["Mul"]\noutputs = ["softmax"]\n\n[[step]]\ntransform = "remove_nodes"\nop = ["Identity"]\n'
        b'max_inputs = 1\n\n[[step]]\ntransform = "quantize_nodes"\ninput_min = -1.0\ninput_max = 1.0\n\n'
        b'[[step]]\ntransform = "fold_constants"\nignore_errors = true\n'
    ]


@dataclass(frozen=True)
class Kind:
    """Kind of file.

    Attributes:
        file: file name.
        read: function that reads a file.
        make: function that returns the contents of valid files; its argument is a temporary folder.
        mutations: mutations to choose from.
        fraction: fraction of all mutated files.
    """

    file: str
    read: Callable[[Path], object]
    make: Callable[[Path], Sequence[bytes]]
    mutations: Sequence[Mutation]
    fraction: float


KINDS = {
    "graphdef": Kind("g.pb", read_model, lambda folder: [*map(graphdef.encode, graphs())], BINARY, 0.4),
    "pbtxt": Kind(
        "g.pbtxt", read_model, lambda folder: [graphdef.encode_text(graph).encode() for graph in graphs()], TEXT, 0.15
    ),
    "onnx": Kind("g.onnx", read_model, onnx_models, BINARY, 0.2),
    "saved_model": Kind("saved_model.pb", read_saved_model, saved_models, BINARY, 0.1),
    "recipe": Kind("r.toml", read_recipe, recipes, TEXT, 0.04),
    "card": Kind(
        "c.toml",
        read_model_card,
        lambda folder: [(model_files() / "inception_v3.toml").read_bytes()],
        TEXT,
        0.03,
    ),
    "ranges": Kind("r.json", Ranges.load, ranges, TEXT, 0.03),
    "plan": Kind("p.json", Plan.load, lambda folder: [annotate(CASES["convolution"].graph).text.encode()], TEXT, 0.03),
    "records": Kind("r.tfrecord", read_records, records, BINARY, 0.02),
}


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not read in {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_fractions_sum_to_one() -> None:
    assert sum(kind.fraction for kind in KINDS.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", KINDS)
def test_mutated_file_is_read_or_rejected(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    valid_files = kind.make(tmp_path)
    path = tmp_path / kind.file
    path.write_bytes(valid_files[0])
    kind.read(path)  # imports and caches do not count
    for number, data in enumerate(mutate_files(valid_files, kind.mutations, round(kind.fraction * COUNT), SEED)):
        overwrite(path, data)
        _check(kind, path, len(data), f"file {number} of seed {SEED}")


def _check(kind: Kind, path: Path, num_bytes: int, label: str) -> None:
    tracemalloc.start()  # here, because a trace makes the mutations slow
    try:
        with alarm(MAX_SECONDS):
            kind.read(path)
    except QuantkitError:
        pass
    except Exception as error:
        raise AssertionError(f"{label}: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        used_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert used_bytes <= BASE_BYTES + MAX_RATIO * num_bytes, (
        f"{label}: {used_bytes:,} bytes for a file of {num_bytes:,}"
    )


def test_large_mutated_file_uses_at_most_four_times_its_size(tmp_path: Path) -> None:
    """Check without the base amount: weights stay in the file."""
    weights = constant("w", np.zeros((1024, 1024), np.float32))
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 1024))})
    graph = Graph.of([x, weights, Node("y", "MatMul", (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT})], ["x"], ["y"])
    path = tmp_path / "g.pb"
    tracemalloc.start()
    try:
        for data in mutate_files([graphdef.encode(graph)], BINARY, 40, SEED):
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(QuantkitError):
                read_model(path)
            assert tracemalloc.get_traced_memory()[1] - before <= MAX_RATIO * max(len(data), 1 << 16)
    finally:
        tracemalloc.stop()
