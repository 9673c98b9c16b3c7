from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit.runtimes
from quantkit import formats
from quantkit.errors import GraphError, InputError, UnavailableError, UsageError
from quantkit.formats.metadata import with_metadata
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.registry import Registry
from quantkit.runtimes import find_runtime, observing_runtime, open_session, runtimes
from quantkit.runtimes.availability import Availability, require
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.runtime import Runtime
from quantkit.runtimes.session import RuntimeVersion, Session, SessionOptions, TensorInfo

GRAPH = Graph.of([])


def fake(name: str, problem: Exception | None = None, *, priority: int = 0, **fields: Any) -> Runtime:
    """Return a runtime that opens every TensorFlow graph, or raises ``problem``."""

    def open_model(model: Graph | Path, options: SessionOptions) -> Session:
        if problem:
            raise problem
        return FunctionSession(RuntimeVersion(name, "1.0", str(options)), (), (), lambda arrays: [])

    return Runtime(
        name=name,
        title=name.title(),
        available=lambda: Availability.yes("1.0"),
        open_model=open_model,
        dialects=("tensorflow",),
        priority=priority,
        **fields,
    )


def use(monkeypatch: pytest.MonkeyPatch, *fakes: Runtime) -> None:
    """Replace the registry by one of these runtimes."""
    monkeypatch.setattr(quantkit.runtimes, "REGISTRY", Registry("fake_runtime", Runtime, fakes))


def test_auto_compiles_for_samples_of_different_sizes_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = fake("compiling", compiles_sizes=True, priority=3)
    slow, steady = fake("slow", priority=0), fake("steady", UnavailableError("no Frobnicate"), priority=2)
    use(monkeypatch, slow, steady, compiling)
    varying = SessionOptions(varying_sizes=True)
    assert open_session(GRAPH).runtime.name == "compiling"
    assert open_session(GRAPH, options=varying).runtime.name == "compiling"  # only the reference is slower
    use(monkeypatch, slow, fake("steady", priority=2), compiling)
    assert open_session(GRAPH, options=varying).runtime.name == "steady"
    assert open_session(GRAPH, "compiling", varying).runtime.name == "compiling"


def test_auto_opens_the_highest_priority_that_can_run_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = fake("fast", UnavailableError("no Frobnicate"), priority=3)
    use(monkeypatch, fake("slow", priority=1), fake("steady", priority=2), fast)
    session = open_session(GRAPH)
    assert session.runtime.name == "steady"
    assert list(map(str, session.skipped)) == ["fast: no Frobnicate"]


