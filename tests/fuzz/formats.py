"""Formats of the fuzzer: valid files, mutations, and the commands that read a file."""

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
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
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.workflow import quantize

from . import states, structured
from .onnx_models import external_models, models_with_subgraphs, nested_models
from .structured import Mutation
from .trained import trained_files, trained_saved_model

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


SHARD = "x-00000-of-00001.tfrecord"
SHARD_COMMANDS = (
    f"data verify {FILE}",
    f"evaluate {VALID}/dense.pb@reference --data {FILE}/{SHARD} --outputs softmax",
    f"data pack {VALID}/x.npz -o {FILE} --name x --workers 1",
)
RUN_COMMANDS = (f"run {VALID}/dense.pb@reference --data {VALID}/x.npz -o {FILE} --shard-size 3 --outputs softmax",)
TRAINED_COMMANDS = (
    f"summarize {FILE}",
    f"transform {FILE} -o {OUT}/a.onnx",
    f"quantize {FILE} -o {OUT}/a.onnx --runs 0",
)
JSON_MUTATIONS = (*TEXT, *[structured.mutate_json] * 20)


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
    return [*files, *models_with_subgraphs()]


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


def image(kind: str) -> list[bytes]:
    return [images()[kind]]


def plan_files() -> list[bytes]:
    """Return the plan that quantize makes of the valid graph and ranges."""
    with tempfile.TemporaryDirectory() as folder:
        write_valid_files(Path(folder))
        quantize(f"{folder}/dense.pb", ranges=f"{folder}/r.json", runs=0, save_plan=f"{folder}/p.json")
        return [Path(folder, "p.json").read_bytes()]


def range_files() -> list[bytes]:
    plan = annotate(CASES["dense"].graph)
    return [Ranges({edge: Range(-1.5, 2.0) for edge in plan.edges}).text.encode()]


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


@cache
def dense() -> bytes:
    return graphdef.encode(CASES["dense"].graph)


def shards() -> dict[str, bytes]:
    return states.shard_files(npz_files()[0])


def results(form: str) -> dict[str, bytes]:
    return states.result_files(dense(), npz_files()[0], form)


def result_shard(form: str) -> list[bytes]:
    return [results(form)[f"results-00000-of-00002.{form}"]]


def result_shards(form: str) -> dict[str, bytes]:
    return {name: data for name, data in results(form).items() if name != "manifest.json"}


def change_bytes(data: bytes, random: np.random.Generator) -> bytes:
    """Change one byte, such that most of the file is still read."""
    changed = bytearray(data)
    changed[int(random.integers(0, len(changed)))] = int(random.integers(0, 256))
    return bytes(changed)


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
    "onnx_subgraphs": Format(
        "a.onnx",
        nested_models,
        (*BINARY, *[structured.message_mutation(onnx_message("ModelProto"))] * 20),
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
            partial(image, kind),
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
    **{
        f"trained_{suffix[1:]}": Format(
            f"a{suffix}",
            partial(trained_files, suffix),
            (*BINARY, *[change_bytes] * 10, *[structured.member_mutation(structured.mutate_json)] * 10),
            TRAINED_COMMANDS,
            0.05,
        )
        for suffix in (".h5", ".keras")
    },
    "trained_saved_model": Format(
        "saved_model.pb",
        lambda: [trained_saved_model()["saved_model.pb"]],
        (*BINARY, *[structured.message_mutation(graphdef_message("SavedModel"))] * 10),
        TRAINED_COMMANDS,
        0.05,
        ".",
        lambda: {name: data for name, data in trained_saved_model().items() if name != "saved_model.pb"},
    ),
    "shard": Format(SHARD, lambda: [shards()[SHARD]], BINARY, SHARD_COMMANDS, 0.5, ".", shards),
    "shard_index": Format(
        "x.index.json", lambda: [shards()["x.index.json"]], JSON_MUTATIONS, SHARD_COMMANDS, 1, ".", shards
    ),
    "shard_journal": Format(
        ".x.packing.jsonl",
        lambda: [json.dumps(json.loads(shards()["x.index.json"])["shards"][0]).encode()],
        JSON_MUTATIONS,
        SHARD_COMMANDS[-1:],
        0.5,
        ".",
        lambda: {SHARD: shards()[SHARD]},
    ),
    "manifest": Format(
        "manifest.json",
        lambda: [results("jsonl")["manifest.json"]],
        JSON_MUTATIONS,
        RUN_COMMANDS,
        0.3,
        ".",
        lambda: results("jsonl"),
    ),
    **{
        f"results_{form}": Format(
            f"results-00000-of-00002.{form}",
            partial(result_shard, form),
            mutations,
            tuple(f"{command} --format {form}" for command in RUN_COMMANDS),
            0.3,
            ".",
            partial(result_shards, form),
        )
        for form, mutations in (
            ("jsonl", JSON_MUTATIONS),
            ("npz", (*BINARY, *map(structured.member_mutation, ARRAY_MUTATIONS))),
        )
    },
    "baseline": Format(
        "b.json",
        lambda: [states.saved_benchmark(dense())],
        JSON_MUTATIONS,
        (f"benchmark {VALID}/dense.pb@reference --baseline {FILE} --runs 2 --warmup 1 --processes 1",),
        0.1,
    ),
    "sweep_state": Format(
        "s.json",
        lambda: [states.sweep_state()],
        JSON_MUTATIONS,
        (f"benchmark {VALID}/dense.pb@reference --sweep --resume {FILE} --time-budget 2s --json",),
        0.05,
    ),
    "calibration_state": Format(
        "a.onnx.calibration",
        lambda: [states.interrupted_calibration(dense(), npz_files()[0])],
        BINARY,
        (f"quantize {VALID}/dense.pb -o {FILE} --calibration {VALID}/x.npz --runs 0 --runtime reference",),
        0.3,
        "a.onnx",
    ),
    "finetune_state": Format(
        "a.onnx.finetune",
        lambda: [states.interrupted_finetuning(dense(), npz_files()[0])] if find_spec("tensorflow") else [],
        BINARY,
        (f"quantize {VALID}/dense.pb -o {FILE} --calibration {VALID}/x.npz --runs 0 --finetune 2",),
        0.02,
        "a.onnx",
    ),
}


def write_valid_files(folder: Path) -> None:
    """Write the unchanged files that command lines name."""
    (folder / "dense.pb").write_bytes(dense())
    (folder / "x.npz").write_bytes(npz_files()[0])
    (folder / "r.json").write_bytes(range_files()[0])
    (folder / "a.png").write_bytes(images()["PNG"])
    assert json.loads(range_files()[0])
