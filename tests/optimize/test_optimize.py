"""`optimize` with scripted latencies: which file is chosen, the bound, budgets, interrupts, and the written file."""

import gc
import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from command_line import main
from scripted_search import int8_is_fast, script

import quantkit as qk
from quantkit.benchmark.results.report import Benchmark
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sampling.rounds import SamplingOptions
from quantkit.benchmark.statistics.student import MIN_PROCESSES
from quantkit.errors import InputError, QuantkitError, UnavailableError, UsageError
from quantkit.optimize import OptimizationInterrupted, search
from quantkit.optimize.drop import compute_alpha
from quantkit.quantization.precision.decision import COST, Decision
from quantkit.quantization.workflow import float_reference
from quantkit.quantization.workflow.conversion import Conversion

pytest.importorskip("onnx", reason="pip install onnx")
pytestmark = pytest.mark.engine
HELD_OUT = Path(__file__).parents[2] / "assets" / "digits_heldout.npz"
RUNTIMES = ("onnxruntime", "openvino")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of a few images with labels: the drops are scripted."""
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    with np.load(HELD_OUT) as arrays:
        np.savez(path, **{name: arrays[name][::4] for name in arrays.files})
    return path


def test_the_fastest_file_within_the_bound_is_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = script(monkeypatch, int8_is_fast)
    result = qk.optimize("digits", data, runtimes=RUNTIMES, output=tmp_path / "best")
    assert result.file == tmp_path / "best.onnx"
    assert result.answer.startswith("use best.onnx in OpenVINO with the default settings: 2.00 times as fast as ")
    assert "at most 0.0020" in result.answer
    assert qk.receipt(result.file).matches
    document = json.loads(json.dumps(result.to_json()))
    assert document["answer"] == result.answer == str(result).splitlines()[0]
    assert "speed-ups are ratios in the same rounds" in str(result)
    assert set(document["best"]["speedup"]) == {"value", "low", "high"}
    assert document["best"]["drop"]["high"] == 0.002
    assert document["candidates"]
    names = [each["name"] for each in document["front"]]
    assert document["best"]["name"] in names
    receipt = qk.receipt(result.file).receipt
    assert receipt is not None
    assert receipt["search"]["best"] == document["best"]["name"]
    assert receipt["search"]["runtime"] == document["best"]["runtime"] == "openvino"
    assert str(tmp_path) not in json.dumps(receipt)
    assert (
        len(checked) == len(set(checked)) >= 1
    )  # slower candidates than the best one within the bound are not checked
    assert len(checked) < len(result.choices)
    result.skipped[result.best.name] = "not shown to be faster than the default settings"
    assert result.best.name not in dict(result.reasons)
    with qk.open_session(result.file, "openvino") as session:
        assert len(session.run({session.inputs[0].name: np.zeros((1, 16, 16, 1), np.float32)})) == 1


def test_no_file_beyond_the_bound_is_used(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, int8_is_fast, drop=0.006)
    result = qk.optimize("digits", data, runtimes=["openvino"], max_drop=0.01)
    assert result.is_float
    assert result.answer.startswith("keep the float model: use digits.optimized.onnx in OpenVINO")
    assert any("int8" in name and "at most 0.0120" in reason for name, reason in result.reasons)


def test_a_candidate_within_the_bound_leaves_its_probability_of_an_error_to_the_next_one(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(candidate: Candidate) -> float:
        return int8_is_fast(candidate) / (2.0 if "bfloat16" in candidate.label else 1.0)

    checked, alphas = script(monkeypatch, seconds), list[float]()
    measure_drop = search.FileSearch._measure_drop

    def measure(self: search.FileSearch, candidate: Candidate, alpha: float) -> Any:
        alphas.append(alpha)
        return measure_drop(self, candidate, alpha)

    monkeypatch.setattr(search.FileSearch, "_measure_drop", measure)
    monkeypatch.setattr(search, "_has_arithmetic", lambda _: True)
    qk.optimize("digits", data, runtimes=["openvino"])
    assert checked[0] == "float32, bfloat16 in OpenVINO"
    assert alphas[:2] == [compute_alpha([]), compute_alpha([True])]


def test_the_reason_against_a_faster_median_is_its_interval(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The float model is kept although the median latency of an int8 file is lower."""
    script(monkeypatch, int8_is_fast)
    result = qk.optimize("digits", data, runtimes=["openvino"])
    assert result.best.speedup is not None
    uncertain = replace(result.best, speedup=replace(result.best.speedup, low=0.8, high=3.1))
    float_result = replace(result, best=result.baseline, choices=(uncertain, result.baseline))
    claim = "2.00 times as fast as the float model"
    reason = dict(float_result.reasons)[uncertain.name]
    assert reason == f"{claim}, which is not shown in new processes (0.80 to 3.10)"
    for speedup in (None, replace(result.best.speedup, processes=2)):
        unmeasured = replace(float_result, choices=(replace(uncertain, speedup=speedup), result.baseline))
        assert dict(unmeasured.reasons)[uncertain.name] == f"{claim} in too few processes"


