import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lab import scripted_clock

from quantkit import formats
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.worker import known_shapes, read_model, serve
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.model import load
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo import list_cards


def ask(*requests: dict[str, Any], durations: list[float] | None = None) -> list[dict[str, Any]]:
    """The answers of a worker in this process."""
    answers: list[str] = []
    clock = scripted_clock(durations or [1.0] * 100)
    serve((json.dumps(request) for request in requests), answers.append, clock)
    assert all(answer.endswith("\n") for answer in answers)
    return [json.loads(answer) for answer in answers]


def opening(path: Path, **settings: Any) -> dict[str, Any]:
    return Candidate("a model", path, Settings(runtime="reference", **settings)).to_request(seed=0)


def test_open_warm_up_and_run(tiny_model: Path) -> None:
    opened, warm, done = ask(
        opening(tiny_model, batch=2),
        {"do": "warm_up", "calls": 2},
        {"do": "run", "calls": 3},
        durations=[5.0, 4.0, 1.0, 1.0, 0.1, 0.2, 0.3],
    )
    assert opened["runtime"] == "reference"
    assert opened["batch"] == 2
    assert opened["inputs"] == {"x": "float 2x4"}
    assert (warm["seconds"], warm["is_settled"]) == ([5.0, 4.0, 1.0], None)
    assert done["lead_in"] == [1.0]
    assert done["seconds"] == pytest.approx([0.1, 0.2, 0.3])


def test_without_warm_up_the_first_call_still_counts_nowhere(tiny_model: Path) -> None:
    _, warm = ask(opening(tiny_model), {"do": "warm_up", "calls": 0})
    assert len(warm["seconds"]) == 1


def test_placement_is_told_where_it_was_asked_for(tiny_model: Path) -> None:
    request = opening(tiny_model)
    request["options"]["log_placement"] = True
    _, warm = ask(request, {"do": "warm_up", "calls": 1})
    assert all(isinstance(line, str) for line in warm["placement"])


def test_an_error_is_an_answer_and_the_worker_stays(tiny_model: Path, tmp_path: Path) -> None:
    missing, opened = ask(opening(tmp_path / "missing.pb"), opening(tiny_model))
    assert "does not exist" in missing["error"]["message"]
    assert missing["error"]["exit_code"] == 3
    assert opened["runtime"] == "reference"


def test_what_an_engine_throws_is_an_answer(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise MemoryError("too much\nand more")

    monkeypatch.setattr(import_module("quantkit.benchmark.worker"), "open_session", explode)
    (answer,) = ask(opening(tiny_model))
    assert answer["error"]["message"] == "MemoryError: too much"


def test_calls_before_a_model_is_open_are_refused() -> None:
    (answer,) = ask({"do": "run", "calls": 1})
    assert "no model is open" in answer["error"]["message"]


@pytest.mark.parametrize("inputs", [None, ["Mul"]])
def test_a_graph_without_placeholders_takes_the_ends_of_its_card(inputs: list[str] | None) -> None:
    path = load("digits").path
    assert path is not None
    graph = read_model(path, inputs, None if inputs is None else ["softmax"])
    assert isinstance(graph, Graph)
    assert [str(edge) for edge in graph.inputs] == ["Mul"]
    assert [str(edge) for edge in graph.outputs] == ["softmax"]


def test_a_graph_that_nobody_knows_needs_its_inputs_named(tmp_path: Path, tiny_model: Path) -> None:
    graph = formats.load(tiny_model)
    nodes = [node.with_(op="Variable") if node.name == "x" else node for node in graph.nodes.values()]
    path = tmp_path / "unknown.pb"
    formats.save(Graph.of(nodes), path)
    with pytest.raises(UsageError, match="no placeholder") as error:
        read_model(path, None, None)
    assert "--inputs" in error.value.hint


@pytest.mark.parametrize(("classes", "size"), [(10, 16), (1008, 299), (7, None)])
def test_cards_that_share_names_are_told_apart_by_their_classes(classes: int, size: int | None) -> None:
    source = TensorInfo("Mul", DType.FLOAT, Shape(None))
    result = TensorInfo("softmax", DType.FLOAT, Shape((None, classes)))
    found = known_shapes([source], [result], list_cards())
    assert (found["Mul"].dims[1] if found and found["Mul"].dims else None) == size


def test_requests_are_read_until_their_end() -> None:
    def requests() -> Iterator[str]:
        yield json.dumps({"do": "run", "calls": 1})

    answers: list[str] = []
    serve(requests(), answers.append)
    assert len(answers) == 1
