"""Formats of the fuzzer: valid files, mutations, and the commands that read a file."""

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from conformance_cases import CASES
from mutations import BINARY, TEXT
from PIL import Image
from records import example, write_records

from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.errors import QuantkitError
from quantkit.formats import graphdef, onnx
from quantkit.formats.files import save_saved_model
from quantkit.formats.graphdef.schema import message_class as graphdef_message
from quantkit.formats.onnx.values import message_class as onnx_message
from quantkit.ir.functions import Function, FunctionName, Library
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization.annotation import annotate
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.workflow import quantize

from . import structured
from .structured import Mutation

# Placeholders of a command line: the mutated file, the folder of outputs, the folder of valid files.
FILE, OUT, VALID = "{file}", "{out}", "{valid}"

MODEL_COMMANDS = (
    f"summarize {FILE}",
    f"summarize {FILE} --json",
    f"transform {FILE} -o {OUT}/a.pb --recipe inference",
    f"transform {FILE} -o {OUT}/a.onnx --recipe inference",
    f"transform {FILE} -o {OUT}/a.onnx",
    f"transform {FILE} -o {OUT}/a.pb --recipe inference --verify --runtime reference",
    f"transform {FILE} -o {OUT}/a.pbtxt --recipe inference --explain --trace {OUT}/t.html",
    f"quantize {FILE} -o {OUT}/a.onnx --weights-only --runs 0",
    f"quantize {FILE} -o {OUT}/a.pb --weights-only --runs 0 --target tensorflow",
    f"quantize {FILE} -o {OUT}/a.onnx --calibration {VALID}/x.npz --runs 0 --runtime reference",
    f"compare {FILE} {FILE} --structure",
    f"compare {FILE} {VALID}/dense.pb --runtime reference",
    f"evaluate {FILE}@reference --data {VALID}/x.npz --outputs softmax",
)
GRAPHDEF_COMMANDS = (
    *MODEL_COMMANDS,
    f"summarize_graph --in_graph={FILE}",
    f"transform_graph --in_graph={FILE} --out_graph={OUT}/a.pb --inputs=x --outputs=y "
    "--transforms='strip_unused_nodes fold_constants(ignore_errors=true) fold_batch_norms quantize_weights'",
    f"transform --classic --in_graph={FILE} --out_graph={OUT}/a.pb --inputs=x --outputs=y "
    "--transforms='fold_constants quantize_nodes sort_by_execution_order'",
    f"compare_graphs {FILE} {VALID}/dense.pb",
)
DATA_COMMANDS = (
    f"evaluate {VALID}/dense.pb@reference --data {FILE} --outputs softmax",
    f"compare {VALID}/dense.pb {VALID}/dense.pb --runtime reference --data {FILE} --limit 2",
    f"transform {VALID}/dense.pb -o {OUT}/a.pb --recipe inference --runtime reference --data {FILE}",
    f"quantize {VALID}/dense.pb -o {OUT}/a.onnx --calibration {FILE} --limit 2 --runs 0 --runtime reference",
)
IMAGE_COMMANDS = (
    f"classify {FILE} --model digits --runtime reference",
    f"evaluate digits@reference --data {FILE}",
    f"quantize digits -o {OUT}/a.onnx --calibration {FILE} --runs 0 --runtime reference",
)


@dataclass(frozen=True)
class Format:
    """Format of the fuzzer.

    Attributes:
        file: name of the mutated file.
        make: returns the contents of valid files.
        mutations: mutations to choose from.
        commands: command lines that read the file; one is chosen for each mutant.
        weight: relative number of mutants.
        argument: argument of the commands, if it is not the file; relative to its folder.
        companions: unchanged files in the folder of the mutated one.
    """

    file: str
    make: Callable[[], Sequence[bytes]]
    mutations: Sequence[Mutation]
    commands: Sequence[str]
    weight: float = 1.0
    argument: str = ""
    companions: Callable[[], dict[str, bytes]] = dict


def placeholder(*dims: int | None) -> Node:
    return Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(dims)})