def test_the_last_measurement_has_enough_processes_to_show_a_speed_up(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the time budget, only the number of further processes is limited."""
    script(monkeypatch, int8_is_fast)
    measure, last = search.measure, list[SamplingOptions]()

    def measure_late(candidates: Sequence[Candidate], options: SamplingOptions, **rest: Any) -> Benchmark:
        last.append(options)
        return measure(candidates, options, **rest)

    monkeypatch.setattr(search, "measure", measure_late)
    monkeypatch.setattr(search.FileSearch, "remaining", property(lambda self: 1.0))
    assert not qk.optimize("digits", data, runtimes=["openvino"]).is_float
    assert last[-1].min_processes >= MIN_PROCESSES
    assert last[-1].time_budget == search.COMPARISON_SECONDS
    assert last[-1].further_budget == max(search.LAST_SECONDS, 1.0)


def test_a_slow_int8_file_is_not_used(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = script(monkeypatch, lambda candidate: 1.0 if candidate.label == "float32" else 1.2)
    result = qk.optimize("digits", data, runtimes=["onnxruntime"])
    assert result.is_float
    assert checked == []


def test_the_fastest_int8_file_is_built_again_with_its_slow_layers_in_float(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda each: int8_is_fast(each) * (0.8 if "slow layers" in each.label else 1))
    slow: list[str] = []

    def find(conversion: Conversion, samples: object, runtime: str, seconds: float) -> list[Conversion]:
        assert runtime == "openvino"
        assert seconds < 0.6 * 600
        slow.append(conversion.plan.patterns[0].layer)
        if len(slow) == 1:
            raise KeyboardInterrupt
        return [conversion.decide({slow[0]: Decision(slow[0], "float", "it is slow", COST)})]

    monkeypatch.setattr(search, "find_faster_alternatives", find)
    arguments: dict[str, Any] = {"runtimes": ["openvino"], "resume": tmp_path / "state.json"}
    with pytest.raises(OptimizationInterrupted):
        qk.optimize("digits", data, output=tmp_path / "best.onnx", **arguments)
    result = qk.optimize("digits", data, output=tmp_path / "best.onnx", **arguments)
    assert result.best.name == "int8 for OpenVINO, slow layers in float in OpenVINO"
    graph = qk.load(result.file).graph
    assert "QuantizeLinear" not in {graph[edge.node].op for edge in graph[slow[0]].inputs}
    checked = qk.receipt(result.file)
    assert checked.matches
    assert checked.receipt is not None
    assert checked.receipt["accuracy"] is None
    again = qk.optimize("digits", data, output=tmp_path / "best.onnx", **arguments)
    assert again.best.name == result.best.name
    assert len(slow) == 2, "the built file was kept"


def test_slow_layers_are_looked_for_once_with_one_quantization_in_memory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, int8_is_fast, is_shared=False)
    quantize, results, calls = search.quantize, list[weakref.ref[Any]](), list[int]()

    def build(*args: Any, **options: Any) -> Any:
        gc.collect()
        assert sum(each() is not None for each in results) <= 1
        result = quantize(*args, **options)
        results.append(weakref.ref(result))
        return result

    def find(*_: object) -> list[Conversion]:
        gc.collect()
        calls.append(sum(each() is not None for each in results))
        return []

    monkeypatch.setattr(search, "quantize", build)
    monkeypatch.setattr(search, "find_faster_alternatives", find)
    arguments: dict[str, Any] = {"runtimes": RUNTIMES, "resume": tmp_path / "state.json"}
    result = qk.optimize("digits", data, **arguments)
    assert "no other choice of float layers is predicted to save time" in dict(result.reasons).values()
    qk.optimize("digits", data, **arguments)
    assert len(results) == 3
    assert calls == [1]


def test_profiles_that_exceed_the_time_budget_are_repeated_by_the_next_call(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, int8_is_fast)
    delays = [0.0]

    def find(conversion: Conversion, samples: object, runtime: str, seconds: float) -> list[Conversion]:
        delays.append(seconds)
        raise UnavailableError("the process did not respond", hint="")

    monkeypatch.setattr(search, "monotonic", lambda: monotonic() + delays[-1])
    monkeypatch.setattr(search, "find_faster_alternatives", find)
    for number in (1, 2):
        result = qk.optimize("digits", data, runtimes=["openvino"], resume=tmp_path / "state.json")
        assert result.skipped["int8 for OpenVINO, slow layers in float"] == "time budget exhausted"
        assert len(delays) == 2 * number
        delays.append(0.0)


def test_runtimes_that_cannot_catch_up_are_not_tried(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, lambda each: int8_is_fast(each) * (9 if each.settings.runtime == "onnxruntime" else 1))
    result = qk.optimize("digits", data, runtimes=RUNTIMES)
    assert "at most 4 times" in result.skipped["int8 for ONNX Runtime"]


def test_a_broken_runtime_is_not_a_candidate(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, lambda each: np.inf if each.settings.runtime == "openvino" else int8_is_fast(each))
    result = qk.optimize("digits", data, runtimes=RUNTIMES)
    assert result.best.candidate.settings.runtime == "onnxruntime"
    script(monkeypatch, lambda _: np.inf)
    with pytest.raises(QuantkitError, match="no runtime runs the float model: it is broken"):
        qk.optimize("digits", data, runtimes=RUNTIMES)


def test_any_budget_gives_a_result(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, int8_is_fast, is_shared=False)
    result = qk.optimize("digits", data, runtimes=["openvino"], time_budget=0.01, output=tmp_path / "m.onnx")
    assert result.is_float
    assert result.file.exists()
    assert "time budget" in " ".join(result.skipped.values())


@pytest.mark.parametrize("step", ["_check_drops", "_finals", "_measure_again"])
def test_an_interrupt_keeps_the_best_so_far_and_resumes(
    data: Path, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, int8_is_fast)
    quantize, built = search.quantize, list[Any]()

    def build(*args: Any, **options: Any) -> Any:
        built.append(1)
        return quantize(*args, **options)

    monkeypatch.setattr(search, "quantize", build)
    arguments: dict[str, Any] = {"runtimes": ["openvino"], "resume": tmp_path / "state.json"}
    with monkeypatch.context() as patch:
        calls = list[Any]()
        original = getattr(search.FileSearch, step)

        def interrupt(*args: Any) -> Any:
            calls.append(1)
            if step == "_check_drops" and len(calls) == 1:
                return original(*args)
            raise KeyboardInterrupt

        patch.setattr(search.FileSearch, step, interrupt)
        with pytest.raises(OptimizationInterrupted) as error:
            qk.optimize("digits", data, output=tmp_path / "m", **arguments)
    partial = error.value.optimization
    assert not partial.is_complete
    assert qk.receipt(tmp_path / "m.onnx").matches
    assert ("int8" in partial.best.name) == (step != "_check_drops")
    assert len(built) == 1
    result = qk.optimize("digits", data, output=tmp_path / "m", **arguments)
    assert result.is_complete
    assert "int8" in result.best.name
    # The file of the interrupted search is used: only its slow layers were not known yet.
    assert len(built) == (2 if step == "_check_drops" else 1)
    with pytest.raises(UsageError, match="another model"):
        qk.optimize("digits", data, max_drop=0.2, **arguments)


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "quantkit.optimize_state/1"}', "no JSON"])
def test_a_broken_state_is_an_input_error(data: Path, text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(InputError, match=r"state\.json"):
        qk.optimize("digits", data, runtimes=["onnxruntime"], resume=tmp_path / "state.json")


def test_a_state_cannot_name_files_of_other_folders(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, int8_is_fast)
    state = tmp_path / "state.json"
    qk.optimize("digits", data, runtimes=["openvino"], resume=state)
    document = json.loads(state.read_text())
    outside = tmp_path / "outside.onnx"
    outside.write_bytes(b"secret")
    for form in document["forms"]:
        form["file"] = "../outside.onnx"
    state.write_text(json.dumps(document))
    result = qk.optimize("digits", data, runtimes=["openvino"], resume=state)
    assert result.file.read_bytes() != b"secret"


def test_fixed_sizes_are_candidates_of_dynamic_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import save
    from varying_sizes import CONSTANTS, FLOAT, IMAGES, STEM, make_model

    model = tmp_path / "dynamic.onnx"
    save(make_model(STEM, [("x", FLOAT, ["n", 3, 16, 16])], [("r", FLOAT, None)], CONSTANTS), model)
    np.savez(tmp_path / "data.npz", x=IMAGES)
    script(monkeypatch, lambda each: int8_is_fast(each) * (0.5 if "fixed" in each.label else 1))
    result = qk.optimize(model, tmp_path / "data.npz", runtimes=["openvino"], task="regression")
    assert result.best.name.endswith("fixed sizes in OpenVINO")
    graph = qk.load(result.file).graph
    assert str(graph[graph.inputs[0].node].attrs["shape"]) == "1x3x16x16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "m.keras"}, "cannot write"),
        ({"output": "m.engine", "runtimes": "onnxruntime"}, r"cannot write m\.engine"),
        ({"output": "m.pt"}, r"cannot write m\.pt"),
        ({"precisions": ["int4"]}, "int4"),
        ({"precisions": []}, "no precision"),
        ({"runtimes": ["nonsense"]}, "nonsense"),
        ({"objective": "beauty"}, "beauty"),
        ({"max_drop": 2}, "max_drop"),
    ],
)
def test_wrong_arguments_are_usage_errors(data: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        qk.optimize("digits", data, **options)


def test_too_few_samples_cannot_be_checked() -> None:
    with pytest.raises(UsageError, match="at least 2 each"):
        qk.optimize("digits", np.zeros((2, 16, 16, 1), np.float32))


def test_the_command_writes_the_same_bytes_and_a_page(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(monkeypatch, int8_is_fast)
    monkeypatch.chdir(tmp_path)
    arguments = ["optimize", "digits", "-o", "a.onnx", "--data", str(data), "--runtimes", "openvino"]
    assert main([*arguments, "--json", "--html", "page.html"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "quantkit.optimize/1"
    page = (tmp_path / "page.html").read_text()
    use, _, proof = document["answer"].partition(": ")
    assert f"<h1>U{use[1:]}</h1>" in page
    assert proof in page
    assert "Speed-ups are ratios in the same rounds" in page
    assert f"<pre>{document['python']}</pre>".replace("'", "&#x27;") in page  # lines that can be copied
    qk.optimize("digits", data, runtimes="openvino", output="b.onnx")
    assert qk.receipt("a.onnx").matches
    first, second = (qk.load(tmp_path / name).graph for name in ("a.onnx", "b.onnx"))
    assert first.nodes == second.nodes


def test_a_search_is_repeated_from_a_receipt(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, int8_is_fast)
    first = qk.optimize("digits", data, runtimes=["openvino"], max_drop=0.02, seed=7, output=tmp_path / "first.onnx")
    again = qk.optimize("digits", data, from_receipt=first.file, output=tmp_path / "again.onnx")
    assert again.goal == first.goal
    assert again.best.name == first.best.name
    assert qk.load(again.file).graph.nodes == qk.load(first.file).graph.nodes
    other = qk.optimize("digits", data, from_receipt=first.file, seed=8)
    assert (other.goal.seed, other.goal.max_drop) == (8, 0.02)
    qk.quantize("digits", data, runs=0, limit=8, output=tmp_path / "other.onnx")
    with pytest.raises(InputError, match="no search"):
        qk.optimize("digits", data, from_receipt=tmp_path / "other.onnx")


def test_a_server_limits_the_runtimes_and_gets_a_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda each: int8_is_fast(each) * (0.1 if each.settings.runtime == "onnxruntime" else 1))
    arguments: dict[str, Any] = {"deploy": tmp_path / "served", "server": "openvino-model-server"}
    result = qk.optimize("digits", data, runtimes=RUNTIMES, **arguments)
    assert result.best.candidate.settings.runtime == "openvino"
    assert (tmp_path / "served" / "models" / "config.json").exists()
    assert qk.receipt(next((tmp_path / "served").rglob("model.onnx"))).matches
    with pytest.raises(UsageError, match="served"):
        qk.optimize("digits", data, **arguments)  # the folder has files
    with pytest.raises(UsageError, match="is not a server"):
        qk.optimize("digits", data, server="tritton")


def test_a_float_file_states_the_preprocessing_and_the_labels(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, lambda each: 1.0 if "float32" in each.label else 9.0)
    messages: list[str] = []
    (tmp_path / "labels.txt").write_text("\n".join(f"digit {number}" for number in range(10)))
    qk.save(qk.load("digits", inputs=["Mul"], outputs=["softmax"]), tmp_path / "own.onnx")
    result = qk.optimize(
        tmp_path / "own.onnx",
        data,
        runtimes=RUNTIMES,
        input_mean=100,
        input_std=50,
        labels=tmp_path / "labels.txt",
        on_message=messages.append,
    )
    assert messages == ["preprocessing of images: 16 x 16 x 1, (x - 100) / 50, as stated"]
    assert result.best.candidate.label.startswith("float32")
    model = qk.load(result.save(tmp_path / "best"))
    assert model.stated_preprocessing is not None
    assert (model.stated_preprocessing.mean, model.stated_preprocessing.std) == (100, 50)
    assert model.stated_labels.name(3) == "digit 3"
    document = json.loads((result.deploy(tmp_path / "served") / "deployment.json").read_text())
    assert '"mean": 100' in json.dumps(document)


def test_the_smallest_file_is_an_objective(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, int8_is_fast)
    result = qk.optimize("digits", data, runtimes=RUNTIMES, objective="size")
    sizes = [each.form.num_bytes for each in result.choices]
    assert result.best.form.num_bytes == min(sizes)


def test_the_output_cannot_overwrite_the_model_by_its_added_suffix(data: Path, tmp_path: Path) -> None:
    qk.save("digits", tmp_path / "graph.onnx")
    content = (tmp_path / "graph.onnx").read_bytes()
    for options in ({"output": tmp_path / "graph"}, {"resume": tmp_path / "graph.onnx"}):
        with pytest.raises(UsageError, match=r"graph\.onnx"):
            qk.optimize(tmp_path / "graph.onnx", data, **options)
    assert (tmp_path / "graph.onnx").read_bytes() == content


def test_float32_is_not_used_where_it_is_not_allowed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, lambda candidate: 1.0 if candidate.label == "float32" else 1.2)
    result = qk.optimize("digits", data, runtimes=["openvino"], precisions="int8")
    assert result.best.form.precision == "int8"
    script(monkeypatch, int8_is_fast, drop=0.1)
    with pytest.raises(UsageError, match="no file in int8 is within the bound"):
        qk.optimize("digits", data, runtimes=["openvino"], precisions="int8")


@pytest.mark.parametrize("max_drop", [0, 1])
def test_extreme_bounds_have_a_report(data: Path, max_drop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, int8_is_fast)
    result = qk.optimize("digits", data, runtimes=["openvino"], max_drop=max_drop)
    assert str(result).startswith(result.answer)
    assert result.is_float == (max_drop == 0)


def test_another_process_resumes_a_search_with_a_task(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, int8_is_fast)
    state = tmp_path / "state.json"
    with np.load(data) as arrays:
        images = arrays["images"].astype(np.float32)
    options: dict[str, Any] = {"runtimes": ["openvino"], "task": "embedding", "resume": state}
    qk.optimize("digits", images, **options)
    key = json.loads(state.read_text())["key"]
    qk.optimize("digits", images.copy(), **options)
    assert json.loads(state.read_text())["key"] == key
    changed = images.copy()
    changed[40, 8, 8] += 1
    with pytest.raises(UsageError, match="other data"):
        qk.optimize("digits", changed, **options)


def test_failures_are_reasons(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, lambda each: np.inf if "int8" in each.label else int8_is_fast(each))
    result = qk.optimize("digits", data, runtimes=["openvino"])
    assert any("int8" in name and reason == "it is broken" for name, reason in result.reasons)


def test_large_samples_that_are_not_cached_are_searched(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, int8_is_fast)
    monkeypatch.setattr(float_reference, "CACHE_BYTES", 0)
    assert "int8" in qk.optimize("digits", data, runtimes=["openvino"]).best.name
