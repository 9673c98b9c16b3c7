"""The Python interface: the calls of a whole workflow, in the order of a user, on ``digits``."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.quantization import annotate, calibrate, convert
from quantkit.runtimes import find_runtime

ASSETS = Path(__file__).parents[1] / "assets"
HELD_OUT = ASSETS / "digits_heldout.npz"
needs_onnxruntime = pytest.mark.skipif(
    not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"
)
pytestmark = [pytest.mark.engine, needs_onnxruntime]


@pytest.fixture(scope="module")
def model() -> qk.Model:
    return qk.load("digits")


@pytest.fixture(scope="module")
def result(model: qk.Model) -> qk.QuantizationResult:
    return qk.quantize(model, HELD_OUT, target="onnx", limit=60, max_drop=0.05, runs=1, runtime="onnxruntime")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per class, with one image each."""
    folder = tmp_path_factory.mktemp("images")
    for digit in range(10):
        (folder / str(digit)).mkdir()
        shutil.copy(ASSETS / f"digit_{digit}.png", folder / str(digit))
    return folder


def assert_prints_well(value: Any) -> None:
    """Check that a result has a text, an HTML form for notebooks, and a JSON document."""
    assert not str(value).startswith("<"), "the text is that of every object"
    assert value._repr_html_().startswith("<")
    assert json.loads(json.dumps(value.to_json()))


def test_a_model_has_all_that_is_known_about_it(model: qk.Model) -> None:
    assert isinstance(model.graph, qk.Graph)
    assert model.card is not None
    assert str(model.preprocessing) == "16 x 16 x 1, (x - 128) / 128"
    assert model.labels.name(3) == "3"
    assert model.signature is None
    assert_prints_well(model)


def test_transform_takes_and_returns_a_model(model: qk.Model) -> None:
    folded = qk.transform(model, "inference", verify=True)
    assert isinstance(folded, qk.Model)
    assert folded.trace is not None
    assert len(folded.graph) < len(model.graph)
    assert folded.preprocessing == model.preprocessing
    assert len(folded.trace.records) > 5


def test_quantize_returns_model_plan_ranges_and_report(result: qk.QuantizationResult, tmp_path: Path) -> None:
    assert isinstance(result.model, qk.Model)
    assert isinstance(result.plan, qk.Plan)
    assert isinstance(result.ranges, qk.Ranges)
    assert "QuantizeLinear" in result.model.graph.op_counts
    assert "agreement with the float model" in str(result.report)
    assert_prints_well(result)
    result.save(tmp_path / "digits.int8.onnx")
    assert qk.load(tmp_path / "digits.int8.onnx").graph.op_counts == result.model.graph.op_counts


@pytest.mark.parametrize("quantized", [False, True])
def test_classify_returns_predictions(
    quantized: bool, model: qk.Model, result: qk.QuantizationResult, images: Path
) -> None:
    predictions = qk.classify(images / "3" / "digit_3.png", result.model if quantized else model, top=5)
    assert len(predictions) == 5
    best = predictions[0]
    assert (best.label, best.index) == ("3", 3)
    assert best.score == max(prediction.score for prediction in predictions)


def test_evaluate_compares_with_a_reference(model: qk.Model, result: qk.QuantizationResult, images: Path) -> None:
    evaluation = qk.evaluate(result.model, images, reference=model)
    assert evaluation.to_json()["top1"]["value"] == 1
    assert evaluation.to_json()["agreement"]["value"] == 1
    assert_prints_well(evaluation)


def test_compare_is_layer_by_layer(model: qk.Model, result: qk.QuantizationResult, images: Path) -> None:
    comparison = qk.compare(model, result.model, images)
    assert len(comparison.rows) > 3
    assert_prints_well(comparison)


@pytest.mark.filterwarnings("ignore")
def test_benchmark_takes_models_and_files(model: qk.Model, result: qk.QuantizationResult, tmp_path: Path) -> None:
    result.save(tmp_path / "other.onnx")
    benchmark = qk.benchmark([result.model, f"{tmp_path / 'other.onnx'}@onnxruntime"], runs=1, warmup=1, processes=1)
    assert len(benchmark.rows) == 2
    assert_prints_well(benchmark)


def test_sessions_take_and_return_arrays_by_name(result: qk.QuantizationResult) -> None:
    image = np.zeros((1, 16, 16, 1), np.float32)
    with qk.open_session(result.model, "onnxruntime", threads=2) as session:
        outputs = session.run({"Mul": image})
    assert outputs["softmax"].shape == (1, 10)
    assert outputs["softmax"].dtype == np.float32


def test_summarize_prints_well(model: qk.Model) -> None:
    assert_prints_well(qk.summarize(model))


def test_a_graph_is_a_mapping_of_nodes(model: qk.Model) -> None:
    graph = qk.transform(model, "inference").graph
    assert graph["softmax"].op == "Softmax"
    assert list(graph) == list(graph.order)
    (consumer,) = graph.consumers(graph["softmax"].inputs[0].node)
    assert consumer.name == "softmax"
    assert graph.op_counts["Softmax"] == 1


