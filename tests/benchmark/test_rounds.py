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
from quantkit.benchmark.process import WorkerGone
from quantkit.benchmark.report import Failure
from quantkit.benchmark.rounds import Schedule, measure
from quantkit.errors import InputError

SHORT = Schedule(runs=12, warmup=1, rounds=6)


class FakeWorker:
    """A worker that answers at once; a call of the n-th one takes n seconds."""

    asked: ClassVar[list[tuple[int, str]]] = []
    number: ClassVar[int] = 0

    def __init__(self, environment: dict[str, str], cpus: tuple[int, ...]) -> None:
        FakeWorker.number += 1
        self.seconds = float(FakeWorker.number)
        self.said = ""
        self.dies = environment.get("DIES", "")

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        do = request["do"]
        FakeWorker.asked.append((int(self.seconds), do))
        if do == self.dies:
            raise WorkerGone("its process was ended by SIGSEGV")
        answers: dict[str, dict[str, Any]] = {
            "open": {
                "runtime": "fake",
                "version": "1",
                "engine_device": "CPU",
                "passed_over": [],
                "inputs": {"x": "float (1,)"},
                "batch": 1,
            },
            "warm_up": {"seconds": [9.0, 1.0], "is_settled": True, "openmp": [], "placement": []},
            "run": {"lead_in": [3.0], "seconds": [self.seconds] * (request.get("calls") or 0)},
        }
        return answers[do]

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(rounds, "WorkerProcess", FakeWorker)
    FakeWorker.asked = []
    FakeWorker.number = 0
    return FakeWorker


def candidates(path: Path, *environments: dict[str, str]) -> list[Candidate]:
    return [Candidate(f"model {index}", path, Settings(environment=one)) for index, one in enumerate(environments)]


def test_every_candidate_runs_once_in_every_round(fake: type[FakeWorker], tiny_model: Path) -> None:
    benchmark = measure(candidates(tiny_model, {}, {}, {}), SHORT)
    turns = [number for number, do in fake.asked if do == "run"]
    blocks = [tuple(turns[start : start + 3]) for start in range(0, len(turns), 3)]
    assert [sorted(block) for block in blocks] == [[1, 2, 3]] * 6
    assert len(set(blocks)) > 1, "the order changes from round to round"
    assert [row.measurement.seconds for row in benchmark.rows if row.measurement] == [
        (1.0,) * 12,
        (2.0,) * 12,
        (3.0,) * 12,
    ]


def test_all_are_warm_before_any_is_measured(fake: type[FakeWorker], tiny_model: Path) -> None:
    measure(candidates(tiny_model, {}, {}), SHORT)
    words = [do for _, do in fake.asked]
    assert words[:4] == ["open", "open", "warm_up", "warm_up"]
    assert set(words[4:]) == {"run"}


def test_equal_seeds_give_equal_orders(fake: type[FakeWorker], tiny_model: Path) -> None:
    def order(seed: int) -> list[tuple[int, str]]:
        fake.asked, fake.number = [], 0
        measure(candidates(tiny_model, {}, {}, {}), replace(SHORT, seed=seed))
        return [turn for turn in fake.asked if turn[1] == "run"]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_raw_samples_and_warm_ups_are_kept(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), SHORT).rows
    assert row.measurement is not None
    assert row.measurement.block_sizes == (2,) * 6
    assert row.measurement.warmup_seconds == (9.0, 1.0, *(3.0,) * 6)
    assert row.measurement.warmup_calls == 2
    assert row.measurement.context.num_bytes == tiny_model.stat().st_size


def test_calls_are_dealt_evenly(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), replace(SHORT, runs=8)).rows
    assert row.measurement is not None
    assert row.measurement.block_sizes == (2, 2, 1, 1, 1, 1)


def test_fewer_runs_than_rounds(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), replace(SHORT, runs=2)).rows
    assert row.measurement is not None
    assert row.measurement.block_sizes == (1, 1)


def test_left_to_itself_a_slow_model_gets_few_runs(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), Schedule()).rows
    assert row.measurement is not None
    assert len(row.measurement.seconds) == rounds.FEWEST_RUNS


@pytest.mark.parametrize("moment", ["open", "warm_up", "run"])
def test_a_candidate_that_dies_is_a_row_and_others_go_on(fake: type[FakeWorker], tiny_model: Path, moment: str) -> None:
    first, second = measure(candidates(tiny_model, {"DIES": moment}, {}), SHORT).rows
    assert first.outcome == Failure("its process was ended by SIGSEGV")
    assert second.measurement is not None
    assert len(second.measurement.seconds) == 12


def test_the_time_budget_keeps_what_was_finished(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read for the deadline, before the openings, each warm-up and each turn: the ninth reading is too late.
    readings = iter([0.0, *[1.0] * 7, 99.0])
    monkeypatch.setattr(rounds, "monotonic", lambda: next(readings))
    benchmark = measure(candidates(tiny_model, {}, {}), replace(SHORT, time_budget=50.0))
    assert not benchmark.is_complete
    assert benchmark.notes == ("the time budget of 50 s was over after 2 of 6 rounds",)
    assert [row.measurement.block_sizes for row in benchmark.rows if row.measurement] == [(2, 2), (2, 2)]


def test_a_candidate_that_never_got_its_turn_is_a_row(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([0.0, 1.0, 999.0])
    monkeypatch.setattr(rounds, "monotonic", lambda: next(readings))
    benchmark = measure(candidates(tiny_model, {}, {}), SHORT)
    assert [failure.reason for failure in benchmark.failures] == [
        "the time budget of 600 s was over before its first round"
    ] * 2


def test_a_missing_file_is_an_error_before_anything_starts(fake: type[FakeWorker], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        measure([Candidate("x", tmp_path / "missing.pb")], SHORT)
    assert not fake.asked


def test_real_workers_side_by_side(tiny_model: Path) -> None:
    settings = Settings(runtime="reference")
    benchmark = measure([Candidate("a", tiny_model, settings), Candidate("b", tiny_model, settings)], SHORT)
    assert benchmark.is_complete
    assert all(len(measurement.seconds) == 12 for measurement in benchmark.measurements)
    assert all(measurement.context.runtime == "reference" for measurement in benchmark.measurements)
    assert benchmark.measurements[0].context.digest == benchmark.measurements[1].context.digest


def test_ctrl_c_ends_the_workers_and_keeps_what_was_finished(tiny_model: Path) -> None:
    script = (
        "import json, signal, sys\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "from quantkit.benchmark import Interrupted\n"
        "from quantkit.benchmark import rounds\n"
        "from quantkit.benchmark.candidate import Candidate, Settings\n"
        "workers = []\n"
        "class Noted(rounds.WorkerProcess):\n"
        "    def __init__(self, *arguments):\n"
        "        super().__init__(*arguments)\n"
        "        workers.append(self.pid)\n"
        "rounds.WorkerProcess = Noted\n"
        "def progress(message, share):\n"
        "    if message.startswith('round 4 '):\n"
        "        print(json.dumps(workers), flush=True)\n"
        "settings = Settings(runtime='reference')\n"
        "candidates = [Candidate(label, Path(sys.argv[1]), settings) for label in 'ab']\n"
        "try:\n"
        "    rounds.measure(candidates, rounds.Schedule(runs=10**7, rounds=10**5, warmup=1), progress)\n"
        "except Interrupted as stopped:\n"
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
