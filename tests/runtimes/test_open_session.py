from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import quantkit.runtimes
from quantkit.errors import GraphError, InputError, UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.runtimes import RUNTIMES, find_runtime, open_session
from quantkit.runtimes.session import (
    Availability,
    Engine,
    FunctionSession,
    Runtime,
    Session,
    SessionOptions,
    gpu_index,
    require,
)

GRAPH = Graph.of([])


class Fake:
    """A runtime that opens, or says why not."""

    def __init__(self, name: str, problem: Exception | None = None) -> None:
        self.name = name
        self.problem = problem

    def available(self) -> Availability:
        return Availability.yes("1.0")

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        if self.problem:
            raise self.problem
        return FunctionSession(Engine(self.name, "1.0"), (), (), lambda arrays: [])


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Runtime]:
    found: dict[str, Runtime] = {}
    monkeypatch.setattr(quantkit.runtimes, "RUNTIMES", MappingProxyType(found))
    return found


def use(runtimes: dict[str, Runtime], *made: Fake) -> None:
    runtimes.update({one.name: one for one in made})


def test_auto_takes_the_first_that_can_and_keeps_the_reasons(runtimes: dict[str, Runtime]) -> None:
    use(runtimes, Fake("quick", UnavailableError("no Frobnicate")), Fake("steady"), Fake("slow"))
    session = open_session(GRAPH)
    assert session.runtime.name == "steady"
    assert list(map(str, session.skipped)) == ["quick: no Frobnicate"]


def test_auto_says_why_no_engine_can(runtimes: dict[str, Runtime]) -> None:
    use(runtimes, Fake("quick", UnavailableError("not installed")), Fake("slow", UnavailableError("no Frobnicate")))
    with pytest.raises(UnavailableError, match="quick: not installed; slow: no Frobnicate"):
        open_session(GRAPH)


def test_a_broken_graph_stops_auto(runtimes: dict[str, Runtime]) -> None:
    use(runtimes, Fake("quick", GraphError("a cycle")), Fake("slow"))
    with pytest.raises(GraphError, match="a cycle"):
        open_session(GRAPH)


def test_a_named_engine_does_not_fall_through(runtimes: dict[str, Runtime]) -> None:
    use(runtimes, Fake("quick", UnavailableError("no Frobnicate")), Fake("slow"))
    with pytest.raises(UnavailableError, match="no Frobnicate"):
        open_session(GRAPH, "quick")


def test_threads_are_those_inside_one_operation(runtimes: dict[str, Runtime], monkeypatch: pytest.MonkeyPatch) -> None:
    fake, seen = Fake("only"), []
    monkeypatch.setattr(fake, "open", lambda model, options: seen.append(options))
    use(runtimes, fake)
    open_session(GRAPH, "only", SessionOptions(inter_op=3), threads=2)
    assert seen == [SessionOptions(intra_op=2, inter_op=3)]


def test_a_misspelt_runtime_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="'onxruntime'") as caught:
        find_runtime("onxruntime")
    assert "onnxruntime" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        find_runtime("xyz")
    assert all(name in caught.value.hint for name in RUNTIMES)


def test_every_runtime_is_listed_under_its_name() -> None:
    assert all(runtime.name == name for name, runtime in RUNTIMES.items())


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.onnx"):
        open_session(tmp_path / "none.onnx", name)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_broken_onnx_file_is_named(name: str, tmp_path: Path) -> None:
    if not RUNTIMES[name].available().ok:
        pytest.skip(RUNTIMES[name].available().detail)
    path = tmp_path / "broken.onnx"
    path.write_bytes(bytes(range(1, 200)))
    with pytest.raises(InputError, match=r"broken\.onnx"):
        open_session(path, name)


def test_an_install_command_becomes_the_hint() -> None:
    with pytest.raises(UnavailableError, match=r"^X is not installed$") as caught:
        require(Availability.no("X is not installed: pip install x"))
    assert caught.value.hint == "pip install x"


@pytest.mark.parametrize("word", ["", "gpu:", "gpu:-1", "gpu:x", "cpu:0", "tpu"])
def test_device_words(word: str) -> None:
    with pytest.raises(UsageError, match="not a device"):
        gpu_index(word)


def test_feeds_may_be_lists_and_bytes_keep_their_zeros() -> None:
    from quantkit.ir.tensor import DType, Shape
    from quantkit.runtimes.session import TensorInfo

    taken: list[Mapping[str, object]] = []
    session = FunctionSession(
        Engine("fake", "1"),
        (TensorInfo("s", DType.STRING, Shape(())), TensorInfo("flags", DType.BOOL, Shape((2,)))),
        (),
        lambda arrays: taken.extend(arrays) or [],  # type: ignore[arg-type, func-returns-value]
    )
    session.run({"s": b"ab\0", "flags": [True, False]})  # type: ignore[dict-item]
    assert taken[0].item() == b"ab\0"  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="takes strings, not float64"):
        session.run({"s": np.zeros(()), "flags": np.zeros(2, bool)})
