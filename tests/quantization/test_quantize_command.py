import json
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.errors import GraphError
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.formats import load
from quantkit.ir.tensor import DType
from quantkit.quantization import Plan, Ranges, Scheme
from quantkit.zoo import find_card

(ENTRY,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit"]
main = ENTRY.load()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "pictures.npy"
    np.save(path, np.random.default_rng(0).uniform(-1, 1, (12, 16, 16, 1)).astype(np.float32))
    return path


def quantized(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(["quantize", "digits", *words, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    document: dict[str, Any] = json.loads(captured.out)
    return document


@pytest.mark.engine
@pytest.mark.parametrize(("target", "name"), [("onnx", "d.onnx"), ("tensorflow", "d.pb"), ("eightbit", "d.pb")])
def test_every_target_keeps_the_answers(
    target: str, name: str, tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / name
    words = ["-o", str(output), "--calibration", str(pictures), "--target", target, "--runs", "0"]
    document = quantized(words, capsys)
    assert document["schema"] == "quantkit.quantize/1"
    assert document["ops"]["Conv2D"] == {"8 bits": 20, "float": 0}
    assert [one["op"] for one in document["left_overs"]][-1] == "Softmax" or target == "tensorflow"
    assert document["float_multiply_adds"] == 0
    assert document["calibration"]["pictures"] == 12
    assert document["quality"]["agreement"]["value"] >= 0.75
    assert document["num_bytes"] == output.stat().st_size < document["float_num_bytes"]
    assert document["not_measured"] == "--runs is 0"
    assert not list(tmp_path.glob("*.calibration")), "the state is gone"


@pytest.mark.engine
@pytest.mark.parametrize(("target", "name"), [("onnx", "d.onnx"), ("tensorflow", "d.pb")])
def test_the_result_takes_pixels_where_asked_to(
    target: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = find_card("digits")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 1), np.uint8)
    documents = {}
    for kind, rows in (
        ("pixels", pixels),
        ("numbers", (pixels.astype(np.float32) - card.preprocessing.mean) / card.preprocessing.std),
    ):
        np.save(tmp_path / f"{kind}.npy", rows)
        words = ["-o", str(tmp_path / name), "--calibration", str(tmp_path / f"{kind}.npy"), "--target", target]
        documents[kind] = quantized([*words, "--pixels", "--runs", "0"], capsys)
        graph = load(tmp_path / name)
        assert graph[graph.inputs[0].node].attrs["dtype"] is DType.UINT8
    assert documents["pixels"]["quality"] == documents["numbers"]["quality"]
    assert documents["pixels"]["quality"]["agreement"]["value"] >= 0.75


@pytest.mark.engine
def test_numbers_that_were_no_pixels_are_refused(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "d.onnx"
    code = main(["quantize", "digits", "-o", str(output), "--calibration", str(pictures), "--pixels"])
    assert code == 2
    assert "takes uint8 and the data is float32" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.engine
def test_ranges_are_used_again_without_data(tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranges, plan = tmp_path / "ranges.json", tmp_path / "plan.json"
    first = ["-o", str(tmp_path / "a.onnx"), "--calibration", str(pictures), "--runs", "0"]
    quantized([*first, "--save-ranges", str(ranges), "--save-plan", str(plan)], capsys)
    assert Ranges.load(ranges).provenance.count == 12
    assert Plan.load(plan).scheme == Scheme()
    again = ["--ranges", str(ranges), "--runs", "0"]
    document = quantized(["-o", str(tmp_path / "b.onnx"), *again], capsys)
    assert document["quality"] is None
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    quantized(["-o", str(tmp_path / "c.onnx"), *again, "--plan", str(plan)], capsys)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()
    assert (
        main(["quantize", "digits", "-o", str(tmp_path / "c.onnx"), *again, "--plan", str(plan), "--reduce-range"]) == 2
    )
    assert "--reduce-range decides anew what --plan has decided" in capsys.readouterr().err
    plan.write_text(plan.read_text().replace('"conv/Conv2D"', '"conv/Conv3D"'))
    assert main(["quantize", "digits", "-o", str(tmp_path / "c.onnx"), *again, "--plan", str(plan)]) == 3
    assert "the plan speaks of 'conv/Conv3D', which is not in the graph" in capsys.readouterr().err


@pytest.mark.engine
def test_the_verdict_measures_against_float(tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "d.onnx"
    held_out = tmp_path / "held_out.npy"
    np.save(held_out, np.load(pictures)[:5])
    words = ["-o", str(output), "--calibration", str(pictures), "--held-out", str(held_out), "--runs", "4"]
    assert main(["quantize", "digits", *words, "--scheme", _scheme(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "100.0 % of the multiply-adds are 8 bits" not in text
    assert "float: conv/Conv2D (Conv2D" in text
    assert "the scheme keeps it in float" in text
    assert "on 5 pictures of" in text
    assert "in openvino" in text


def _scheme(folder: Path) -> str:
    Scheme(keep_float=("conv/Conv2D",), observer="min_max").save(folder / "scheme.toml")
    return str(folder / "scheme.toml")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-o", "d.onnx"], 2, "no pictures to calibrate with"),
        (["-o", "d.onnx", "--weights-only", "--calibration", "p"], 2, "--calibration is about ranges"),
        (["-o", "d.onnx", "--weights-only", "--max-drop", "0.1"], 2, "--max-drop is about ranges"),
        (["-o", "d.onnx", "--ranges", "r", "--calibration", "p"], 2, "both say where ranges come from"),
        (["-o", "d.tflite", "--target", "litert", "--reduce-range", "--calibration", "p"], 2, "--reduce-range is for"),
        (["-o", "d.pb", "--calibration", "p", "--target", "onnx"], 2, "d.pb can not hold the target onnx"),
        (["-o", "d.tflite", "--calibration", "p"], 2, "in .onnx, or give --target litert"),
        (["-o", "d.onnx", "--calibration", "nowhere"], 3, "nowhere does not exist"),
        (["-o", "d.onnx", "--calibration", "p", "--observer", "entropi"], 2, "'entropi' is not an observer"),
        (["-o", "d.onnx", "--calibration", "p", "--observer", "percentile(9"], 2, "did you mean 'percentile'?"),
    ],
)
def test_mistakes_are_said_before_any_work(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "digits", *words]) == code
    assert message in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.parametrize(
    ("flags", "target", "half"),
    [
        ("avx2 avx512bw", "onnx", True),
        ("avx2 avx512bw", "tensorflow", True),
        ("avx2 avx512bw", "eightbit", False),
        ("avx2 avx512bw avx512_vnni", "onnx", False),
        ("avx2 avx_vnni", "tensorflow", False),
        ("", "onnx", False),
    ],
)
def test_weights_take_seven_bits_where_the_processor_saturates(
    flags: str,
    target: str,
    half: bool,
    tmp_path: Path,
    pictures: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choosing = import_module("quantkit.cli._scheme")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: old\nflags\t\t: fpu {flags}\n\n")
    machine = import_module("quantkit.benchmark.machine").this_machine(tmp_path)
    monkeypatch.setattr(choosing, "this_machine", lambda: machine)
    output = tmp_path / ("d.onnx" if target == "onnx" else "d.pb")
    words = ["-o", str(output), "--calibration", str(pictures), "--runs", "0", "--target", target]
    assert main(["quantize", "digits", *words, "--runtime", "reference", "--json", "--limit", "2"]) == 0
    captured = capsys.readouterr()
    assert ("weights take 7 bits" in captured.err) == half
    assert ("reduce_range" in json.loads(captured.out)["scheme"]["weights"]) == half
    codes = [
        node.value.array
        for node in load(output).nodes.values()
        if node.is_constant and node.value.dtype in (DType.INT8, DType.QINT8) and len(node.value.shape) == 4
    ]
    largest = max((int(np.abs(array.astype(int)).max()) for array in codes), default=0)
    assert largest == (63 if half else 127 if target != "eightbit" else 0)


@pytest.mark.engine
def test_what_is_in_8_bits_already_is_not_quantized_again(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--calibration", str(pictures), "--runs", "0", "--runtime", "reference", "--limit", "2", "--target"]
    for target, name in (("onnx", "d.onnx"), ("tensorflow", "d.pb")):
        first, second = str(tmp_path / name), str(tmp_path / f"again_{name}")
        assert main(["quantize", "digits", "-o", first, *words, target]) == 0
        assert main(["quantize", first, "-o", second, *words, target]) == 2
        assert f"{name} is in 8 bits already\nhint: " in capsys.readouterr().err


def test_the_classic_ops_are_told_to_be_slow(tmp_path: Path) -> None:
    words = import_module("quantkit.cli._verdict")
    comparison = import_module("quantkit.benchmark.comparison").Comparison(0.2, 0.19, 0.21, True)
    plan = Plan(Scheme.for_target("eightbit"), {}, {}, (), (), (), {}, ())
    counted = import_module("quantkit.quantization.census").Census({}, 0, (), 1, 0, 1)
    verdict = words.Verdict("digits", tmp_path / "d.pb", plan, Ranges({}), counted, speed=comparison)
    reason, command_line = verdict.next_step
    assert "reference kernels" in reason
    assert "--target tensorflow" in command_line


def test_the_written_graph_loads(tmp_path: Path, pictures: Path) -> None:
    output = tmp_path / "d.onnx"
    words = ["-o", str(output), "--calibration", str(pictures), "--runs", "0", "-q", "--runtime", "reference"]
    assert main(["quantize", "digits", *words]) == 0
    assert load(output).op_counts["QuantizeLinear"] > 20


@pytest.mark.engine
def test_layers_stay_float_until_the_drop_is_small(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = import_module("quantkit.cli._fallback")
    wanted = "conv/Conv2D"

    def quality(file: Path, *rest: Any) -> Any:
        graph = load(file)
        (first,) = [node for node in graph.nodes.values() if node.op == "Conv" and node.name.split("/")[0] == "conv"]
        is_right = graph[first.inputs[1].node].op != "DequantizeLinear"
        return ClassificationMetrics(10, None, None, Proportion(10 if is_right else 4, 10), 0.1), None

    monkeypatch.setattr(search, "quality_of", quality)
    output = tmp_path / "d.onnx"
    words = ["-o", str(output), "--calibration", str(pictures), "--runs", "0", "--max-drop", "0.05"]
    plan = tmp_path / "plan.json"
    document = quantized([*words, "--save-plan", str(plan)], capsys)
    assert document["fallback"]["keep_float"] == [wanted]
    (left,) = [one for one in document["left_overs"] if one["name"] == wanted]
    assert "--max-drop" in left["reason"]
    assert Plan.load(plan).float_fallbacks[wanted] == left["reason"]
    plan.unlink()
    assert document["ops"]["Conv2D"] == {"8 bits": 19, "float": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["d.onnx"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("target", "name"), [("onnx", "d.onnx"), ("tensorflow", "d.pb"), ("eightbit", "d.pb"), ("litert", "d.tflite")]
)
def test_weights_alone_need_no_pictures(
    target: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / name
    held_out = str(Path(__file__).parents[2] / "assets" / "digits_heldout.npz")
    words = ["-o", str(output), "--weights-only", "--target", target, "--runs", "0", "--held-out", held_out]
    document = quantized(words, capsys)
    assert document["scheme"]["weights_only"]
    assert document["weights"] == 21
    assert document["left_overs"] == []
    assert document["quality"]["agreement"]["value"] >= 0.99
    assert output.stat().st_size < document["float_num_bytes"] / 2
    assert main(["quantize", "digits", *words, "-q"]) == 0
    assert "weights in 8 bits: 21 constants" in capsys.readouterr().out


def _verdict(tmp_path: Path, target: str = "onnx", **fields: Any) -> Any:
    words = import_module("quantkit.cli._verdict")
    plan = Plan(Scheme.for_target(target), {}, {}, (), (), (), {}, ())
    counted = import_module("quantkit.quantization.census").Census({}, 0, (), 1, 0, 1)
    return words.Verdict("digits", tmp_path / "d.onnx", plan, Ranges({}), counted, **fields)


@pytest.mark.parametrize("isa", [(), ("avx512_bf16",), ("avx512_bf16", "amx_bf16")])
def test_bfloat16_is_suggested_where_the_machine_has_it(
    isa: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = import_module("quantkit.cli._verdict")
    machine = import_module("quantkit.benchmark.machine").this_machine()
    monkeypatch.setattr(words, "this_machine", lambda: replace(machine, isa=isa))
    slow = import_module("quantkit.benchmark.comparison").Comparison(0.9, 0.8, 0.95, True)
    reason, command = _verdict(tmp_path, speed=slow).next_step
    assert ("bfloat16" in reason and command.endswith("--precision float32,bfloat16")) == bool(isa)
    assert ("not measured" in reason) == bool(isa)
    assert "amx_bf16" not in isa or "(amx_bf16)" in reason
    assert "bfloat16" not in _verdict(tmp_path, "litert", speed=slow).next_step[0]
    few = ClassificationMetrics(100, None, None, Proportion(70, 100), 0.1)
    doubt, command = _verdict(tmp_path, quality=few).quality_step
    assert ("bfloat16" in doubt and "quantkit evaluate" in command) == bool(isa)
    # Without such arithmetic, float layers are what is left; what was searched once is not searched again.
    assert isa or "--max-drop 0.01" in command
    assert "--max-drop" in _verdict(tmp_path, "litert", quality=few).quality_step[1]
    most = ClassificationMetrics(100, None, None, Proportion(99, 100), 0.1)
    assert _verdict(tmp_path, quality=most).quality_step == ("", "")


def _after(words: list[str]) -> Any:
    parser = import_module("quantkit.cli._app").Parser()
    import_module("quantkit.cli.quantize").add_arguments(parser)
    args = parser.parse_args(["model.pb", "-o", "out.pb", *words])
    return import_module("quantkit.cli._next").Next.after(args, args.model, Path(args.output))


def test_the_next_command_names_what_this_one_was_given() -> None:
    given = ["--inputs", "a,b", "--input-mean", "0", "--limit", "30"]
    after = _after(["--calibration", "my pictures", *given])
    assert after.fused() == (
        "quantkit quantize model.pb -o out_tensorflow.pb --target tensorflow --calibration 'my pictures' --limit 30 "
        "--inputs a,b --input-mean 0.0"
    )
    assert after.evaluate("onnxruntime") == (
        "quantkit evaluate model.pb@onnxruntime --reference model.pb --data 'my pictures' --input-mean 0.0"
    )
    assert "--ranges r.json" in _after(["--ranges", "r.json"]).quantize("onnx")
    assert _after(["--weights-only", "--held-out", "others"]).pictures == "others"
    assert "--calibration PICTURES" in _after(["--weights-only"]).quantize("onnx")


@pytest.mark.engine
@pytest.mark.parametrize(("kept", "said"), [(64, "on 12 calibration pictures"), (4, "on 4 of the 12 calibration")])
def test_the_verdict_says_which_pictures_judge(
    kept: int,
    said: str,
    tmp_path: Path,
    pictures: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("_answers", "_calibration"):
        monkeypatch.setattr(import_module(f"quantkit.cli.{module}"), "KEPT_BYTES", kept * 16 * 16 * 4)
    words = ["quantize", "digits", "-o", str(tmp_path / "d.pb"), "--target", "eightbit", "--runs", "0"]
    assert main([*words, "--calibration", str(pictures), "--runtime", "reference"]) == 0
    shown = capsys.readouterr().out
    assert said in shown
    assert ("as many as 0 MB hold" in shown) == (kept == 4)


@pytest.mark.engine
def test_where_the_first_engine_refuses_the_next_one_judges(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = import_module("quantkit.cli._judging")
    opened = judging.open_session
    refused = ["openvino"]

    def refusing(model: Any, runtime: str, *rest: Any) -> Any:
        if runtime in refused:
            raise GraphError(f"{runtime} can not read it")
        return opened(model, runtime, *rest)

    monkeypatch.setattr(judging, "open_session", refusing)
    words = ["-o", str(tmp_path / "d.onnx"), "--calibration", str(pictures), "--runs", "0"]
    document = quantized(words, capsys)
    assert document["engine"]["name"] == "onnxruntime"
    assert document["refusals"] == ["openvino can not read it"]
    assert document["quality"]["samples"] == 12
    refused.append("onnxruntime")
    assert main(["quantize", "digits", *words]) == 0
    shown = capsys.readouterr().out
    assert "careful: openvino can not read it" in shown
    assert "answers not compared with float: no engine here runs it" in shown
    assert main(["quantize", "digits", *words, "--max-drop", "0.01"]) == 3
    assert "openvino can not read it" in capsys.readouterr().err


def test_an_interrupted_search_says_where_it_goes_on(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = import_module("quantkit.cli._fallback")
    measured: list[Path] = []

    def quality(file: Path, *rest: Any) -> Any:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(file)
        return ClassificationMetrics(10, None, None, Proportion(4, 10), 0.1), None

    monkeypatch.setattr(search, "quality_of", quality)
    words = ["quantize", "digits", "-o", str(tmp_path / "d.pb"), "--target", "eightbit", "--runtime", "reference"]
    words += ["--calibration", str(pictures), "--runs", "0", "--max-drop", "0.05"]
    assert main(words) == 130
    (state,) = tmp_path.glob("*.fallback")
    assert f"{state} keeps what was measured" in capsys.readouterr().err
    assert main(words) == 130
    assert f"going on from what {state} keeps" in capsys.readouterr().err


@pytest.mark.engine
def test_an_interrupted_calibration_says_where_it_goes_on(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = import_module("quantkit.cli._answers").Answers
    take, taken = answers.take, []

    def interrupted(self: Any, *rest: Any) -> Any:
        taken.append(rest)
        if len(taken) == 5:
            raise KeyboardInterrupt
        return take(self, *rest)

    monkeypatch.setattr(answers, "take", interrupted)
    words = ["quantize", "digits", "-o", str(tmp_path / "d.pb"), "--target", "eightbit", "--runtime", "reference"]
    words += ["--calibration", str(pictures), "--runs", "0"]
    assert main(words) == 130
    (state,) = tmp_path.glob("*.calibration")
    assert f"{state} keeps what was observed" in capsys.readouterr().err
    monkeypatch.setattr(answers, "take", take)
    assert main(words) == 0
    captured = capsys.readouterr()
    assert f"going on from what {state} keeps" in captured.err
    assert "of the 12 calibration pictures (those after the interruption)" in captured.out