def _folding_graph() -> Graph:
    """Return a graph with constants that are computed from sizes."""
    types = {"T": DType.FLOAT}
    nodes = [
        placeholder(1, 4),
        constant("size", np.array([1, 4], np.int32)),
        constant("one", np.float32(1)),
        Node("fill", "Fill", (Edge("size"), Edge("one")), attrs={**types, "index_type": DType.INT32}),
        constant("multiples", np.array([1, 1], np.int32)),
        Node("tile", "Tile", (Edge("fill"), Edge("multiples")), attrs={**types, "Tmultiples": DType.INT32}),
        constant("pads", np.array([[0, 0], [0, 0]], np.int32)),
        Node("pad", "Pad", (Edge("tile"), Edge("pads")), attrs={**types, "Tpaddings": DType.INT32}),
        constant("shape", np.array([-1, 4], np.int32)),
        Node("flat", "Reshape", (Edge("pad"), Edge("shape")), attrs={**types, "Tshape": DType.INT32}),
        Node("y", "AddV2", (Edge("x"), Edge("flat")), attrs=types),
        Node("softmax", "Softmax", (Edge("y"),), attrs=types),
    ]
    return Graph.of(nodes, ["x"], ["softmax"])


def _calling_graph() -> Graph:
    """Return a graph with a call and a loop."""
    types = {"T": DType.FLOAT}
    body = Graph.of(
        [Node("a", "_Arg", attrs={**types, "index": 0}), Node("r", "Relu", (Edge("a"),), attrs=types)], ["a"], ["r"]
    )
    test = Graph.of(
        [
            Node("a", "_Arg", attrs={**types, "index": 0}),
            constant("axes", np.array([0, 1], np.int32)),
            Node("sum", "Sum", (Edge("a"), Edge("axes")), attrs={**types, "Tidx": DType.INT32, "keep_dims": False}),
            constant("ten", np.float32(10)),
            Node("less", "Less", (Edge("sum"), Edge("ten")), attrs=types),
        ],
        ["a"],
        ["less"],
    )
    library = Library({"f": Function("f", body, {"r": DType.FLOAT}), "c": Function("c", test, {"less": DType.BOOL})})
    attrs = {"Tin": (DType.FLOAT,), "Tout": (DType.FLOAT,)}
    loop = {
        "T": (DType.FLOAT,),
        "body": FunctionName("f"),
        "cond": FunctionName("c"),
        "output_shapes": (Shape((1, 4)),),
    }
    nodes = [
        placeholder(1, 4),
        Node("call", "PartitionedCall", (Edge("x"),), attrs={**attrs, "f": FunctionName("f")}),
        Node("loop", "StatelessWhile", (Edge("call"),), attrs=loop),
        Node("y", "AddV2", (Edge("loop"), Edge("x")), attrs=types),
    ]
    return Graph.of(nodes, ["x"], ["y"], library=library)


@cache
def graphs() -> tuple[Graph, ...]:
    return (*(case.graph for case in CASES.values()), _calling_graph(), _folding_graph())


def graph_files() -> list[bytes]:
    return [graphdef.encode(graph) for graph in graphs()]


def text_files() -> list[bytes]:
    return [graphdef.encode_text(graph).encode() for graph in graphs()]


def saved_models() -> list[bytes]:
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for number, graph in enumerate(graphs()):
            with suppress(QuantkitError):
                save_saved_model(graph, Path(folder, str(number)))
                files.append(Path(folder, str(number), "saved_model.pb").read_bytes())
    return files


def onnx_files() -> list[bytes]:
    files = []
    for graph in graphs():
        with suppress(QuantkitError):
            files.append(onnx.encode(convert(graph)))
    return [*files, *_onnx_with_subgraphs()]


