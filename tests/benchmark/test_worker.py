import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from measurements import scripted_clock

from quantkit import formats
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.worker import find_card_shapes, peak_memory, read_model, serve
from quantkit.cores import available_cpus
from quantkit.errors import UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.model import load
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import list_cards


def ask(*requests: dict[str, Any], durations: list[float] | None = None) -> list[dict[str, Any]]:
    """Return the responses of a worker in this process."""
    responses: list[str] = []
    clock = scripted_clock(durations or [1.0] * 100)
    serve((json.dumps(request) for request in requests), responses.append, clock)
    assert all(response.endswith("\n") for response in responses)
    return [json.loads(response) for response in responses]


def open_request(path: Path, **settings: Any) -> dict[str, Any]:
    return Candidate("a model", path, Settings(runtime="reference", **settings)).to_request(seed=0)


def test_open_warm_up_and_run(tiny_model: Path) -> None:
    opened, warm, done = ask(
        open_request(tiny_model, batch=2),
        {"do": "warm_up", "calls": 2},
        {"do": "run", "samples": 3},
        durations=[9.0, 5.0, 4.0, 1.0, 1.0, 0.1, 0.2, 0.3],
    )
    assert opened["load_seconds"] == 9.0
    assert opened["runtime"] == "reference"
    assert opened["batch"] == 2
    assert opened["inputs"] == {"x": "float 2x4"}
    assert (warm["seconds"], warm["is_settled"]) == ([5.0, 4.0, 1.0], None)
    assert done["lead_in"] == [1.0]
    assert done["seconds"] == pytest.approx([0.1, 0.2, 0.3])
    assert done["calls"] == []


def test_an_earlier_import_is_a_part_of_the_time_to_load(tiny_model: Path) -> None:
    loaded, opened = ask({"do": "load", "runtime": "reference"}, open_request(tiny_model), durations=[2.0, 9.0])
    assert loaded == {}
    assert opened["load_seconds"] == 11.0


def test_calls_of_groups_are_also_timed_one_by_one(tiny_model: Path) -> None:
    _, _, done = ask(
        open_request(tiny_model),
        {"do": "warm_up", "calls": 0},
        {"do": "run", "samples": 2, "group": 10},
        durations=[9.0, 5.0, 1.0, 20.0, 30.0, 2.5, 3.5],
    )
    assert done["seconds"] == pytest.approx([2.0, 3.0])
    assert done["calls"] == pytest.approx([2.5, 3.5])


def test_streams_measure_the_time_per_item(tiny_model: Path) -> None:
    _, _, done = ask(
        open_request(tiny_model, batch=2, streams=1),
        {"do": "warm_up", "calls": 0},
        {"do": "run", "samples": 1, "group": 2},
        durations=[1.0] * 40,
    )
    assert len(done["lead_in"]) == 2
    assert len(done["calls"]) == 2
    assert len(done["seconds"]) == 1


def test_peak_memory_is_that_of_the_process(tiny_model: Path, tmp_path: Path) -> None:
    _, warm = ask(open_request(tiny_model), {"do": "warm_up", "calls": 0})
    assert warm["peak_bytes"] is None or warm["peak_bytes"] > 1 << 20
    status = tmp_path / "status"
    status.write_text("VmPeak:\t  9 kB\nVmHWM:\t    2048 kB\n")
    assert peak_memory(status) == 2 << 20
    assert peak_memory(tmp_path / "missing") is None


def test_first_call_is_never_a_sample(tiny_model: Path) -> None:
    _, warm = ask(open_request(tiny_model), {"do": "warm_up", "calls": 0})
    assert len(warm["seconds"]) == 1


def test_placement_is_recorded_on_request(tiny_model: Path) -> None:
    request = open_request(tiny_model)
    request["options"]["log_placement"] = True
    _, warm = ask(request, {"do": "warm_up", "calls": 1})
    assert all(isinstance(line, str) for line in warm["placement"])


def test_error_is_a_response(tiny_model: Path, tmp_path: Path) -> None:
    missing, opened = ask(open_request(tmp_path / "missing.pb"), open_request(tiny_model))
    assert "does not exist" in missing["error"]["message"]
    assert missing["error"]["exit_code"] == 3
    assert opened["runtime"] == "reference"


def test_exception_of_the_runtime_is_a_response(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("too much\nand more")

    monkeypatch.setattr(import_module("quantkit.benchmark.sampling.worker"), "open_session", fail)
    (response,) = ask(open_request(tiny_model))
    assert response["error"]["message"] == "MemoryError: too much"


def test_run_without_a_model_is_rejected() -> None:
    (response,) = ask({"do": "run", "samples": 1})
    assert "no model is open" in response["error"]["message"]


@pytest.mark.parametrize("inputs", [None, ["Mul"]])
def test_graph_without_placeholders_has_the_inputs_and_outputs_of_its_card(inputs: list[str] | None) -> None:
    path = load("digits").path
    assert path is not None
    graph = read_model(path, inputs, None if inputs is None else ["softmax"]).runnable
    assert isinstance(graph, Graph)
    assert [str(edge) for edge in graph.inputs] == ["Mul"]
    assert [str(edge) for edge in graph.outputs] == ["softmax"]


def test_unknown_graph_without_placeholders_needs_inputs(tmp_path: Path, tiny_model: Path) -> None:
    graph = formats.load(tiny_model)
    nodes = [node.with_(op="Variable") if node.name == "x" else node for node in graph.nodes.values()]
    path = tmp_path / "unknown.pb"
    formats.save(Graph.of(nodes), path)
    with pytest.raises(UsageError, match="no placeholder") as error:
        read_model(path, None, None)
    assert "--inputs" in error.value.hint


@pytest.mark.parametrize(("classes", "size"), [(10, 16), (1008, 299), (7, None)])
def test_cards_with_equal_names_differ_in_the_number_of_classes(classes: int, size: int | None) -> None:
    source = TensorInfo("Mul", DType.FLOAT, Shape(None))
    result = TensorInfo("softmax", DType.FLOAT, Shape((None, classes)))
    shapes = find_card_shapes([source], [result], list_cards())
    assert (shapes["Mul"].dims[1] if shapes and shapes["Mul"].dims else None) == size


def test_worker_ends_with_its_requests() -> None:
    def requests() -> Iterator[str]:
        yield json.dumps({"do": "run", "samples": 1})

    responses: list[str] = []
    serve(requests(), responses.append)
    assert len(responses) == 1


def test_affinity_is_checked_after_the_first_calls(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(cpus: frozenset[int]) -> None:
        raise UnavailableError(f"a thread left {sorted(cpus)}", hint="omit --cpus")

    monkeypatch.setattr(import_module("quantkit.benchmark.sampling.worker"), "restrict_threads", leave)
    _, warm = ask(open_request(tiny_model), {"do": "warm_up", "calls": 1})
    message = f"a thread left {list(available_cpus())}"
    assert warm["error"] == {"message": message, "hint": "omit --cpus", "exit_code": 4}


def test_a_worker_imports_neither_reports_nor_transforms() -> None:
    program = "import sys; import quantkit.benchmark.sampling.worker; print(*sys.modules)"
    modules = set(subprocess.check_output([sys.executable, "-c", program], text=True).split())
    assert "quantkit.runtimes" in modules
    assert not {"quantkit.transforms", "quantkit.drawing", "quantkit.benchmark.results.report"} & modules
