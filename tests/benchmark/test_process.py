import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quantkit.benchmark import process
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.process import WorkerError, WorkerProcess

SECONDS = 30.0


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that run the code in the variable SCRIPT instead of serving."""
    monkeypatch.setattr(process, "BOOTSTRAP", "import os, sys; exec(os.environ['SCRIPT'])")


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


@pytest.mark.skipif(not process.CAN_HALT, reason="this system cannot halt a process")
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
        assert worker.ask({}, SECONDS) == "0"


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
def test_worker_without_a_response_is_ended() -> None:
    with WorkerProcess({"SCRIPT": "sys.stdin.read()"}) as worker:
        with pytest.raises(WorkerError, match="did not respond within 0 s"):
            worker.ask({"do": "open"}, 0.05)
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
        "from quantkit.benchmark.process import WorkerProcess\n"
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