def test_the_steps_of_quantization_are_available_one_by_one(model: qk.Model) -> None:
    graph = qk.transform(model, "inference").graph
    plan = annotate(graph, qk.Scheme.for_target("onnx"))
    images = (np.load(HELD_OUT)["images"][:20].reshape(-1, 1, 16, 16, 1).astype(np.float32) - 128) / 128
    quantized = convert(graph, plan, calibrate(graph, plan, images))
    assert "QuantizeLinear" in quantized.op_counts


def _generator(batches: list[Any]) -> Iterator[Any]:
    yield from batches


DATA: dict[str, Callable[[Any, Any], Any]] = {
    "arrays": lambda x, y: (x, y),
    "by input name": lambda x, y: {"Mul": x, "labels": y},
    "list of batches": lambda x, y: [(x[:7], y[:7]), (x[7:], y[7:])],
    "list of samples": lambda x, y: list(zip(x, y, strict=True)),
    "generator": lambda x, y: _generator([(x[:7], y[:7]), (x[7:], y[7:])]),
    "function": lambda x, y: lambda: _generator([(x[:7], y[:7]), (x[7:], y[7:])]),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_of_every_kind_gives_the_same_accuracy(kind: str, model: qk.Model) -> None:
    with np.load(HELD_OUT) as file:
        pixels, labels = file["images"][:20].reshape(-1, 16, 16, 1).astype(np.uint8), file["labels"][:20]
    document = qk.evaluate(model, DATA[kind](pixels, labels)).to_json()
    assert document["samples"] == 20
    assert document["top1"]["value"] == 1


def test_data_of_tensorflow(model: qk.Model) -> None:
    if not find_runtime("tensorflow").available().ok:
        pytest.skip("TensorFlow is not installed")
    from quantkit.runtimes.tensorflow_library import import_tensorflow

    with np.load(HELD_OUT) as file:
        pixels, labels = file["images"][:20].reshape(-1, 16, 16, 1).astype(np.uint8), file["labels"][:20]
    dataset = import_tensorflow().data.Dataset.from_tensor_slices((pixels, labels))
    for elements in (dataset, dataset.batch(6)):
        assert qk.evaluate(model, elements).to_json()["samples"] == 20


def test_every_verb_takes_a_model_a_graph_a_path_or_a_card(model: qk.Model, tmp_path: Path) -> None:
    qk.save(qk.transform(model, "inference"), tmp_path / "digits.pb")
    for value in (qk.load(tmp_path / "digits.pb"), tmp_path / "digits.pb", str(tmp_path / "digits.pb"), "digits"):
        assert qk.summarize(value).num_nodes > 10
        assert qk.classify(ASSETS / "digit_5.png", value)[0].label == "5"
        assert isinstance(qk.transform(value, "remove_device"), qk.Model)


@pytest.mark.parametrize(
    "call",
    [
        lambda: qk.transform(3, "inference"),
        lambda: qk.quantize([], HELD_OUT),
        lambda: qk.classify(ASSETS / "digit_5.png", 3.5),
        lambda: qk.evaluate(object(), HELD_OUT),
        lambda: qk.evaluate("digits", 3),
        lambda: qk.compare("digits", None),
        lambda: qk.benchmark([3]),
        lambda: qk.open_session({}),
        lambda: qk.summarize(3),
        lambda: qk.save(3, "m.pb"),
    ],
)
def test_a_wrong_type_is_a_usage_error(call: Callable[[], Any]) -> None:
    with pytest.raises(qk.UsageError) as caught:
        call()
    assert caught.value.hint


def test_the_result_of_quantize_is_a_model() -> None:
    result = qk.quantize("digits", HELD_OUT, target="eightbit", limit=20, runs=0)
    assert qk.load(result).graph is result.model.graph
    assert qk.summarize(result).to_json() == qk.summarize(result.model).to_json()
    evaluation = qk.evaluate(result, HELD_OUT, reference="digits", runtime="reference", limit=10)
    assert evaluation.metrics.agreement is not None
    with qk.open_session(result, "reference") as session:
        assert session.run(np.zeros((1, 16, 16, 1), np.float32))["softmax"].shape == (1, 10)
    benchmark = qk.benchmark(["digits", result], "reference", runs=1, warmup=0, processes=1)
    assert len(benchmark.measurements) == 2


@pytest.mark.parametrize("name", ["model.engine", "model.plan", "model.trt"])
def test_files_that_tensorrt_compiled_have_a_hint(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"ftrt\xf0\0\0\0")
    with pytest.raises(qk.InputError, match="is a model that TensorRT compiled") as caught:
        qk.load(tmp_path / name)
    assert ".onnx" in caught.value.hint


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.pt2"])
@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x80\x02"])
def test_pytorch_models_have_a_hint(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(qk.InputError, match="is a PyTorch file") as caught:
        qk.load(tmp_path / name)
    assert "torch.onnx.export" in caught.value.hint

    class Module:
        def state_dict(self) -> dict[str, int]:
            return {}

    with pytest.raises(qk.UsageError) as rejected:
        qk.load(Module())
    assert "torch.onnx.export" in rejected.value.hint
