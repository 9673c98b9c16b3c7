import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quantkit.benchmark import rounds
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.process import WorkerError
from quantkit.benchmark.report import Failure
from quantkit.benchmark.rounds import SamplingOptions, measure
from quantkit.errors import InputError

SHORT = SamplingOptions(runs=12, warmup=1, rounds=6)


class FakeWorker:
    """Worker that responds at once; a call of the n-th worker takes n seconds."""

    requests: ClassVar[list[tuple[int, str]]] = []
    number: ClassVar[int] = 0

    def __init__(self, environment: dict[str, str], cpus: tuple[int, ...]) -> None:
        FakeWorker.number += 1
        self.seconds = float(FakeWorker.number)
        self.log = ""
        self.failing_request = environment.get("FAIL", "")

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        do = request["do"]
        FakeWorker.requests.append((int(self.seconds), do))
        if do == self.failing_request:
            raise WorkerError("the process was ended by SIGSEGV")
        responses: dict[str, dict[str, Any]] = {
            "open": {
                "runtime": "fake",
                "version": "1",
                "runtime_device": "CPU",
                "skipped_runtimes": [],
                "inputs": {"x": "float (1,)"},
                "batch": 1,
            },
            "warm_up": {"seconds": [9.0, 1.0], "is_settled": True, "openmp": [], "placement": []},
            "run": {"lead_in": [3.0], "seconds": [self.seconds] * (request.get("calls") or 0)},
        }
        return responses[do]

    def close(self) -> None:
        """Return at once."""

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(rounds, "WorkerProcess", FakeWorker)
    FakeWorker.requests = []
    FakeWorker.number = 0
    return FakeWorker


def candidates(path: Path, *environments: dict[str, str]) -> list[Candidate]:
    return [
        Candidate(f"model {index}", path, Settings(environment=environment))
        for index, environment in enumerate(environments)
    ]


def test_each_candidate_runs_once_per_round(fake: type[FakeWorker], tiny_model: Path) -> None:
    benchmark = measure(candidates(tiny_model, {}, {}, {}), SHORT)
    order = [number for number, do in fake.requests if do == "run"]
    blocks = [tuple(order[start : start + 3]) for start in range(0, len(order), 3)]
    assert [sorted(block) for block in blocks] == [[1, 2, 3]] * 6
    assert len(set(blocks)) > 1, "the order changes from round to round"
    assert sorted(measurement.seconds for measurement in benchmark.measurements) == [
        (1.0,) * 12,
        (2.0,) * 12,
        (3.0,) * 12,
    ]


def test_all_are_warm_before_the_first_round(fake: type[FakeWorker], tiny_model: Path) -> None:
    measure(candidates(tiny_model, {}, {}), SHORT)
    requests = [do for _, do in fake.requests]
    assert requests[:4] == ["open", "open", "warm_up", "warm_up"]
    assert set(requests[4:]) == {"run"}


def test_equal_seeds_give_equal_orders(fake: type[FakeWorker], tiny_model: Path) -> None:
    def order(seed: int) -> list[tuple[int, str]]:
        fake.requests, fake.number = [], 0
        measure(candidates(tiny_model, {}, {}, {}), replace(SHORT, seed=seed))
        return [request for request in fake.requests if request[1] == "run"]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_measurement_contains_all_calls(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), SHORT).rows
    assert row.measurement is not None
    assert row.measurement.block_sizes == (2,) * 6
    assert row.measurement.warmup_seconds == (9.0, 1.0, *(3.0,) * 6)
    assert row.measurement.warmup_calls == 2
    assert row.measurement.context.num_bytes == tiny_model.stat().st_size


def test_calls_are_distributed_evenly(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), replace(SHORT, runs=8)).rows
    assert row.measurement is not None
    assert row.measurement.block_sizes == (2, 2, 1, 1, 1, 1)


def test_fewer_runs_than_rounds(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), replace(SHORT, runs=2)).rows
    assert row.measurement is not None
    assert row.measurement.block_sizes == (1, 1)


def test_default_number_of_runs_of_a_slow_model_is_the_minimum(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), SamplingOptions()).rows
    assert row.measurement is not None
    assert len(row.measurement.seconds) == rounds.MIN_RUNS


