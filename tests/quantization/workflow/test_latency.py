from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from measurements import make_latency

import quantkit as qk
from quantkit.benchmark import Benchmark
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.rounds import SamplingOptions
from quantkit.ir.text import from_text
from quantkit.progress import ignore_progress
from quantkit.quantization import Plan, Ranges, annotate
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.workflow import latency
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_files import ConvertedFiles, float_candidates
from quantkit.quantization.workflow.latency import _compare, _unclear_rows, dynamic_shapes
from quantkit.runtimes import REFERENCE, find_runtime


@pytest.mark.parametrize(
    ("milliseconds", "unclear"),
    [
        (
            {"float openvino": 1.0, "int8 openvino": 0.98, "float onnxruntime": 3.0, "int8 onnxruntime": 1.5},
            ["float openvino", "int8 openvino"],
        ),
        ({"float openvino": 1.0, "float litert": 3.0, "int8 litert": 0.98}, ["float openvino", "int8 litert"]),
        ({"float openvino": 1.0, "int8 openvino": 0.3}, []),
    ],
)
def test_further_processes_measure_the_rows_of_unclear_speedups(
    milliseconds: dict[str, float], unclear: list[str]
) -> None:
    rows = _unclear_rows(make_latency(milliseconds, spread=0.2))
    assert [f"{row.label} {row.runtime}" for row in rows] == unclear


@pytest.mark.parametrize(
    ("openvino", "processes", "num_compared"),
    [(0.3, 5, 1), (2.9, 5, 3), (0.3, 3, 1), (1.5, 3, 3), (1.5, 5, 1)],
)
def test_the_fastest_runtimes_end_the_comparison_of_all(openvino: float, processes: int, num_compared: int) -> None:
    milliseconds = {"float openvino": 3.0, "int8 openvino": openvino, "float litert": 3.0, "int8 litert": 2.98}
    result = make_latency(milliseconds, 0.2, processes).benchmark
    assert result is not None
    compared = _compare(result)
    assert len(compared) == num_compared
    assert all(each.is_clear for each in compared) == (num_compared == 1)


@pytest.mark.engine
def test_the_float_model_is_converted_once_for_each_format(tmp_path: Path) -> None:
    for name in ("openvino", "onnxruntime"):
        if not find_runtime(name).available().ok:
            pytest.skip(f"{name} is not installed")
    graph = qk.transform("digits", "inference").graph
    plan: Plan = annotate(graph, Scheme.for_target("tensorflow"))
    conversion = Conversion(graph, plan, Ranges({}))
    graph, required = conversion.graph, conversion.runtimes
    files = ConvertedFiles(graph, tmp_path, required)
    candidates = {each.settings.runtime: files.replace(each) for each in float_candidates(graph, tmp_path, required)}
    paths = {name: candidate.path.name for name, candidate in candidates.items()}
    assert paths["openvino"] == paths["onnxruntime"] == "converted.onnx"
    assert set(paths.values()) <= {"converted.onnx", "float.pb"}
    assert REFERENCE not in paths
    with qk.open_session(candidates["openvino"].path, "openvino") as session:
        assert [info.name for info in session.inputs] == [str(edge) for edge in graph.inputs]


@pytest.mark.parametrize(
    ("sizes", "shapes"),
    [("?x8x8x3", {}), ("<>", {}), ("?x?x?x3", {"x": (1, 8, 8, 3)}), ("<*>", {"x": (1, 8, 8, 3)})],
)
def test_dynamic_inputs_have_the_shape_of_a_sample(sizes: str, shapes: dict[str, tuple[int, ...]]) -> None:
    graph = from_text(f"inputs: x\noutputs: y\nx = Placeholder[{sizes}](dtype=float)\ny = Relu(x)")
    assert dynamic_shapes(graph, {"x": (1, 8, 8, 3)}) == shapes


def test_the_profile_has_the_shape_of_a_sample_and_the_processes_the_rest_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make_latency({f"float {REFERENCE}": 1.0, f"int8 {REFERENCE}": 3.0}).benchmark
    profiled, budgets = list[Candidate](), list[float]()

    def measure(candidates: Sequence[Candidate], options: SamplingOptions, *_: Any, **__: Any) -> Benchmark | None:
        budgets.append(options.further_budget)
        return result

    monkeypatch.setattr(latency, "measure", measure)
    monkeypatch.setattr(latency, "CALL_SECONDS", 20.0)
    monkeypatch.setattr(latency, "FURTHER_BUDGET", 10.0)
    monkeypatch.setattr(latency, "profile_candidates", lambda pair, **_: profiled.extend(pair))
    for name, label in (("float_candidates", "float"), ("_int8_candidates", "int8")):
        candidate = Candidate(label, tmp_path / "model.pb", Settings(runtime=REFERENCE))
        monkeypatch.setattr(latency, name, lambda *_, candidate=candidate: [candidate])
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[?x?x3](dtype=float)\ny = Relu(x)")
    conversion = Conversion(graph, annotate(graph, Scheme.for_target("tensorflow")), Ranges({}))
    for elapsed in (4.0, 60.0):
        latency.measure_latency(conversion, tmp_path, None, tmp_path, ignore_progress, {"x": (1, 8, 3)}, elapsed)
    assert [dict(each.settings.input_shapes) for each in profiled] == [{"x": (1, 8, 3)}] * 4
    assert budgets == [16.0, 10.0]