def _onnx_with_subgraphs() -> list[bytes]:
    """Return a model with an If, a Loop and shape arithmetic; none without the onnx package."""
    if find_spec("onnx") is None:
        return []
    from onnx import TensorProto, helper

    def value(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int | str] = (1, 4)) -> object:
        return helper.make_tensor_value_info(name, kind, shape)

    def branch(op: str) -> object:
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}_out"])], op, [], [value(f"{op}_out")])

    body = helper.make_graph(
        [helper.make_node("Add", ["state", "one"], ["next"]), helper.make_node("Identity", ["go"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("state")],
        [value("still", TensorProto.BOOL, ()), value("next")],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["large"]),
        helper.make_node("If", ["large"], ["chosen"], then_branch=branch("Relu"), else_branch=branch("Neg")),
        helper.make_node("Loop", ["count", "yes", "chosen"], ["looped"], body=body),
        helper.make_node("Shape", ["looped"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Pad", ["zeros", "pads"], ["padded"]),
        helper.make_node("Add", ["looped", "padded"], ["y"]),
    ]
    initializers = [
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("count", TensorProto.INT64, [], [3]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        helper.make_tensor("pads", TensorProto.INT64, [4], [0, 0, 0, 0]),
    ]
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return [model.SerializeToString()]


def external_models() -> list[bytes]:
    """Return a model whose weights are in ``weights.bin``."""
    message = onnx_message("ModelProto").FromString(onnx.encode(convert(CASES["dense"].graph)))
    for tensor in message.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = 1
        for key, text in (("location", "weights.bin"), ("offset", "0"), ("length", str(4 * int(np.prod(tensor.dims))))):
            tensor.external_data.add(key=key, value=text)
    return [message.SerializeToString()]


def arrays() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).uniform(-1, 1, (6, 4)).astype(np.float32), "labels": np.arange(6) % 3}


def npz_files() -> list[bytes]:
    contents = {f"{name}.npy": array_file(values) for name, values in arrays().items()}
    return [structured.pack(contents, kind) for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]


def npy_files() -> list[bytes]:
    return [array_file(arrays()["x"])]


def array_file(values: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def record_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [example(x=row, label=np.array([number])) for number, row in enumerate(arrays()["x"])]
        return [write_records(Path(folder, "a.tfrecord"), rows).read_bytes()]


def list_files() -> list[bytes]:
    return [b"a.png 3\nb.jpg 4\n# comment\na.png\n"]


def images() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 3)).astype(np.uint8)
    files = {}
    for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP"):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        files[kind] = out.getvalue()
    return files


def plan_files() -> list[bytes]:
    """Return the plan that quantize makes of the valid graph and ranges."""
    with tempfile.TemporaryDirectory() as folder:
        write_valid_files(Path(folder))
        quantize(f"{folder}/dense.pb", ranges=f"{folder}/r.json", runs=0, save_plan=f"{folder}/p.json")
        return [Path(folder, "p.json").read_bytes()]


def range_files() -> list[bytes]:
    plan = annotate(CASES["dense"].graph)
    return [Ranges({str(edge): (-1.5, 2.0) for edge in plan.edges}).text.encode()]


def scheme_files() -> list[bytes]:
    return [
        b'target = "onnx"\nweights = "qint8 symmetric per_channel"\nactivations = "quint8 affine"\n'
        b'observer = "percentile(99.9)"\nkeep_float = ["product"]\nbias_correction = true\nequalize = false\n'
    ]


def recipe_files() -> list[bytes]:
    return [
        b'inputs = ["x"]\noutputs = ["y"]\n\n[[step]]\ntransform = "remove_nodes"\nop = ["Identity"]\nmax_inputs = 1\n'
        b'[[step]]\ntransform = "fold_constants"\nignore_errors = true\n\n[[step]]\ntransform = "quantize_weights"\n'
        b"minimum_size = 1\n"
    ]


def label_files() -> list[bytes]:
    return ["\n".join(f"class {number} é" for number in range(10)).encode()]


def tflite_files() -> list[bytes]:
    """Return a LiteRT model; none without TensorFlow, which converts it."""
    if find_spec("tensorflow") is None:
        return []
    from quantkit.convert.to_litert import save_litert

    with tempfile.TemporaryDirectory() as folder:
        save_litert(CASES["dense"].graph, Path(folder, "a.tflite"))
        return [Path(folder, "a.tflite").read_bytes()]


def keras_files(suffix: str) -> list[bytes]:
    """Return a Keras model; none without TensorFlow."""
    if find_spec("tensorflow") is None:
        return []
    from mutated_models import keras

    with tempfile.TemporaryDirectory() as folder:
        return [keras(Path(folder), suffix).read_bytes()]


ARRAY_MUTATIONS = (*BINARY, structured.mutate_header, structured.mutate_header, structured.mutate_header)
FORMATS = {
    "pb": Format(
        "a.pb",
        graph_files,
        (*BINARY, *[structured.message_mutation(graphdef_message("GraphDef"))] * 20),
        GRAPHDEF_COMMANDS,
        5,
    ),
    "pbtxt": Format("a.pbtxt", text_files, TEXT, GRAPHDEF_COMMANDS, 1.5),
    "onnx": Format(
        "a.onnx",
        onnx_files,
        (*BINARY, *[structured.message_mutation(onnx_message("ModelProto"))] * 20),
        MODEL_COMMANDS,
        5,
    ),
    "onnx_external": Format(
        "a.onnx",
        external_models,
        (*BINARY, *[structured.message_mutation(onnx_message("ModelProto"))] * 10),
        MODEL_COMMANDS,
        1,
        companions=lambda: {"weights.bin": bytes(range(256))},
    ),
    "external_data": Format(
        "weights.bin",
        lambda: [bytes(range(256))],
        BINARY,
        MODEL_COMMANDS,
        0.5,
        "a.onnx",
        lambda: {"a.onnx": external_models()[0]},
    ),
    "saved_model": Format(
        "saved_model.pb",
        saved_models,
        (*BINARY, *[structured.message_mutation(graphdef_message("SavedModel"))] * 10),
        MODEL_COMMANDS,
        1.5,
        ".",
    ),
    "npz": Format("a.npz", npz_files, (*BINARY, *map(structured.member_mutation, ARRAY_MUTATIONS)), DATA_COMMANDS, 2),
    "npy": Format("a.npy", npy_files, ARRAY_MUTATIONS, DATA_COMMANDS, 1),
    "tfrecord": Format("a.tfrecord", record_files, BINARY, DATA_COMMANDS, 1),
    "list": Format(
        "a.txt",
        list_files,
        (*TEXT, *[structured.choose_lines] * 10),
        IMAGE_COMMANDS[1:],
        0.5,
        companions=lambda: {"a.png": images()["PNG"], "b.jpg": images()["JPEG"]},
    ),
    "plan": Format(
        "p.json",
        plan_files,
        (*TEXT, *[structured.mutate_json] * 20),
        (f"quantize {VALID}/dense.pb -o {OUT}/a.onnx --plan {FILE} --ranges {VALID}/r.json --runs 0",),
        1,
    ),
    "ranges": Format(
        "r.json",
        range_files,
        (*TEXT, *[structured.mutate_json] * 20),
        (
            f"quantize {VALID}/dense.pb -o {OUT}/a.onnx --ranges {FILE} --runs 0",
            f"quantize {VALID}/dense.pb -o {OUT}/a.onnx --ranges {FILE} --runs 0 --save-plan {OUT}/p.json --json",
        ),
        1,
    ),
    "scheme": Format(
        "s.toml",
        scheme_files,
        (*TEXT, *[structured.mutate_toml] * 20),
        (f"quantize {VALID}/dense.pb -o {OUT}/a.onnx --scheme {FILE} --ranges {VALID}/r.json --runs 0",),
        1,
    ),
    "recipe": Format(
        "r.toml",
        recipe_files,
        (*TEXT, *[structured.mutate_toml] * 20),
        (f"transform {VALID}/dense.pb -o {OUT}/a.pb --recipe {FILE}",),
        1,
    ),
    "labels": Format(
        "l.txt",
        label_files,
        TEXT,
        (f"classify {VALID}/a.png --model digits --runtime reference --labels {FILE}",),
        0.3,
    ),
    **{
        f"image_{kind.lower()}": Format(
            f"a.{'jpg' if kind == 'JPEG' else kind.lower()}",
            lambda kind=kind: [images()[kind]],
            BINARY,
            IMAGE_COMMANDS,
            0.3,
        )
        for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP")
    },
    "tflite": Format("a.tflite", tflite_files, BINARY, (f"summarize {FILE}", f"transform {FILE} -o {OUT}/a.pb"), 0.3),
    "keras": Format(
        "a.keras",
        lambda: keras_files(".keras"),
        (*BINARY, *map(structured.member_mutation, (*BINARY, structured.mutate_json))),
        (f"summarize {FILE}", f"transform {FILE} -o {OUT}/a.pb"),
        0.1,
    ),
    "h5": Format(
        "a.h5", lambda: keras_files(".h5"), BINARY, (f"summarize {FILE}", f"transform {FILE} -o {OUT}/a.pb"), 0.1
    ),
}


def write_valid_files(folder: Path) -> None:
    """Write the unchanged files that command lines name."""
    (folder / "dense.pb").write_bytes(graphdef.encode(CASES["dense"].graph))
    (folder / "x.npz").write_bytes(npz_files()[0])
    (folder / "r.json").write_bytes(range_files()[0])
    (folder / "a.png").write_bytes(images()["PNG"])
    assert json.loads(range_files()[0])