def test_auto_opens_litert_files_in_litert(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "small.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    fast = fake("fast", kinds=("openvino", "onnx", "tflite"), priority=2)
    use(monkeypatch, fast, fake("exact", kinds=("tflite",), own_kinds=("tflite",), priority=1))
    assert open_session(path).runtime.name == "exact"
    assert open_session(GRAPH).runtime.name == "fast"


@pytest.mark.parametrize(
    ("receipt", "varies", "name"),
    [
        (None, False, "fast"),
        ({"scheme": {"runtime": "slow"}}, False, "slow"),
        ({"scheme": {"runtime": "slow"}}, True, "slow"),
        ({"scheme": {"runtime": None}}, False, "fast"),
        ({"scheme": {"runtime": "slow"}, "search": {"runtime": "middle"}}, False, "middle"),
        ({"search": {"runtime": "middle"}}, True, "slow"),
        ({"scheme": {"runtime": "missing"}}, False, "fast"),
        ({"scheme": "damaged"}, False, "fast"),
    ],
)
def test_auto_opens_a_file_in_the_runtime_of_its_receipt(
    receipt: dict[str, Any] | None, varies: bool, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "small.onnx"
    document = {} if receipt is None else {"receipt": receipt}
    formats.save(with_metadata(Graph.of([], dialect="onnx"), document), path)
    use(
        monkeypatch,
        fake("fast", kinds=("onnx",), compiles_sizes=True, priority=3),
        fake("middle", kinds=("onnx",), compiles_sizes=True, priority=2),
        fake("slow", kinds=("onnx",), priority=1),
    )
    assert open_session(path, options=SessionOptions(varying_sizes=varies)).runtime.name == name


def test_auto_names_a_missing_runtime_of_a_receipt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    graph = with_metadata(Graph.of([], dialect="onnx"), {"receipt": {"scheme": {"runtime": "slow"}}})
    formats.save(graph, path)
    problem = UnavailableError("not installed")
    use(monkeypatch, fake("fast", kinds=("onnx",), priority=3), fake("slow", problem, kinds=("onnx",), priority=1))
    session = open_session(path)
    assert session.runtime.name == "fast"
    assert list(map(str, session.skipped)) == ["slow: not installed"]


def test_auto_reports_the_reason_of_each_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch,
        fake("fast", UnavailableError("not installed"), priority=2),
        fake("slow", UnavailableError("no Frobnicate"), priority=1),
    )
    with pytest.raises(UnavailableError, match="fast: not installed; slow: no Frobnicate"):
        open_session(GRAPH)


def test_hint_of_auto_installs_a_runtime_that_opens_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str, **fields: Any) -> Runtime:
        availability = Availability.no(f"{name} is not installed: pip install {name}")
        return replace(fake(name, **fields), available=lambda: availability)

    converting = missing("converting", native_dialect="onnx", kinds=("onnx",), priority=3)
    native = missing("native", native_dialect="tensorflow", priority=2)
    use(monkeypatch, converting, native)
    with pytest.raises(UnavailableError, match="converting: converting is not installed") as caught:
        open_session(GRAPH)
    assert caught.value.hint == "pip install native"
    path = tmp_path / "small.onnx"
    path.write_bytes(b"\x08\x08" + bytes(20))
    with pytest.raises(UnavailableError, match=r"native: Native cannot open small\.onnx") as caught:
        open_session(path)
    assert caught.value.hint == "pip install converting"


def test_broken_graph_stops_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fake("fast", GraphError("a cycle"), priority=2), fake("slow"))
    with pytest.raises(GraphError, match="a cycle"):
        open_session(GRAPH)


def test_named_runtime_has_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fake("fast", UnavailableError("no Frobnicate")), fake("slow"))
    with pytest.raises(UnavailableError, match="no Frobnicate"):
        open_session(GRAPH, "fast")


def test_a_session_class_has_all_members_or_inherits_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        skipped = ()
        runtime, inputs, outputs = RuntimeVersion("own", "1.0"), (), ()

        def run(self, feeds: Any) -> dict[str, Any]:
            return {}

        def close(self) -> None:
            """Close the session."""

    class OwnSession(Own, Session):  # type: ignore[misc]
        pass

    use(monkeypatch, replace(fake("own"), open_model=lambda model, options: Own()))  # type: ignore[arg-type, return-value]
    with pytest.raises(UnavailableError, match="sessions of Own have no .*time_parts") as caught:
        open_session(GRAPH, "own")
    assert "inherit" in caught.value.hint
    use(monkeypatch, replace(fake("own"), open_model=lambda model, options: OwnSession()))
    session = open_session(GRAPH, "own")
    assert session.time_parts({}, lambda: 0.0) == {}
    assert (session.placement, session.int8_nodes, session.op_trace.ops) == ((), None, ())


def test_threads_replace_intra_op(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fake("only"))
    session = open_session(GRAPH, "only", SessionOptions(inter_op=3), threads=2)
    assert session.runtime.device == str(SessionOptions(intra_op=2, inter_op=3))


def test_misspelled_runtime_has_a_suggestion() -> None:
    with pytest.raises(UsageError, match="'onxruntime'") as caught:
        find_runtime("onxruntime")
    assert "onnxruntime" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        find_runtime("xyz")
    assert all(name in caught.value.hint for name in runtimes())


def test_runtimes_are_ordered_by_priority() -> None:
    assert all(runtime.name == name for name, runtime in runtimes().items())
    assert list(runtimes()) == [
        *("openvino", "onnxruntime", "tensorflow", "litert", "tensorrt", "tensorrt_native", "reference")
    ]


