"""Folders of the servers: layout, configuration by the published schemas, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit
from quantkit.errors import InputError, UsageError
from quantkit.optimize.deployment import SERVERS, Deployment, deploy
from quantkit.optimize.deployment.kserve import format_yaml
from quantkit.runtimes.session import SessionOptions

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "onnx_models"
COMMON = {"README.md", "client.py", "deployment.json", "expected.npz", "images.py", "models"}
# Configuration file of OpenVINO Model Server, as its documentation and its server describe it.
MODEL_SERVER_CONFIG = {
    "type": "object",
    "required": ["model_config_list"],
    "additionalProperties": False,
    "properties": {
        "model_config_list": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["config"],
                "properties": {
                    "config": {
                        "type": "object",
                        "required": ["name", "base_path"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "base_path": {"type": "string"},
                            "batch_size": {"type": ["integer", "string"]},
                            "shape": {"type": ["object", "string"]},
                            "nireq": {"type": "integer", "minimum": 0},
                            "target_device": {"type": "string"},
                            "plugin_config": {"type": "object"},
                        },
                    }
                },
            },
        }
    },
}
QUANTITY = {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?(m|Ki|Mi|Gi)?$"}}
# The fields of an InferenceService of KServe (serving.kserve.io/v1beta1) that a predictor with a model has.
INFERENCE_SERVICE = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "serving.kserve.io/v1beta1"},
        "kind": {"const": "InferenceService"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}},
        },
        "spec": {
            "type": "object",
            "required": ["predictor"],
            "additionalProperties": False,
            "properties": {
                "predictor": {
                    "type": "object",
                    "required": ["model"],
                    "additionalProperties": False,
                    "properties": {
                        "model": {
                            "type": "object",
                            "required": ["modelFormat"],
                            "additionalProperties": False,
                            "properties": {
                                "modelFormat": {
                                    "type": "object",
                                    "required": ["name"],
                                    "additionalProperties": False,
                                    "properties": {"name": {"type": "string"}, "version": {"type": "string"}},
                                },
                                "protocolVersion": {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]},
                                "runtime": {"type": "string"},
                                "storageUri": {"type": "string", "pattern": r"^(pvc|s3|gs|https?|oci)://"},
                                "resources": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "properties": {"requests": QUANTITY, "limits": QUANTITY},
                                },
                                "env": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["name", "value"],
                                        "additionalProperties": {"type": "string"},
                                    },
                                },
                            },
                        }
                    },
                }
            },
        },
    },
}


def validate(document: Any, schema: Any) -> None:
    pytest.importorskip("jsonschema", reason="pip install jsonschema").validate(document, schema)


def read_config(folder: Path, name: str) -> Any:
    """Return the ModelConfig message of a model repository of Triton."""
    messages = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="pip install tritonclient grpcio")
    from google.protobuf import text_format

    return text_format.Parse((folder / "models" / name / "config.pbtxt").read_text(), messages.ModelConfig())


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the classifier and detector of the guides, with a dynamic batch."""
    folder = tmp_path_factory.mktemp("exports")
    from exported_models import write_exports

    write_exports(folder)
    return folder


