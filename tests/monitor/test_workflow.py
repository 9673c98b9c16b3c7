"""Monitored commands: streams, exit codes, signals, interventions; with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import quantkit as qk
from quantkit.distribution import install_command
from quantkit.monitor import session
from quantkit.monitor.job import job_environment
from quantkit.monitor.pipeline import KERAS_FIT
from quantkit.monitor.report import Monitoring
from quantkit.monitor.steps import read_steps
from quantkit.monitor.verdict import COMPUTE_BOUND, KINDS, UNDECIDED, Verdict

psutil = pytest.importorskip("psutil", reason="pip install psutil")

MARKED = """
import sys, time
sys.path.insert(0, {root!r})
from quantkit.monitor import batches, step

def make_dataset():
    for number in range(12):
        time.sleep(0.05)
        yield number

for batch in {pipeline}:
    with step():
        time.sleep(0.005)
print("finished")
"""
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that writes a marked job."""

    def write(pipeline: str) -> str:
        path = tmp_path / "job.py"
        path.write_text(MARKED.format(root=ROOT, pipeline=pipeline))
        return str(path)

    return write


@pytest.fixture
def quantkit_main() -> Callable[..., int]:
    main: Callable[..., int] = import_module("quantkit.cli").main
    return main


def test_streams_and_exit_code(capfd: pytest.CaptureFixture[str], quantkit_main: Callable[..., int]) -> None:
    code = quantkit_main(["monitor", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 7", "--json", "--debug"])
    output = capfd.readouterr()
    assert code == 7
    document = json.loads(output.out)
    assert document["schema"] == "quantkit.monitor/1"
    assert document["verdict"] in (*KINDS, *UNDECIDED)
    assert document["exit_code"] == 7
    assert document["command"][-2:] == ["--json", "--debug"]
    assert output.err == "out\nerr\n"


def test_verdict_is_in_the_first_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], quantkit_main: Callable[..., int]
) -> None:
    page = tmp_path / "report.html"
    assert quantkit_main(["monitor", "--html", str(page), "--", "sleep", "0.7"]) == 0
    output = capfd.readouterr()
    first, second, *_ = output.out.splitlines()
    assert first.startswith("waiting (sleep): the job is blocked")
    assert first.endswith("gap before each step unknown (no marks); no GPU in use")
    assert second.startswith("next step: ")
    assert output.err == f"report: {page}\n"
    text = page.read_text()
    assert "<svg" in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(src|href)=|<script|url\(", text)


@pytest.fixture(scope="module")
def sleeping() -> Monitoring:
    return qk.monitor(["sleep", "0.6"], interval=0.2)


def test_result_prints_well(sleeping: Monitoring) -> None:
    assert str(sleeping).splitlines()[0] == sleeping.headline
    assert sleeping._repr_html_().startswith("<div")
    document = json.loads(json.dumps(sleeping.to_json()))
    assert document["cause"] == "sleep"
    assert document["evidence"]
    series = document["series"]
    assert len(series["seconds"]) >= 2
    assert {metric["title"] for metric in series["metrics"]} >= {"CPU, all cores", "memory", "disk", "core 0"}
    assert all(len(column) == len(series["seconds"]) for m in series["metrics"] for column in m["values"].values())


def test_unavailable_metrics_are_named(sleeping: Monitoring) -> None:
    if not sleeping.facts.counters.counts:
        assert any(reason.startswith("hardware counters: ") for reason in sleeping.not_available)
    assert any(reason.startswith("calls: ") for reason in sleeping.not_available)


def test_gap_before_each_step_is_measured(job: Callable[[str], str]) -> None:
    result = qk.monitor([sys.executable, job("batches(make_dataset())")])
    steps = result.facts.steps
    assert steps is not None
    assert (steps.count, steps.has_input) == (12, True)
    assert steps.gap is not None
    assert steps.gap >= 0.05
    assert result.verdict.kind == "input-bound"
    assert result.verdict.cause == "slow reads"
    assert result.exit_code == 0


@pytest.mark.parametrize("hook", ["batches", "pipeline"])
def test_proof_bounds_the_gain_of_each_fix(hook: str, job: Callable[[str], str]) -> None:
    script = job("batches(make_dataset())" if hook == "batches" else "make_dataset()")
    pipeline = f"{script}:make_dataset" if hook == "pipeline" else None
    result = qk.monitor([sys.executable, script], prove=True, pipeline=pipeline)
    proof = result.proof
    assert proof is not None
    assert proof.steps == 12
    assert proof.input_gain is not None
    assert proof.compute_gain is not None
    assert proof.overlap_gain == min(proof.input_gain, proof.compute_gain)
    assert proof.repeated_seconds is not None
    assert proof.repeated_seconds >= 0.005
    assert proof.drained_seconds is not None
    assert proof.drained_seconds >= 0.05
    assert "faster input: at most" in str(result)
    assert result.to_json()["proof"]["input_gain"] == proof.input_gain


def test_proof_without_hooks_has_a_reason() -> None:
    result = qk.monitor(["sleep", "0.1"], prove=True)
    assert result.proof is None
    assert "proof: the job has no hook" in result.not_available[-1]


FIT = """
import keras, tensorflow as tf

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
dataset = tf.data.Dataset.from_tensors((tf.zeros([4, 2]), tf.zeros([4, 1]))).repeat()
model.fit(dataset, steps_per_epoch=12, verbose=0)
"""


@pytest.mark.engine
@pytest.mark.parametrize("mode", ["", "repeat:10", "drain:15"])
def test_the_dataset_of_a_fit_needs_no_name(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("keras")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | job_environment(tmp_path / "job", KERAS_FIT, mode)
    subprocess.run([sys.executable, "-c", FIT], check=True, env=environment, capture_output=True)
    steps = read_steps(tmp_path / "job")
    assert steps is not None
    assert steps.has_input
    assert steps.count >= int(mode.partition(":")[2] or 12)
    assert steps.count <= 20


GENERATOR = """
import time
import numpy as np, keras

def stream():
    while True:
        time.sleep(0.1)
        yield np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(stream(), steps_per_epoch=80, verbose=0)
"""


@pytest.mark.engine
def test_a_slow_generator_of_a_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("keras")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(GENERATOR)
    result = qk.monitor([sys.executable, "train.py"], on_output=lambda text: None)
    assert (result.verdict.kind, result.verdict.cause) == ("input-bound", "slow reads")
    assert "stream (train.py:7: time.sleep(0.1))" in result.verdict.reason
    assert result.facts.seconds < result.seconds - 1


def test_running_process_is_monitored_for_a_time() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        result = qk.monitor(pid=process.pid, duration=0.6, interval=0.2)
        assert process.poll() is None
        process.kill()
    assert (result.verdict.kind, result.verdict.cause, result.exit_code) == ("waiting", "sleep", None)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def monitored_sleep(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Monitor of a shell with a child process, and the number of that child."""
    file = tmp_path / "pid"
    command = [sys.executable, "-m", "quantkit", "monitor", "--json", "--"]
    script = f"sleep 100 & echo $! > {file}.part; mv {file}.part {file}; wait"
    with subprocess.Popen([*command, "sh", "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        wait_until(file.exists)
        yield process, int(file.read_text())
        process.kill()


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_signal_ends_the_job_and_prints_the_report(monitored_sleep: tuple[subprocess.Popen[str], int]) -> None:
    process, child = monitored_sleep
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    document = json.loads(output)
    assert (document["is_interrupted"], document["exit_code"]) == (True, 143)
    wait_until(lambda: not is_running(child))


def test_the_job_ends_with_a_killed_monitor() -> None:
    code = "import os, sys; print(os.getpid(), flush=True); os.execvp('sleep', ['sleep', '100'])"
    command = [sys.executable, "-m", "quantkit", "monitor", "--", sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        pid = int(process.stderr.readline())
        assert is_running(pid)
        process.kill()
        wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, qk.UsageError, "no command and no pid"),
        ({"command": ["true"], "pid": 1}, qk.UsageError, "command and pid exclude each other"),
        ({"command": "true"}, qk.UsageError, "must be a list"),
        ({"command": ["true"], "duration": 1}, qk.UsageError, "duration needs pid"),
        ({"pid": 1, "prove": True}, qk.UsageError, "need a command"),
        ({"command": ["true"], "interval": 0}, qk.UsageError, "interval is 0"),
        ({"command": ["true"], "pipeline": "x"}, qk.UsageError, "FILE.py:FUNCTION"),
        ({"command": ["true"], "pipeline": "missing.py:f"}, qk.InputError, "missing.py does not exist"),
        (
            {"command": ["true"], "pipeline": f"{__file__}:missing"},
            qk.InputError,
            "does not define a function 'missing'",
        ),
        ({"command": ["true"], "pipeline": f"{__file__}:wait_until"}, qk.UsageError, "runs a Python script"),
        ({"command": ["/missing/program"]}, qk.InputError, "cannot run '/missing/program'"),
        ({"pid": 2**22 + 1}, qk.InputError, "no process has the number"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], error: type[qk.QuantkitError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        qk.monitor(**arguments)
    assert caught.value.hint


def test_missing_psutil_is_an_unavailable_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(qk.UnavailableError, match="psutil is not installed") as caught:
        qk.monitor(["true"])
    assert caught.value.hint == install_command("monitor")


def test_snapshots_and_outputs_are_reported() -> None:
    snapshots: list[object] = []
    outputs: list[bytes] = []
    command = ["sh", "-c", "echo out; sleep 0.5; echo err >&2"]
    qk.monitor(command, interval=0.1, on_snapshot=snapshots.append, on_output=outputs.append)
    assert snapshots
    assert b"".join(outputs) == b"out\nerr\n"
    assert "waiting" in str(snapshots[-1])


def test_marks_are_light() -> None:
    program = "import sys, quantkit.monitor as m; m.step(); print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = set(output.stdout.split())
    assert not {"numpy", "psutil", "pynvml", "quantkit.benchmark"} & modules


def test_sitecustomize_of_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.customized = 11")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    assert qk.monitor([sys.executable, "-c", "raise SystemExit(customized)"]).exit_code == 11


def test_an_interrupt_is_forwarded_and_the_exit_code_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    code = f"""
import sys, time
try:
    open({str(file)!r}, "w").close()
    time.sleep(100)
except KeyboardInterrupt:
    sys.exit(5)
"""
    command = [sys.executable, "-m", "quantkit", "monitor", "--", sys.executable, "-c", code]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore SIGINT
    ) as process:
        wait_until(file.exists)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "exit code 5" in output


def test_advice_has_the_command_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = Verdict(COMPUTE_BOUND, "one thread", "", "quantkit monitor --prove -- COMMAND")
    monkeypatch.setattr(session, "find_bottleneck", lambda *arguments, **keywords: verdict)
    result = qk.monitor(["sh", "-c", "sleep 0.1"])
    assert result.verdict.advice == "quantkit monitor --prove -- sh -c 'sleep 0.1'"