def test_observing_runtime_keeps_all_tensors_and_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = fake("fused", native_dialect="tensorflow", priority=3)
    exact = fake("exact", native_dialect="tensorflow", keeps_tensors=True, priority=2)
    missing = replace(exact, name="missing", available=lambda: Availability.no("not installed"), priority=4)
    converting = fake("converting", keeps_tensors=True, priority=5)
    use(monkeypatch, fused, exact, missing, converting)
    assert observing_runtime("tensorflow") == "exact"
    use(monkeypatch, fused, missing)
    assert observing_runtime("tensorflow") == "fused"
    with pytest.raises(UnavailableError, match="no runtime runs circle graphs natively"):
        observing_runtime("circle")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (SessionOptions(device="gpu"), "Only runs on the CPU only", "--device cpu"),
        (SessionOptions(precision="float16"), "'float16'", "--precision float32 or bfloat16"),
    ],
)
def test_unsupported_option_is_rejected(
    monkeypatch: pytest.MonkeyPatch, options: SessionOptions, message: str, hint: str
) -> None:
    use(monkeypatch, fake("only", precisions=("float32", "bfloat16")))
    with pytest.raises(UnavailableError, match=message) as caught:
        open_session(GRAPH, "only", options)
    assert hint in caught.value.hint


def test_unsupported_model_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, fake("only", kinds=("onnx",)))
    with pytest.raises(UnavailableError, match="Only opens tensorflow graphs, not circle graphs"):
        open_session(GRAPH.with_(dialect="circle"), "only")
    path = tmp_path / "small.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with pytest.raises(UnavailableError, match=r"Only cannot open small\.tflite, which is a LiteRT model"):
        open_session(path, "only")


@pytest.mark.parametrize("name", runtimes())
def test_missing_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.onnx"):
        open_session(tmp_path / "none.onnx", name)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_broken_onnx_file_is_named(name: str, tmp_path: Path) -> None:
    if not find_runtime(name).available().ok:
        pytest.skip(find_runtime(name).available().detail)
    path = tmp_path / "broken.onnx"
    path.write_bytes(bytes(range(1, 200)))
    with pytest.raises(InputError, match=r"broken\.onnx"):
        open_session(path, name)


def test_install_command_becomes_the_hint() -> None:
    with pytest.raises(UnavailableError, match=r"^X is not installed$") as caught:
        require(Availability.no("X is not installed: pip install x"))
    assert caught.value.hint == "pip install x"


@pytest.mark.parametrize("device", ["", "gpu:", "gpu:-1", "gpu:x", "cpu:0", "tpu"])
def test_wrong_device_name_is_rejected(device: str) -> None:
    with pytest.raises(UsageError, match="not a device"):
        SessionOptions(device=device).gpu_index  # noqa: B018


def echo(*inputs: TensorInfo) -> FunctionSession:
    """Return a session whose outputs are its inputs."""
    return FunctionSession(RuntimeVersion("fake", "1"), inputs, inputs, lambda arrays: arrays)


FLAGS, TEXT = TensorInfo("flags", DType.BOOL, Shape((2,))), TensorInfo("text", DType.STRING, Shape(()))


def test_arrays_may_be_lists_and_bytes_keep_their_zeros() -> None:
    session = echo(TEXT, FLAGS)
    outputs = session.run({"text": b"ab\0", "flags": [True, False]})  # type: ignore[dict-item]
    assert outputs["text"].item() == b"ab\0"
    assert outputs["flags"].dtype == bool
    with pytest.raises(UsageError, match="takes strings, not float64"):
        session.run({"text": np.zeros(()), "flags": np.zeros(2, bool)})


def test_only_input_needs_no_name() -> None:
    np.testing.assert_array_equal(echo(FLAGS).run(np.array([True, False]))["flags"], [True, False])


@pytest.mark.parametrize(
    ("inputs", "message", "hint"),
    [
        ((FLAGS, TEXT), "has 2 inputs: flags, text", "{'flags': array, 'text': array}"),
        ((), "has no inputs", "{}"),
    ],
)
def test_array_without_a_name_is_rejected(inputs: tuple[TensorInfo, ...], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        echo(*inputs).run(np.zeros(2, bool))
    assert caught.value.hint == f"pass a dict of input name to array: {hint}"