def find_network(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip("needs ../shared/onnx_models")
    return path


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_triton_folder_of_a_classifier(runtime: str, exports: Path, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    options = SessionOptions(intra_op=6)
    deployment = Deployment(exports / "classifier.onnx", "shapes", runtime, options, streams=3)
    folder = deploy(deployment, tmp_path / "triton", "triton")
    assert {path.name for path in folder.iterdir()} == {*COMMON, "example.png"}
    assert (folder / "models/shapes/1/model.onnx").read_bytes() == (exports / "classifier.onnx").read_bytes()
    config = read_config(folder, "shapes")
    makes_batches = runtime == "onnxruntime"
    assert (config.name, config.backend, config.default_model_filename) == ("shapes", runtime, "model.onnx")
    assert config.max_batch_size == (8 if makes_batches else 0)
    batch = [] if makes_batches else [-1]
    assert (config.input[0].name, list(config.input[0].dims)) == ("image", [*batch, 3, 16, 16])
    assert (config.output[0].name, list(config.output[0].dims)) == ("logits", [*batch, 10])
    assert {tensor.data_type for tensor in (*config.input, *config.output)} == {11}  # TYPE_FP32
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (3, 2)  # KIND_CPU
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert parameters == (
        {"intra_op_thread_count": "2"}  # of each of three instances
        if makes_batches
        else {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": "3", "INFERENCE_NUM_THREADS": "6"}
    )


@pytest.mark.engine
def test_triton_parameters_of_parallel_ops(exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    options = SessionOptions(intra_op=1, inter_op=2, spinning=False)
    folder = deploy(Deployment(exports / "classifier.onnx", "c", "onnxruntime", options), tmp_path / "f", "triton")
    parameters = {key: value.string_value for key, value in read_config(folder, "c").parameters.items()}
    assert parameters == {"intra_op_thread_count": "1", "inter_op_thread_count": "2", "execution_mode": "1"}
    assert "no parameter for spinning=False" in (folder / "README.md").read_text()


@pytest.mark.engine
def test_labels_belong_to_the_output_with_the_scores(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    quantkit.save(quantkit.load("digits"), tmp_path / "digits.onnx")
    folder = deploy(Deployment(tmp_path / "digits.onnx", "digits", "onnxruntime"), tmp_path / "f", "triton")
    labels = (folder / "labels.txt").read_text().split()
    assert len(labels) == 10
    assert (folder / "models/digits/labels.txt").read_text().split() == labels
    assert read_config(folder, "digits").output[0].label_filename == "labels.txt"
    document = json.loads((folder / "deployment.json").read_text())
    assert document["scores"] == "softmax"
    assert document["image"]["preprocessing"]["mean"] == 128.0


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["graphdef", "saved_model"])
def test_triton_folder_of_tensorflow(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    file = tmp_path / {"graphdef": "digits.pb", "saved_model": "digits"}[kind]
    quantkit.save(quantkit.load("digits"), file, format=None if kind == "graphdef" else kind)
    options = SessionOptions(intra_op=2, inter_op=1)
    folder = deploy(Deployment(file, "digits", "tensorflow", options), tmp_path / "f", "triton")
    config = read_config(folder, "digits")
    assert config.platform == f"tensorflow_{kind.replace('_', '')}"
    model = folder / "models/digits/1" / config.default_model_filename
    assert model.is_dir() == (kind == "saved_model")
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert parameters["TF_NUM_INTRA_THREADS"] == "2"
    assert parameters["TF_NUM_INTER_THREADS"] == "1"


@pytest.mark.engine
@pytest.mark.parametrize("name", ["pplcnet_orientation", "kwt1", "silero_vad_op18", "yunet_n_320", "xfeat"])
def test_folders_of_networks_fit_the_schemas(name: str, tmp_path: Path) -> None:
    """A classifier, a network of sounds, one with a scalar input, a detector, and images of any size."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    file = find_network(f"{name}.onnx")
    folders = {
        server: deploy(
            Deployment(file, name, runtime, SessionOptions(intra_op=2), environment={"OMP_NUM_THREADS": "2"}),
            tmp_path / server,
            server,
        )
        for server, runtime in (
            ("triton", "onnxruntime"),
            ("openvino-model-server", "openvino"),
            ("kserve", "onnxruntime"),
        )
    }
    for server in ("triton", "kserve"):
        config = read_config(folders[server], name)
        document = json.loads((folders[server] / "deployment.json").read_text())
        for tensors, described in ((config.input, document["inputs"]), (config.output, document["outputs"])):
            assert [tensor.name for tensor in tensors] == [info["name"] for info in described]
            for tensor, info in zip(tensors, described, strict=True):
                dims = [-1, *tensor.dims] if config.max_batch_size else list(tensor.dims)
                assert dims == info["shape"]
                assert (list(tensor.reshape.shape) == []) or tensor.HasField("reshape")
    validate(json.loads((folders["openvino-model-server"] / "models/config.json").read_text()), MODEL_SERVER_CONFIG)
    service = read_service(folders["kserve"])
    validate(service, INFERENCE_SERVICE)
    assert service["spec"]["predictor"]["model"]["env"] == [{"name": "OMP_NUM_THREADS", "value": "2"}]


def read_service(folder: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return yaml.safe_load((folder / "inference-service.yaml").read_text())


@pytest.mark.engine
def test_service_is_one_of_the_package_of_kserve(exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    kserve = pytest.importorskip("kserve", reason="kserve has 60 dependencies, and make test does not install it")
    folder = deploy(Deployment(exports / "classifier.onnx", "8_Shapes.v2", "onnxruntime"), tmp_path / "f", "kserve")
    service = read_service(folder)
    assert service["metadata"]["name"] == "model-8-shapes-v2"
    assert count_fields(service, "V1beta1InferenceService", kserve) == 9


def count_fields(document: Any, kind: str, package: Any) -> int:
    """Return the number of fields of a document; each is one of a class of KServe."""
    fields = getattr(package, kind, None)
    if fields is None or not isinstance(document, dict):  # a class of Kubernetes, or a text
        return 1
    attributes = {name: attribute for attribute, name in fields.attribute_map.items()}
    assert document.keys() <= attributes.keys()
    types = fields.openapi_types
    return sum(count_fields(value, types[attributes[name]], package) for name, value in document.items())


@pytest.mark.engine
@pytest.mark.parametrize(("streams", "hint"), [(None, "LATENCY"), (2, "THROUGHPUT")])
def test_configuration_of_openvino_model_server(streams: int | None, hint: str, exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    deployment = Deployment(exports / "classifier.onnx", "c", "openvino", SessionOptions(intra_op=2), streams)
    folder = deploy(deployment, tmp_path / "f", "openvino-model-server")
    document = json.loads((folder / "models/config.json").read_text())
    validate(document, MODEL_SERVER_CONFIG)
    (entry,) = document["model_config_list"]
    assert entry["config"]["base_path"] == "/models/c"
    assert (folder / entry["config"]["base_path"][1:] / "1" / "model.onnx").exists()
    plugin = entry["config"]["plugin_config"]
    assert (plugin["PERFORMANCE_HINT"], plugin["INFERENCE_NUM_THREADS"]) == (hint, "2")
    assert plugin.get("NUM_STREAMS") == (str(streams) if streams else None)


@pytest.mark.engine
def test_weights_in_other_files_are_copied(exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    deployment = Deployment(exports / "classifier.dynamo.onnx", "c", "onnxruntime")
    folder = deploy(deployment, tmp_path / "f", "triton")
    version = folder / "models/c/1"
    assert {path.name for path in version.iterdir()} == {"model.onnx", "classifier.dynamo.onnx.data"}
    image = np.zeros((1, 3, 16, 16), np.float32)
    with quantkit.open_session(version / "model.onnx", "onnxruntime") as session:
        assert session.run({"image": image})["logits"].shape == (1, 10)


@pytest.mark.engine
def test_functions_are_inlined(exports: Path, tmp_path: Path) -> None:
    """OpenVINO does not inline the functions of a file."""
    pytest.importorskip("openvino")
    onnx = pytest.importorskip("onnx")
    file = onnx.load(exports / "classifier.onnx")
    opset = onnx.helper.make_opsetid("", file.opset_import[0].version)
    clip = onnx.helper.make_node("Relu", ["a"], ["b"])
    file.functions.append(onnx.helper.make_function("my", "Clip", ["a"], ["b"], [clip], [opset]))
    for node in file.graph.node:
        if node.op_type == "Relu":
            node.op_type, node.domain = "Clip", "my"
    file.opset_import.append(onnx.helper.make_opsetid("my", 1))
    onnx.save(file, tmp_path / "functions.onnx")
    folder = deploy(Deployment(tmp_path / "functions.onnx", "c", "openvino"), tmp_path / "f", "python")
    served = onnx.load(folder / "models/model.onnx")
    assert not served.functions
    assert [node.op_type for node in served.graph.node].count("Relu") == 2


@pytest.mark.engine
def test_folder_appears_complete_or_not_at_all(exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    deployment = Deployment(exports / "classifier.onnx", "c", "onnxruntime")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        deploy(deployment, tmp_path / "full", "python")
    with pytest.raises(UsageError, match=r"'image'|'logits'"):
        deploy(Deployment(exports / "half.onnx", "c", "onnxruntime"), tmp_path / "new", "python")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07broken")
    with pytest.raises(InputError):
        deploy(Deployment(tmp_path / "model.onnx", "c", "onnxruntime"), tmp_path / "new", "python")
    assert {path.name for path in tmp_path.iterdir()} == {"full", "model.onnx"}
    (tmp_path / "empty").mkdir()
    assert (deploy(deployment, tmp_path / "empty", "python") / "server.py").exists()


@pytest.mark.parametrize("name", ["", "a b", "../a", "ä", ".hidden"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(UsageError, match="is not a name of a model"):
        Deployment(Path("model.onnx"), name, "onnxruntime")


@pytest.mark.parametrize(
    ("file", "runtime", "server", "hint"),
    [
        ("m.tflite", "litert", "triton", "use --server python"),
        ("m.onnx", "onnxruntime", "openvino-model-server", "use --server triton or kserve or python"),
        ("m.onnx", "reference", "triton", "convert the model to ONNX"),
    ],
)
def test_other_servers_are_suggested(file: str, runtime: str, server: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"\x1c\x00\x00\x00TFL3" if file.endswith("tflite") else b"\x08\x07")
    with pytest.raises(UsageError, match="does not run") as error:
        deploy(Deployment(tmp_path / file, "m", runtime), tmp_path / "folder", server)
    assert error.value.hint == hint


def test_servers_are_found_by_name(tmp_path: Path) -> None:
    assert list(SERVERS.objects()) == ["triton", "openvino-model-server", "kserve", "python"]
    with pytest.raises(UsageError, match="'tritn' is not a server") as error:
        deploy(Deployment(tmp_path / "m.onnx", "m", "onnxruntime"), tmp_path / "folder", "tritn")
    assert error.value.hint == "did you mean 'triton'?"


def test_limit_of_the_instruction_set_is_an_environment_variable() -> None:
    deployment = Deployment(Path("m.onnx"), "m", "openvino", SessionOptions(isa="avx2"), 2, {"OMP_NUM_THREADS": "1"})
    assert deployment.variables == {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    assert deployment.session_options == SessionOptions(streams=2)


def test_folders_are_for_the_cpu() -> None:
    with pytest.raises(UsageError, match="are for the CPU"):
        Deployment(Path("m.onnx"), "m", "openvino", SessionOptions(device="gpu"))


def test_yaml_is_that_of_the_library() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    document = {"a": {"b": "2", "c": {"d": [{"x": "y"}]}}, "e": [{"f": "#", "g": 'q"'}, {"f": "on", "g": ""}]}
    assert yaml.safe_load(format_yaml(document)) == document


def test_templates_do_not_import_quantkit() -> None:
    templates = sorted((ROOT / "quantkit/optimize/deployment/templates").glob("*.py.txt"))
    assert len(templates) >= 8
    for path in templates:
        assert not re.search(r"^\s*(?:import|from) quantkit", path.read_text(), re.MULTILINE), path
