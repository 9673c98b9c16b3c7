import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quantkit.benchmark import process
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.process import WorkerGone, WorkerProcess

SECONDS = 30.0


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that run what the variable SCRIPT says instead of serving."""
    monkeypatch.setattr(process, "BOOTSTRAP", "import os, sys; exec(os.environ['SCRIPT'])")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_measures_in_its_own_process(tiny_model: Path) -> None:
    request = Candidate("tiny", tiny_model, Settings(runtime="reference")).to_request(seed=0)
    with WorkerProcess() as worker:
        assert worker.ask(request, SECONDS)["runtime"] == "reference"
        assert worker.ask({"do": "warm_up", "calls": 2}, SECONDS)["is_settled"] is None
        assert len(worker.ask({"do": "run", "calls": 4}, SECONDS)["seconds"]) == 4
        pid = worker.pid
    assert not is_alive(pid)


@pytest.mark.skipif(not process.CAN_HALT, reason="this system can not halt a process")
def test_a_worker_that_is_not_asked_is_halted() -> None:
    with WorkerProcess() as worker:
        worker.ask({"do": "run", "calls": 1}, SECONDS)
        event = os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    assert event is not None
    assert event.si_status == signal.SIGSTOP


@pytest.mark.usefixtures("scripted")
def test_variables_are_set_before_anything_is_imported() -> None:
    script = "print(chr(34) + os.environ['KMP_BLOCKTIME'] + chr(34)); sys.stdout.flush(); sys.stdin.read()"
    with WorkerProcess({"SCRIPT": script, "KMP_BLOCKTIME": "0"}) as worker:
        assert worker.ask({}, SECONDS) == "0"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system can not bind a process to processors")
def test_a_worker_is_bound_before_it_starts_threads() -> None:
    cpu = min(os.sched_getaffinity(0))
    with WorkerProcess(cpus=(cpu,)) as worker:
        worker.ask({"do": "run", "calls": 1}, SECONDS)
        tasks = Path(f"/proc/{worker.pid}/task")
        bound = {os.sched_getaffinity(int(task.name)) == {cpu} for task in tasks.iterdir()}
    assert bound == {True}


def test_a_killed_worker_is_a_reason_not_a_hang() -> None:
    with WorkerProcess() as worker:
        worker.ask({"do": "run", "calls": 1}, SECONDS)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerGone, match="ended by SIGKILL") as error:
            worker.ask({"do": "run", "calls": 1}, SECONDS)
    assert "memory" in error.value.hint


@pytest.mark.usefixtures("scripted")
def test_a_crash_is_told_with_its_last_words() -> None:
    script = "sys.stderr.write('loading\\nno such library'); sys.exit(3)"
    with WorkerProcess({"SCRIPT": script}) as worker, pytest.raises(WorkerGone) as error:
        worker.ask({"do": "open"}, SECONDS)
    assert error.value.message == "its process ended with exit code 3; its last words: no such library"


@pytest.mark.usefixtures("scripted")
def test_a_worker_that_does_not_answer_is_ended() -> None:
    with WorkerProcess({"SCRIPT": "sys.stdin.read()"}) as worker:
        with pytest.raises(WorkerGone, match="no answer within 0 s"):
            worker.ask({"do": "open"}, 0.05)
        with pytest.raises(WorkerGone):
            worker.ask({"do": "open"}, 0.05)


def test_what_engines_print_disturbs_no_answer(tiny_model: Path) -> None:
    with WorkerProcess({"PYTHONWARNINGS": "default", "PYTHONVERBOSE": "1"}) as worker:
        answer = worker.ask({"do": "run", "calls": 1}, SECONDS)
        assert "error" in answer
        assert "import" in worker.said


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end children with their parent")
def test_workers_end_with_a_parent_that_is_killed() -> None:
    script = (
        "import os, signal\n"
        "from quantkit.benchmark.process import WorkerProcess\n"
        "worker = WorkerProcess()\n"
        "worker.ask({'do': 'run', 'calls': 1}, 30)\n"
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
