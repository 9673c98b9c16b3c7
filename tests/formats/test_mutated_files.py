"""Ten thousand broken files of every kind that is read: an answer or a sentence, soon, and in little memory.

They are the same in every run; ``QUANTKIT_MUTATED_FILES_SEED=1 pytest tests/formats/test_mutated_files.py`` takes
others.
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
from mutations import BINARY, TEXT, Mutation, mutated

from quantkit.convert import convert
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
from quantkit.quantization.ranges import Ranges
from quantkit.recipes.named import read_recipe
from quantkit.zoo.cards import model_files, read_card

COUNT = 10_000
SEED = int(os.environ.get("QUANTKIT_MUTATED_FILES_SEED", "0"))
# No file here takes a tenth of this to read; one that takes longer hangs.
MOST_SECONDS = 10.0
# What the objects of the smallest graph take, and a stack of Python frames as deep as it may get.
FLOOR_BYTES = 4 << 20
MOST_TIMES = 4


def looping_graph() -> Graph:
    """A graph with a function library, lists of all kinds, and a weight that stays in the file."""
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
    """Look at all that a command looks at first: nodes, functions, small values, order, faults."""
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
    for one in meta_graphs(path.parent):
        walk(one.read())


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
    made = []
    for number, graph in enumerate(graphs()):
        with suppress(QuantkitError):
            save_saved_model(graph, folder / str(number))
            made.append((folder / str(number) / "saved_model.pb").read_bytes())
    return made


def onnx_models(folder: Path) -> list[bytes]:
    made = []
    for graph in graphs():
        with suppress(QuantkitError):
            made.append(onnx.encode(convert(graph)))
    return made


def _field(number: int, data: bytes) -> bytes:
    return header(number, len(data)) + data


def records(folder: Path) -> list[bytes]:
    values = _field(2, _field(1, _field(1, b"0123456789abc")))
    example = _field(1, _field(1, _field(1, b"image") + values))
    length = len(example).to_bytes(8, "little")
    checksums = [tfrecord.masked_checksum(one).to_bytes(4, "little") for one in (length, example)]
    return [(length + checksums[0] + example + checksums[1]) * 5]


def ranges(folder: Path) -> list[bytes]:
    graph = CASES["convolution"].graph
    plan = annotate(graph)
    found = Ranges({str(edge): (-1.5, 2.0) for edge in plan.edges})
    return [found.text.encode()]


def recipes(folder: Path) -> list[bytes]:
    return [
        b'inputs = ["Mul"]\noutputs = ["softmax"]\n\n[[step]]\ntransform = "remove_nodes"\nop = ["Identity"]\n'
        b'max_inputs = 1\n\n[[step]]\ntransform = "quantize_nodes"\ninput_min = -1.0\ninput_max = 1.0\n\n'
        b'[[step]]\ntransform = "fold_constants"\nignore_errors = true\n'
    ]


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is function_names, read and made, and its share of all files."""

    file: str
    read: Callable[[Path], object]
    good: Callable[[Path], Sequence[bytes]]
    mutations: Sequence[Mutation]
    share: float


KINDS = {
    "graphdef": Kind("g.pb", read_model, lambda folder: [*map(graphdef.encode, graphs())], BINARY, 0.4),
    "pbtxt": Kind(
        "g.pbtxt", read_model, lambda folder: [graphdef.encode_text(one).encode() for one in graphs()], TEXT, 0.15
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


def test_shares_are_of_all() -> None:
    assert sum(kind.share for kind in KINDS.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", KINDS)
def test_a_broken_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    good = kind.good(tmp_path)
    path = tmp_path / kind.file
    path.write_bytes(good[0])
    kind.read(path)  # what is imported, and kept for ever, is no file's fault
    tracemalloc.start()
    try:
        for number, data in enumerate(mutated(good, kind.mutations, round(kind.share * COUNT), SEED)):
            path.write_bytes(data)
            _check(kind, path, len(data), f"file {number} of seed {SEED}")
    finally:
        tracemalloc.stop()


def _check(kind: Kind, path: Path, num_bytes: int, which: str) -> None:
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        with alarm(MOST_SECONDS):
            kind.read(path)
    except QuantkitError:
        pass
    except Exception as error:
        raise AssertionError(f"{which}: {type(error).__name__}: {str(error)[:300]}") from error
    taken = tracemalloc.get_traced_memory()[1] - before
    assert taken <= FLOOR_BYTES + MOST_TIMES * num_bytes, f"{which}: {taken:,} bytes for a file of {num_bytes:,}"


def test_a_large_broken_file_takes_no_more_than_four_times_its_size(tmp_path: Path) -> None:
    """Without a floor: weights stay in the file, broken or not."""
    weights = constant("w", np.zeros((1024, 1024), np.float32))
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 1024))})
    graph = Graph.of([x, weights, Node("y", "MatMul", (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT})], ["x"], ["y"])
    path = tmp_path / "g.pb"
    tracemalloc.start()
    try:
        for data in mutated([graphdef.encode(graph)], BINARY, 40, SEED):
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(QuantkitError):
                read_model(path)
            assert tracemalloc.get_traced_memory()[1] - before <= MOST_TIMES * max(len(data), 1 << 16)
    finally:
        tracemalloc.stop()