@pytest.mark.parametrize("moment", ["open", "warm_up", "run"])
def test_failed_candidate_is_a_row(fake: type[FakeWorker], tiny_model: Path, moment: str) -> None:
    first, second = measure(candidates(tiny_model, {"FAIL": moment}, {}), SHORT).rows
    assert first.outcome == Failure("the process was ended by SIGSEGV")
    assert second.measurement is not None
    assert len(second.measurement.seconds) == 12


def test_finished_rounds_are_kept_when_the_time_budget_is_exhausted(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One reading each for the deadline, the openings, each warm-up and each block: the ninth is too late.
    readings = iter([0.0, *[1.0] * 7, 99.0])
    monkeypatch.setattr(rounds, "monotonic", lambda: next(readings))
    benchmark = measure(candidates(tiny_model, {}, {}), replace(SHORT, time_budget=50.0))
    assert not benchmark.is_complete
    assert benchmark.notes == ("time budget of 50 s exhausted after 2 of 6 rounds",)
    assert [row.measurement.block_sizes for row in benchmark.rows if row.measurement] == [(2, 2), (2, 2)]


def test_candidate_without_a_round_is_a_row(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([0.0, 1.0, 999.0])
    monkeypatch.setattr(rounds, "monotonic", lambda: next(readings))
    benchmark = measure(candidates(tiny_model, {}, {}), SHORT)
    assert [failure.reason for failure in benchmark.failures] == [
        "time budget of 600 s exhausted before its first round"
    ] * 2


def test_missing_file_is_an_error_before_the_first_process(fake: type[FakeWorker], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        measure([Candidate("x", tmp_path / "missing.pb")], SHORT)
    assert not fake.requests


def test_candidates_start_in_a_random_order(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class RecordingWorker(FakeWorker):
        def __init__(self, environment: dict[str, str], cpus: tuple[int, ...]) -> None:
            super().__init__(environment, cpus)
            started.append(environment["INDEX"])

    monkeypatch.setattr(rounds, "WorkerProcess", RecordingWorker)
    environments = [{"INDEX": str(index)} for index in range(6)]
    orders = set()
    for seed in range(3):
        started.clear()
        benchmark = measure(candidates(tiny_model, *environments), replace(SHORT, seed=seed))
        assert [row.label for row in benchmark.rows] == [f"model {index}" for index in range(6)]
        orders.add(tuple(started))
    assert len(orders) == 3


def test_real_workers(tiny_model: Path) -> None:
    settings = Settings(runtime="reference")
    benchmark = measure([Candidate("a", tiny_model, settings), Candidate("b", tiny_model, settings)], SHORT)
    assert benchmark.is_complete
    assert all(len(measurement.seconds) == 12 for measurement in benchmark.measurements)
    assert all(measurement.context.runtime == "reference" for measurement in benchmark.measurements)
    assert benchmark.measurements[0].context.digest == benchmark.measurements[1].context.digest


def test_ctrl_c_ends_the_workers_and_keeps_finished_rounds(tiny_model: Path) -> None:
    script = (
        "import json, signal, sys\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "from quantkit.benchmark import BenchmarkInterrupted\n"
        "from quantkit.benchmark import rounds\n"
        "from quantkit.benchmark.candidate import Candidate, Settings\n"
        "workers = []\n"
        "class Recorded(rounds.WorkerProcess):\n"
        "    def __init__(self, *arguments):\n"
        "        super().__init__(*arguments)\n"
        "        workers.append(self.pid)\n"
        "rounds.WorkerProcess = Recorded\n"
        "def on_progress(progress):\n"
        "    if (progress.stage, progress.done) == ('measuring', 3):\n"
        "        print(json.dumps(workers), flush=True)\n"
        "settings = Settings(runtime='reference')\n"
        "candidates = [Candidate(label, Path(sys.argv[1]), settings) for label in 'ab']\n"
        "try:\n"
        "    rounds.measure(candidates, rounds.SamplingOptions(runs=10**7, rounds=10**5, warmup=1), on_progress)\n"
        "except BenchmarkInterrupted as stopped:\n"
        "    print(json.dumps(stopped.benchmark.to_json()), flush=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tiny_model)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = json.loads(parent.stdout.readline())
    parent.send_signal(signal.SIGINT)
    document = json.loads(parent.stdout.read())
    assert parent.wait(timeout=30) == 0
    parent.stdout.close()
    assert document["is_complete"] is False
    assert "interrupted after" in document["notes"][0]
    assert all(len(row["measurement"]["block_sizes"]) >= 3 for row in document["rows"])
    assert len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
