"""A receipt describes how a file was made; its check finds each change of graph, weights and metadata."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import CheckError, InputError, UnavailableError, UsageError
from quantkit.formats import metadata
from quantkit.formats.content_digest import content_digest
from quantkit.formats.graphdef import decode
from quantkit.formats.graphdef.schema import message_class as tensorflow_message
from quantkit.formats.onnx.schema import message_class as onnx_message
from quantkit.formats.saved_model import FILE
from quantkit.model.receipt import CHANGED_CONTENT, CHANGED_RECEIPT, NO_RECEIPT
from quantkit.quantization.report import Latency
from quantkit.runtimes import availability

main = import_module("quantkit.cli").main
SAMPLES = np.random.default_rng(0).random((8, 16, 16, 1), np.float32)
# Target and name of each file.
FILES = {
    "onnx": ("onnx", "m.onnx"),
    "graphdef": ("eightbit", "m.pb"),
    "graphdef_text": ("eightbit", "m.pbtxt"),
    "saved_model": ("tensorflow", "saved"),
    "tflite": ("litert", "m.tflite"),
}
# Number of changes of each file; the text form takes long to parse.
CHANGES = {"onnx": 240, "graphdef": 240, "graphdef_text": 40, "saved_model": 240, "tflite": 240}
KINDS = [pytest.param(kind, marks=[pytest.mark.engine] * (kind in ("saved_model", "tflite"))) for kind in FILES]


@pytest.fixture(scope="module")
def quantize(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, qk.QuantizationResult]]:
    """Return a function that quantizes the bundled network once into a file of a kind."""
    folder = tmp_path_factory.mktemp("receipts")

    @cache
    def quantize_once(kind: str) -> tuple[Path, qk.QuantizationResult]:
        target, name = FILES[kind]
        return folder / name, qk.quantize("digits", SAMPLES, target=target, runs=0, output=folder / name)

    return quantize_once


@pytest.fixture(scope="module")
def write(quantize: Callable[[str], tuple[Path, qk.QuantizationResult]]) -> Callable[[str], Path]:
    """Return a function that returns the quantized file of a kind."""
    return lambda kind: quantize(kind)[0]


def copy(source: Path, folder: Path) -> Path:
    path = folder / source.name
    if source.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
    else:
        shutil.copy(source, path)
    return path


def has_problem(path: Path) -> bool:
    """Return True if the check finds a change, or the file is broken."""
    try:
        return not qk.receipt(path).matches
    except InputError:
        return True


@pytest.mark.engine  # The accuracy is measured in a runtime.
@pytest.mark.parametrize("kind", FILES)
def test_receipt_describes_how_a_file_was_made(kind: str, write: Callable[[str], Path]) -> None:
    path = write(kind)
    result = qk.receipt(path)
    assert result.matches, result
    assert result.problems == ()
    facts = result.receipt
    assert facts is not None
    assert facts["scheme"]["target"] == FILES[kind][0]
    assert facts["calibration"]["samples"] == 8
    assert facts["accuracy"]["agreement"][""]["total"] == 8
    assert len(facts["accuracy"]["agreement"][""]["interval"]) == 2
    assert facts["versions"]["quantkit"]
    assert len({facts["source"]["file"], facts["plan"], facts["ranges"], facts["content"], facts["digest"]}) == 5
    assert facts["speed_ups"] is None
    assert (facts["portability"] is not None) == (kind in ("onnx", "saved_model"))
    assert facts["labels"]["names"][3] == "3"
    assert facts["preprocessing"]["mean"] == 128
    assert "agreement" in str(result)
    assert main(["receipt", str(path)]) == 0


def test_digests_are_those_of_the_files(tmp_path: Path) -> None:
    sha256 = import_module("hashlib").sha256
    source = Path(__file__).parents[2] / "models" / "digits.pb"
    output, plan, ranges = (tmp_path / name for name in ("m.onnx", "plan.json", "ranges.json"))
    qk.quantize(source, SAMPLES, inputs=["Mul"], runs=0, output=output, save_plan=plan, save_ranges=ranges)
    facts = qk.receipt(output).receipt
    assert facts is not None
    stated = [facts["source"]["file"], facts["plan"], facts["ranges"]]
    assert stated == [sha256(file.read_bytes()).hexdigest() for file in (source, plan, ranges)]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_result_equals_the_output(
    kind: str, tmp_path: Path, quantize: Callable[[str], tuple[Path, qk.QuantizationResult]]
) -> None:
    path, result = quantize(kind)
    result.save(tmp_path / path.name)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    assert len(files) == (2 if kind == "saved_model" else 1)
    for file in files:
        assert (tmp_path / path.name / file.relative_to(path)).read_bytes() == file.read_bytes()
    assert "receipt" not in result.model.metadata


def refuse_profile(*arguments: object) -> None:
    """Measure no time of layers, which no receipt states."""
    raise UnavailableError("no times", hint="")


@pytest.mark.engine
def test_speed_ups_are_stated_with_a_number_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.quantization.workflow.slow_kernels.AlternatingProfiles", refuse_profile)
    texts, latencies = [], []
    for runs in (1, 0, None):
        path = tmp_path / f"{runs}.onnx"
        result = qk.quantize("digits", SAMPLES, runs=runs, output=path)
        if runs:
            latencies.append(result.report.latency)
            monkeypatch.setattr("quantkit.quantization.workflow.verb.measure_latency", lambda *_: latencies[0])
        assert result.report.num_bytes == path.stat().st_size
        assert qk.receipt(path).matches
        texts.append(path.read_bytes())
    assert texts[1] == texts[2] != texts[0]
    facts = qk.receipt(tmp_path / "1.onnx").receipt
    assert facts is not None
    assert facts["speed_ups"]["machine"]["cpu"]
    stated = facts["speed_ups"]["runtimes"]
    assert stated == {str(each.runtime): each.speedup.to_json() for each in latencies[0].runtimes}
    assert stated
    assert content_digest(tmp_path / "1.onnx") == content_digest(tmp_path / "0.onnx")


@pytest.mark.engine
def test_ratios_are_stated_with_a_number_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.quantization.workflow.slow_kernels.AlternatingProfiles", refuse_profile)
    monkeypatch.setattr("quantkit.quantization.workflow.verb.measure_latency", lambda *_: Latency(skipped="test"))
    stated = []
    for runs in (0, 3, None):
        qk.quantize("digits", SAMPLES, runs=runs, task="embedding", output=tmp_path / "m.onnx")
        facts = qk.receipt(tmp_path / "m.onnx").receipt
        assert facts is not None
        assert facts["accuracy"]["samples"] == 8
        note = "compared on 8 samples of calibration; SQNR and metrics of a task are stated with --runs N only"
        assert (note in str(qk.receipt(tmp_path / "m.onnx"))) == (runs != 3)
        stated.append([bool(facts["accuracy"][key]) for key in ("sqnr", "task")])
    assert stated == [[False, False], [True, True], [False, False]]


@pytest.mark.parametrize("name", ["m.onnx", "m.pb"])
def test_missing_receipt_is_reported(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qk.save("digits", tmp_path / name)
    assert main(["receipt", str(tmp_path / name)]) == 1
    assert "has no receipt" in capsys.readouterr().err
    assert main(["receipt", str(tmp_path / name), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["matches"], document["receipt"], document["problems"]) == (False, None, [NO_RECEIPT])


def test_transformed_file_has_no_receipt(tmp_path: Path, write: Callable[[str], Path]) -> None:
    for kind, name in (("onnx", "t.onnx"), ("graphdef", "t.pb"), ("graphdef_text", "t.pb")):
        qk.transform(write(kind), "strip_unused_nodes", output=tmp_path / name)
        result = qk.receipt(tmp_path / name)
        assert result.problems == (NO_RECEIPT,)
        assert qk.load(tmp_path / name).metadata["labels"]["names"][3] == "3"


@pytest.mark.parametrize("name", ["m.keras", "m.xml", "m.pb", "m.onnx"])
def test_other_and_missing_files_are_rejected(name: str, tmp_path: Path) -> None:
    if name in ("m.keras", "m.xml"):
        (tmp_path / name).write_bytes(b"PK\x03\x04" if name == "m.keras" else b"<net/>")
    with pytest.raises(InputError, match="has no metadata|does not exist"):
        qk.receipt(tmp_path / name)
    with pytest.raises(UsageError, match="in memory"):
        qk.receipt(qk.load("digits").graph)


# Changes of a file


def change_json(document: Any, random: Random) -> None:
    """Change one value of a JSON document."""
    key = random.choice(list(range(len(document)) if isinstance(document, list) else document))
    value = document[key]
    if isinstance(value, dict | list) and value:
        change_json(value, random)
    elif isinstance(value, bool):
        document[key] = not value
    elif isinstance(value, int | float):
        document[key] = value + 1
    elif isinstance(value, str):
        document[key] = value[:-1] + chr(97 + (ord(value[-1]) + 1) % 26) if value else "a"
    else:
        document[key] = "changed"


def change_metadata(text: bytes, random: Random) -> bytes:
    """Change the receipt, the labels or the preprocessing of a text of metadata."""
    document = json.loads(text)
    key = random.choice(["receipt", "labels", "preprocessing"])
    if random.random() < 0.1:
        del document[key]
    else:
        change_json(document[key], random)
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def flip_bit(data: bytes, random: Random) -> bytes:
    position = random.randrange(len(data))
    return data[:position] + bytes([data[position] ^ 1 << random.randrange(8)]) + data[position + 1 :]


def change_nodes(nodes: Any, random: Random) -> None:
    """Change op type, name, input or order of the nodes of a message."""
    first, second = random.sample(range(len(nodes)), 2)
    node = random.choice([node for node in nodes if node.input])
    op = "op_type" if hasattr(node, "op_type") else "op"
    match random.choice(["op", "input", "order", "missing"]):
        case "op":
            setattr(node, op, f"{getattr(node, op)}V2")
        case "input":
            node.input[random.randrange(len(node.input))] = nodes[first].name + "_other"
        case "order":
            before, after = type(node)(), type(node)()
            before.CopyFrom(nodes[first])
            after.CopyFrom(nodes[second])
            nodes[first].CopyFrom(after)
            nodes[second].CopyFrom(before)
        case "missing":
            del nodes[first]


def change_onnx(data: bytes, random: Random) -> bytes:
    model = onnx_message("ModelProto").FromString(data)
    graph = model.graph
    names = {"scale": 1, "zero point": 2}
    match choice := random.choice(["weight", "scale", "zero point", "nodes", "attribute", "output", "metadata"]):
        case "weight":
            tensor = random.choice([tensor for tensor in graph.initializer if tensor.raw_data])
            tensor.raw_data = flip_bit(tensor.raw_data, random)
        case "scale" | "zero point":
            used = {node.input[names[choice]] for node in graph.node if node.op_type == "QuantizeLinear"}
            tensor = random.choice([tensor for tensor in graph.initializer if tensor.name in used])
            tensor.raw_data = flip_bit(tensor.raw_data, random)
        case "attribute":
            attribute = random.choice([each for node in graph.node for each in node.attribute if each.ints])
            attribute.ints[random.randrange(len(attribute.ints))] += 1
        case "output":
            random.choice(list(graph.output)).name += "_1"
        case "metadata":
            model.metadata_props[0].value = change_metadata(model.metadata_props[0].value.encode(), random).decode()
        case _:
            change_nodes(graph.node, random)
    return bytes(model.SerializeToString())


def change_graph(graph: Any, random: Random) -> None:
    """Change a GraphDef message."""
    constants = [node for node in graph.node if node.op == "Const" and node.attr["value"].tensor.tensor_content]
    match random.choice(["weight", "attribute", "nodes"]):
        case "weight":
            tensor = random.choice(constants).attr["value"].tensor
            tensor.tensor_content = flip_bit(tensor.tensor_content, random)
        case "attribute":
            random.choice([node for node in graph.node if "T" in node.attr]).attr["T"].type ^= 1
        case _:
            change_nodes(graph.node, random)


def change_graphdef(data: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        text = metadata.text_of(decode(data))
        assert text
        changed = change_metadata(text, random)
        return data.replace(text, changed) if len(changed) == len(text) else flip(data, text, random)
    graph = tensorflow_message("GraphDef").FromString(data)
    change_graph(graph, random)
    return bytes(graph.SerializeToString())


def flip(data: bytes, text: bytes, random: Random) -> bytes:
    """Flip a bit of a text in a file."""
    return data.replace(text, flip_bit(text, random))


def change_saved_model(folder: Path, random: Random) -> None:
    choice = random.choice(["graph", "signature", "metadata", "file"])
    text = folder / metadata.FOLDER / metadata.FILE
    if choice == "metadata":
        text.write_bytes(change_metadata(text.read_bytes(), random))
    elif choice == "file":
        (folder / metadata.FOLDER / f"{random.random()}").write_bytes(b"x")
    else:
        model = tensorflow_message("SavedModel").FromString((folder / FILE).read_bytes())
        meta_graph = model.meta_graphs[0]
        if choice == "graph":
            change_graph(meta_graph.graph_def, random)
        else:
            outputs = meta_graph.signature_def["serving_default"].outputs
            name = random.choice(list(outputs))
            outputs[f"{name}_1"].CopyFrom(outputs[name])
            del outputs[name]
        (folder / FILE).write_bytes(model.SerializeToString())


@pytest.mark.parametrize("kind", KINDS)
def test_each_change_has_problem(kind: str, tmp_path: Path, write: Callable[[str], Path]) -> None:
    source = write(kind)
    data = source.read_bytes() if source.is_file() else b""
    random = Random(kind)
    count = 0
    for _ in range(CHANGES[kind]):
        path = copy(source, tmp_path)
        if kind == "saved_model":
            change_saved_model(path, random)
        elif kind == "onnx":
            path.write_bytes(change_onnx(data, random))
        elif kind == "graphdef":
            path.write_bytes(change_graphdef(data, random))
        else:
            text = metadata.read_text(source)
            assert text
            changed = flip(data, text, random) if random.random() < 0.3 else change_text_or_bytes(data, kind, random)
            path.write_bytes(changed)
        assert has_problem(path), count
        count += 1
    assert count == CHANGES[kind]
    assert not has_problem(copy(source, tmp_path))


def change_text_or_bytes(data: bytes, kind: str, random: Random) -> bytes:
    """Change a digit in the text of a GraphDef, or a bit of another file."""
    if kind == "tflite":
        return flip_bit(data, random)
    end = data.index(metadata.COMMENT.encode())
    positions = [index for index in (random.randrange(end) for _ in range(500)) if data[index : index + 1].isdigit()]
    changed = bytearray(data)
    changed[positions[0]] = 48 + (data[positions[0]] - 47) % 10
    return bytes(changed)


# Equal models


def fields_reversed(data: bytes) -> bytes:
    """Return a serialized model with its fields and those of its graph in another order."""
    wire = import_module("quantkit.formats.wire")

    def sort(view: bytes) -> bytes:
        fields = [(number, view[begin:end]) for number, _, begin, _, end in wire.fields(view, 0, len(view))]
        return b"".join(field for _, field in sorted(fields, key=lambda field: -field[0]))

    def parts() -> Iterator[bytes]:
        for number, _, begin, start, end in wire.fields(data, 0, len(data)):
            graph = sort(data[start:end]) if number == 7 else b""
            yield wire.header(7, len(graph)) + graph if graph else data[begin:end]

    return sort(b"".join(parts()))


def test_equal_onnx_models_pass(tmp_path: Path, write: Callable[[str], Path]) -> None:
    data = write("onnx").read_bytes()
    other = fields_reversed(data)
    assert other != data
    (tmp_path / "m.onnx").write_bytes(other)
    assert qk.receipt(tmp_path / "m.onnx").matches
    package = pytest.importorskip("onnx")
    package.save(package.load_from_string(other), tmp_path / "saved.onnx")
    assert qk.receipt(tmp_path / "saved.onnx").matches
    options = {"save_as_external_data": True, "size_threshold": 100, "location": "weights"}
    package.save(package.load_from_string(data), tmp_path / "external.onnx", **options)
    assert qk.receipt(tmp_path / "external.onnx").matches
    (tmp_path / "weights").write_bytes(flip_bit((tmp_path / "weights").read_bytes(), Random(0)))
    assert qk.receipt(tmp_path / "external.onnx").problems == (CHANGED_CONTENT,)
    with pytest.raises(CheckError, match="not those of the receipt"):
        qk.receipt(tmp_path / "external.onnx").check()


@pytest.mark.engine
def test_models_that_tensorflow_writes_again_pass(tmp_path: Path, write: Callable[[str], Path]) -> None:
    tf = import_module("tensorflow")
    message = tf.compat.v1.GraphDef.FromString(write("graphdef").read_bytes())
    (tmp_path / "m.pb").write_bytes(message.SerializeToString())
    assert qk.receipt(tmp_path / "m.pb").matches
    path = copy(write("saved_model"), tmp_path)
    saved = import_module("tensorflow.core.protobuf.saved_model_pb2").SavedModel.FromString((path / FILE).read_bytes())
    (path / FILE).write_bytes(saved.SerializeToString())
    assert qk.receipt(path).matches


def test_text_and_binary_form_have_one_digest(write: Callable[[str], Path]) -> None:
    assert content_digest(write("graphdef")) == content_digest(write("graphdef_text"))


@pytest.mark.parametrize("kind", ["onnx", "graphdef"])
def test_second_metadata_are_found(kind: str, tmp_path: Path, write: Callable[[str], Path]) -> None:
    path = copy(write(kind), tmp_path)
    text = metadata.read_text(path)
    assert text
    path.write_bytes(path.read_bytes() + metadata.with_text(qk.load(path).graph.with_(extra=b""), text).extra)
    assert "twice" in str(qk.receipt(path).problems)


# Signatures


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Return a private key and its public key."""
    pytest.importorskip("model_signing", reason="pip install 'model-signing>=1.1' 'pyopenssl>=24.0'")
    serialization = import_module("cryptography.hazmat.primitives.serialization")
    curves = import_module("cryptography.hazmat.primitives.asymmetric.ec")
    private = curves.generate_private_key(curves.SECP256R1())
    pem = serialization.Encoding.PEM
    (tmp_path / "private.pem").write_bytes(
        private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    return tmp_path / "private.pem", tmp_path / "public.pem"


def test_signature_of_a_file(
    keys: tuple[Path, Path], tmp_path: Path, write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys
    path = copy(write("onnx"), tmp_path)
    with pytest.raises(InputError, match="signature .* does not exist"):
        qk.receipt(path, verify_key=public)
    assert qk.receipt(path, sign=private).signature == tmp_path / "m.onnx.sig"
    assert qk.receipt(path, verify_key=public).matches
    assert main(["receipt", str(path), "--verify-key", str(public)]) == 0
    document = metadata.decode(metadata.read_text(path))
    document["receipt"]["source"]["graph"] = "0" * 16
    sealed = metadata.encode(metadata.seal(document, document["receipt"]["content"]))
    path.write_bytes(path.read_bytes().replace(metadata.read_text(path) or b"", sealed))  # a change on purpose
    assert not qk.receipt(path, verify_key=public).matches
    capsys.readouterr()
    assert main(["receipt", str(path), "--verify-key", str(public)]) == 1
    assert "the signature is not that of this file and key" in capsys.readouterr().err
    assert main(["receipt", str(write("onnx")), "--sign", str(public)]) == 3
    assert main(["receipt", str(path), "--sign", str(private), "--verify-key", str(public)]) == 2


def test_missing_package_is_named(
    tmp_path: Path, write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.pem").write_text("x")
    monkeypatch.setattr(availability, "find_spec", lambda module: None)
    with pytest.raises(UnavailableError, match="model-signing") as raised:
        qk.receipt(write("onnx"), sign=tmp_path / "key.pem")
    assert "pip install" in str(raised.value.hint)


def test_changed_file_is_not_signed(keys: tuple[Path, Path], tmp_path: Path, write: Callable[[str], Path]) -> None:
    path = copy(write("onnx"), tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"names":["0"', b'"names":["9"'))
    result = qk.receipt(path, sign=keys[0])
    assert result.problems == (CHANGED_RECEIPT,)
    assert result.signature is None
    assert not (tmp_path / "m.onnx.sig").exists()
