import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from measurements import make_measurement

from quantkit import formats
from quantkit.benchmark import benchmark
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, Settings, digest
from quantkit.benchmark.sampling.end_to_end import PARTS
from quantkit.benchmark.sampling.worker import serve
from quantkit.errors import QuantkitError, UsageError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes.function_session import FunctionSession
from quantkit.zoo.cards import find_card
from quantkit.zoo.fetch import fetch

DIGIT = str(Path(__file__).parent.parent.parent / "assets" / "digit_3.png")
ARRAYS = str(Path(__file__).parent.parent.parent / "assets" / "digits_heldout.npz")


def ask(settings: Settings, *requests: dict[str, Any], path: Path | None = None) -> list[dict[str, Any]]:
    """Return the responses of a worker in this process; each reading of its clock is a second later."""
    responses: list[str] = []
    readings = iter(range(10**6))
    opening = Candidate("model", path or fetch(find_card("digits")), settings).to_request(seed=0)
    serve(map(json.dumps, (opening, *requests)), responses.append, lambda: float(next(readings)))
    return [json.loads(response) for response in responses]


def test_a_call_has_all_parts() -> None:
    settings = Settings("reference", data=DIGIT, is_end_to_end=True)
    opened, _, done = ask(settings, {"do": "warm_up", "calls": 1}, {"do": "run", "samples": 3})
    assert opened["batch"] == 1
    # Stacking the images of a batch is part of the preprocessing.
    assert done["parts"] == {"decode": [1.0] * 3, "preprocess": [2.0] * 3, "infer": [1.0] * 3, "postprocess": [1.0] * 3}


def test_a_batch_prepares_each_of_its_images(tmp_path: Path) -> None:
    image = Node("image", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 8, 8, 3))})
    graph = Graph.of([image, Node("scores", "Relu", (Edge("image"),), attrs={"T": DType.FLOAT})], ["image"], ["scores"])
    path = tmp_path / "model.pb"
    formats.save(graph, path)
    settings = Settings("reference", data=DIGIT, is_end_to_end=True, batch=4)
    opened, _, done = ask(settings, {"do": "warm_up", "calls": 0}, {"do": "run", "samples": 1}, path=path)
    assert opened["batch"] == 4
    assert done["parts"]["decode"] == [4.0]
    assert done["parts"]["infer"] == [1.0]


def test_calls_of_the_model_alone_have_no_parts() -> None:
    _, _, done = ask(Settings("reference", data=DIGIT), {"do": "warm_up", "calls": 0}, {"do": "run", "samples": 1})
    assert done["parts"] == {}


def test_copies_to_a_gpu_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"upload": 0.001, "infer": 0.002, "download": 0.005}
    monkeypatch.setattr(FunctionSession, "time_parts", lambda self, feeds, clock: seconds)
    _, _, done = ask(Settings("reference", data=DIGIT), {"do": "warm_up", "calls": 0}, {"do": "run", "samples": 2})
    assert done["parts"] == {name: [value, value] for name, value in seconds.items()}
    measurement = replace(
        make_measurement([0.008] * 4), part_seconds={name: tuple(part) for name, part in done["parts"].items()}
    )
    row = BenchmarkRow("model", "onnxruntime", measurement)
    text = str(Benchmark((row, replace(row, outcome=make_measurement([0.008] * 4)))))
    assert "copy to GPU ms" in text
    assert re.search(r"1\.000 \(12 %\) +2\.000 \(25 %\) +5\.000 \(62 %\)", text)
    assert "decode ms" not in text
    assert "in further calls" in text


def test_parts_are_in_the_report_and_the_json_form() -> None:
    result = benchmark(["digits"], "reference", data=DIGIT, end_to_end=True, runs=3, warmup=1, processes=1)
    (measurement,) = result.measurements
    assert measurement.context.is_end_to_end
    assert tuple(measurement.parts) == PARTS
    assert all(len(seconds) >= 3 for seconds in measurement.part_seconds.values())
    assert sum(fraction for _, fraction in measurement.parts.values()) == pytest.approx(1.0)
    assert Measurement.from_json(measurement.to_json()) == measurement
    assert "resize, normalize ms" in str(result)
    assert ">postprocess ms</th>" in result._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no data is given"),
        ({"data": DIGIT, "streams": 2}, "run one at a time"),
        ({"data": ARRAYS}, "holds no images"),
    ],
)
def test_wrong_use_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantkitError, match=message):
        benchmark(["digits"], "reference", end_to_end=True, runs=1, **options)


def test_the_command_takes_images(capsys: pytest.CaptureFixture[str]) -> None:
    main = import_module("quantkit.cli").main
    assert main(["benchmark", "digits@reference", "--end-to-end"]) == 2
    assert "--data IMAGES" in capsys.readouterr().err


def test_end_to_end_calls_are_not_compared_with_the_model_alone() -> None:
    model = make_measurement([0.01] * 20, 5, 5)
    with pytest.raises(UsageError, match="end-to-end"):
        Speedup.of(model, replace(model, context=replace(model.context, is_end_to_end=True)))


def test_the_digest_of_a_model_covers_weights_in_another_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from exported_models import write_exports

    write_exports(tmp_path)
    model, weights = tmp_path / "classifier.dynamo.onnx", tmp_path / "classifier.dynamo.onnx.data"
    before, num_bytes = digest(model)
    assert num_bytes == model.stat().st_size + weights.stat().st_size
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert digest(model)[0] != before
