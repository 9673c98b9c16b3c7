import os
import select
import signal
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path
from threading import Event, Timer
from typing import Any, ClassVar

import pytest

from quantkit.benchmark.sampling import process
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.process import CAN_HALT, ProcessReserve, WorkerError, WorkerProcess, start_worker
from quantkit.workers import child

SECONDS = 30.0


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that run the code in the variable SCRIPT instead of serving."""
    monkeypatch.setattr(child, "BOOTSTRAP", "import os, sys; exec(os.environ['SCRIPT'])")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_worker_measures_in_its_own_process(tiny_model: Path) -> None:
    request = Candidate("tiny", tiny_model, Settings(runtime="reference")).to_request(seed=0)
    with WorkerProcess() as worker:
        assert worker.ask(request, SECONDS)["runtime"] == "reference"
        assert worker.ask({"do": "warm_up", "calls": 2}, SECONDS)["is_settled"] is None
        assert len(worker.ask({"do": "run", "samples": 4}, SECONDS)["seconds"]) == 4
        pid = worker.pid
    assert not is_alive(pid)


class FakeWorker:
    """Worker that records its requests; the import of the second one lasts until it is killed or released."""

    log: ClassVar[list[str]]
    second: ClassVar[Event]
    released: ClassVar[Event]

    def __init__(self, environment: Any, cpus: Any = ()) -> None:
        self.number = sum(line.startswith("start") for line in self.log)
        self.log.append(f"start {self.number}")
        self.is_running = True

    def ask(self, request: dict[str, Any], timeout: float) -> None:
        if self.number == 1:
            self.second.set()
            assert self.released.wait(SECONDS)
        if not self.is_running:
            raise WorkerError("ended", "")
        self.log.append(f"{request['do']} {request['runtime']} {self.number}")

    def kill(self) -> None:
        self.is_running = False
        self.released.set()

    def close(self) -> None:
        self.log.append(f"close {self.number}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """Processes of a reserve on two cores."""
    monkeypatch.setattr(process, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(process, "available_cores", lambda: 2)
    FakeWorker.log, FakeWorker.second, FakeWorker.released = [], Event(), Event()
    return FakeWorker


def take_number(runtime: str, cpus: tuple[int, ...] = ()) -> int:
    """Return the number of the worker that starts."""
    worker: Any = start_worker(Settings(runtime=runtime, cpus=cpus))
    number: int = worker.number
    return number


def test_a_reserve_imports_runtimes_in_turn_until_a_process_is_taken(fake: type[FakeWorker]) -> None:
    with ProcessReserve() as reserve:
        reserve.start(["tensorflow", "openvino", "tensorflow"])
        assert fake.second.wait(SECONDS)
        Timer(0.2, fake.released.set).start()
        assert [take_number("tensorflow"), take_number("tensorflow")] == [0, 2]
        assert fake.log == ["start 0", "load tensorflow 0", "start 1", "load openvino 1", "start 2"]
        assert take_number("openvino", cpus=(0,)) == 3
    assert fake.log[-1] == "close 1"


def test_processes_of_a_reserve_end_with_any_exception(fake: type[FakeWorker]) -> None:
    def interrupt() -> None:
        with ProcessReserve() as reserve:
            reserve.start(["tensorflow"] * 3)
            assert fake.second.wait(SECONDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert fake.log == ["start 0", "load tensorflow 0", "start 1", "close 0", "close 1"]


def test_a_process_that_ended_in_its_import_is_not_used(fake: type[FakeWorker]) -> None:
    with ProcessReserve() as reserve:
        reserve.start(["openvino", "tensorflow"])
        assert fake.second.wait(SECONDS)
        _, ended = reserve._processes[1]
        ended.kill()
        assert take_number("tensorflow") == 2
    assert fake.log[-3:] == ["close 1", "start 2", "close 0"]


def test_a_reserve_starts_no_process_on_one_core(fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "available_cores", lambda: 1)
    with ProcessReserve() as reserve:
        reserve.start(["tensorflow"])
    assert not fake.log


@pytest.mark.skipif(not CAN_HALT, reason="this system cannot halt a process")
def test_process_of_a_reserve_is_halted_after_its_import(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "available_cores", lambda: 2)
    request = Candidate("tiny", tiny_model, Settings(runtime="reference")).to_request(seed=0)
    with ProcessReserve() as reserve:
        reserve.start(["reference", "reference"])
        wait(reserve._imports)
        worker = reserve.take("reference")
        assert worker is not None
        event = os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
        assert event is not None
        assert event.si_status == signal.SIGSTOP
        with worker:
            assert worker.ask(request, SECONDS)["batch"] == 1
        (other,) = (each for _, each in reserve._processes)
    assert not is_alive(other.pid)


@pytest.mark.skipif(not CAN_HALT, reason="this system cannot halt a process")
def test_worker_without_a_request_is_halted() -> None:
    with WorkerProcess() as worker:
        worker.ask({"do": "run", "samples": 1}, SECONDS)
        event = os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    assert event is not None
    assert event.si_status == signal.SIGSTOP


@pytest.mark.usefixtures("scripted")
def test_variables_are_set_before_the_first_import() -> None:
    script = "print(chr(34) + os.environ['KMP_BLOCKTIME'] + chr(34)); sys.stdout.flush(); sys.stdin.read()"
    with WorkerProcess({"SCRIPT": script, "KMP_BLOCKTIME": "0"}) as worker:
        response: Any = worker.ask({}, SECONDS)
        assert response == "0"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_affinity_is_set_before_threads_start() -> None:
    cpu = min(os.sched_getaffinity(0))
    with WorkerProcess(cpus=(cpu,)) as worker:
        worker.ask({"do": "run", "samples": 1}, SECONDS)
        tasks = Path(f"/proc/{worker.pid}/task")
        bound = {os.sched_getaffinity(int(task.name)) == {cpu} for task in tasks.iterdir()}
    assert bound == {True}


def test_killed_worker_is_an_error() -> None:
    with WorkerProcess() as worker:
        worker.ask({"do": "run", "samples": 1}, SECONDS)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="ended by SIGKILL") as error:
            worker.ask({"do": "run", "samples": 1}, SECONDS)
    assert "memory" in error.value.hint


@pytest.mark.usefixtures("scripted")
def test_exit_is_reported_with_the_last_line_of_the_log() -> None:
    script = "sys.stderr.write('loading\\nno such library'); sys.exit(3)"
    with WorkerProcess({"SCRIPT": script}) as worker, pytest.raises(WorkerError) as error:
        worker.ask({"do": "open"}, SECONDS)
    assert error.value.message == "the process ended with exit code 3; last line of its log: no such library"


@pytest.mark.usefixtures("scripted")
def test_log_contains_no_lines_of_tensorflow_but_fatal_errors() -> None:
    lines = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795343050.386569   11517 port.cc:153] oneDNN custom operations are on.",
        "2026-01-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the flags.",
        "E0000 00:00:1795343059.454535   11517 cuda_platform.cc:52] failed call to cuInit",
        "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.",
        "onednn_verbose,v1,info,oneDNN v3.7.3",
        "F0000 00:00:1795343059.454535   11517 a.cc:1] Check failed: x",
    ]
    script = f"sys.stderr.write({chr(10).join(lines)!r}); sys.exit(3)"
    with WorkerProcess({"SCRIPT": script}) as worker, pytest.raises(WorkerError, match=r"Check failed: x"):
        worker.ask({"do": "open"}, SECONDS)
    with WorkerProcess({"SCRIPT": script}) as worker:
        with pytest.raises(WorkerError):
            worker.ask({"do": "open"}, SECONDS)
        assert worker.log.splitlines() == lines[-2:]


@pytest.mark.usefixtures("scripted")
def test_worker_without_a_response_is_ended() -> None:
    with WorkerProcess({"SCRIPT": "sys.stdin.read()"}) as worker:
        with pytest.raises(WorkerError, match="did not respond within 0 s") as caught:
            worker.ask({"do": "open"}, 0.05)
        assert "--time-budget" in caught.value.hint
        with pytest.raises(WorkerError):
            worker.ask({"do": "open"}, 0.05)


def test_output_of_the_runtime_is_apart_from_the_responses(tiny_model: Path) -> None:
    with WorkerProcess({"PYTHONWARNINGS": "default", "PYTHONVERBOSE": "1"}) as worker:
        response = worker.ask({"do": "run", "samples": 1}, SECONDS)
        assert "error" in response
        assert "import" in worker.log


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_workers_end_with_a_killed_parent() -> None:
    script = (
        "import os, signal\n"
        "from quantkit.benchmark.sampling.process import WorkerProcess\n"
        "worker = WorkerProcess()\n"
        "worker.ask({'do': 'run', 'samples': 1}, 30)\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    has_ended, _, _ = select.select([end], [], [], SECONDS)
    os.close(end)
    assert has_ended
