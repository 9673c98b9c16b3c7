"""Purpose of sampled calls, and the sampler inside a job."""

import json
import sys
import threading
from pathlib import Path

import pytest

from quantkit.monitor import agent
from quantkit.monitor.calls import COMPUTE, INPUT, MIXED, OTHER, STARTUP, WAITING, purpose_of, read_calls

MAIN = ("/job/train.py", "main")
EXECUTE = ("/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", "quick_execute")
TRAINER = "/lib/python3.11/site-packages/keras/src/backend/tensorflow/trainer.py"
IMPORT = ("<frozen importlib._bootstrap>", "_load_unlocked")


@pytest.mark.parametrize(
    ("frames", "text", "kind", "cause"),
    [
        ([("/lib/python3.11/site-packages/PIL/ImageFile.py", "load"), MAIN], "", INPUT, ""),
        ([("/lib/python3.11/site-packages/onnxruntime/capi/session.py", "run"), MAIN], "", COMPUTE, ""),
        ([("/lib/python3.11/site-packages/onnxruntime/capi/session.py", "__init__"), MAIN], "", STARTUP, ""),
        (
            [("/lib/python3.11/site-packages/tensorflow/python/data/ops/iterator_ops.py", "__next__"), MAIN],
            "",
            INPUT,
            "",
        ),
        (
            [("/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", "quick_execute"), MAIN],
            "",
            COMPUTE,
            "",
        ),
        (
            [("/lib/python3.11/site-packages/tensorflow/python/ops/gen_image_ops.py", "decode_jpeg"), MAIN],
            "",
            INPUT,
            "",
        ),
        ([("/lib/python3.11/site-packages/PIL/Image.py", "<module>"), IMPORT, MAIN], "", STARTUP, ""),
        (
            [("/lib/python3.11/threading.py", "wait"), ("/lib/python3.11/queue.py", "get"), MAIN],
            "waiter.acquire()",
            WAITING,
            "queue",
        ),
        (
            [
                ("/lib/python3.11/threading.py", "wait"),
                ("/lib/python3.11/queue.py", "get"),
                ("/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "x"),
                MAIN,
            ],
            "waiter.acquire()",
            INPUT,
            "queue",
        ),
        (
            [("/lib/python3.11/concurrent/futures/thread.py", "_worker")],
            "work_item = work_queue.get(block=True)",
            WAITING,
            "queue",
        ),
        ([("/lib/python3.11/threading.py", "join"), MAIN], "", WAITING, "lock"),
        (
            [("/lib/python3.11/subprocess.py", "_try_wait"), ("/lib/python3.11/subprocess.py", "run"), MAIN],
            "",
            WAITING,
            "child process",
        ),
        ([MAIN], "time.sleep(0.1)", WAITING, "sleep"),
        ([("/job/train.py", "read_batch"), MAIN], "time.sleep(0.1)", INPUT, "sleep"),
        ([("/job/train.py", "train_step"), MAIN], "time.sleep(0.1)", WAITING, "sleep"),
        ([MAIN], "data = connection.recv(4096)", WAITING, "network"),
        (
            [("/lib/python3.11/socket.py", "readinto"), ("/lib/python3.11/http/client.py", "read"), MAIN],
            "",
            WAITING,
            "network",
        ),
        ([MAIN], "image = cv2.imdecode(data, 1)", INPUT, ""),
        ([MAIN], "scores = features @ weights", COMPUTE, ""),
        ([("/job/train.py", "decode"), MAIN], "total += value", INPUT, ""),
        ([("/job/train.py", "forward"), MAIN], "total += value", COMPUTE, ""),
        ([("/job/train.py", "work")], "with lock:", WAITING, "lock"),
        ([MAIN], "total += value", OTHER, ""),
        ([EXECUTE, (TRAINER, "fit"), MAIN], "", MIXED, ""),
        ([EXECUTE, (TRAINER, "predict"), MAIN], "", MIXED, ""),
        ([EXECUTE, ("/lib/python3.11/site-packages/tf_keras/src/engine/training.py", "fit"), MAIN], "", MIXED, ""),
        ([EXECUTE, (TRAINER, "train_on_batch"), MAIN], "", COMPUTE, ""),
        (
            [
                ("/lib/python3.11/site-packages/tensorflow/python/data/ops/iterator_ops.py", "__next__"),
                (TRAINER, "fit"),
                MAIN,
            ],
            "",
            INPUT,
            "",
        ),
        (
            [
                ("/lib/python3.11/site-packages/tensorflow/python/autograph/pyct/parser.py", "parse"),
                (TRAINER, "fit"),
                MAIN,
            ],
            "",
            STARTUP,
            "",
        ),
    ],
)
def test_purpose_of_a_stack(frames: list[tuple[str, str]], text: str, kind: str, cause: str) -> None:
    purpose = purpose_of(tuple(frames), text)
    assert (purpose.kind, purpose.cause) == (kind, cause)
    assert purpose.label


@pytest.fixture
def sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> agent.CallSampler:
    """Sampler without its thread."""
    monkeypatch.setattr(agent.CallSampler, "start", lambda self: None)
    sampler = agent.CallSampler(str(tmp_path))
    sampler.path = str(tmp_path / "calls-7")
    sampler.stop = threading.Event()
    return sampler


def test_samples_of_the_own_process(sampler: agent.CallSampler, tmp_path: Path) -> None:
    is_blocked, leave = threading.Event(), threading.Event()

    def read_images() -> None:
        is_blocked.set()
        leave.wait()

    thread = threading.Thread(target=read_images)
    thread.start()
    is_blocked.wait()
    for work in (sampler.sample, sampler.sample, sampler.flush, sampler.flush):
        own = threading.Thread(target=work)
        own.start()
        own.join()
    leave.set()
    thread.join()
    first, second = map(json.loads, (tmp_path / "calls-7").read_text().splitlines())
    assert sum(first["counts"].values()) >= 4
    assert second["stacks"] == second["counts"] == {}
    names = [[name for _, name in stack["frames"]] for stack in first["stacks"].values() if not stack["is_main"]]
    assert any("read_images" in each for each in names)
    (calls,) = read_calls(tmp_path)
    assert calls.pid == 7
    assert sum(calls.main.values()) == 2
    assert calls.started is None


def test_end_of_the_start_is_recorded(tmp_path: Path) -> None:
    def record(seconds: float, number: int, stacks: dict[str, object]) -> str:
        return json.dumps({"seconds": seconds, "stacks": stacks, "counts": {str(number): 10}})

    def stack(*frames: tuple[str, str]) -> dict[str, object]:
        return {"thread": 1, "is_main": True, "frames": frames, "line": 1, "text": ""}

    lines = [
        record(1.0, 0, {"0": stack(IMPORT)}),
        record(2.0, 0, {}),
        record(3.0, 1, {"1": stack(("/lib/python3.11/site-packages/PIL/Image.py", "open"))}),
        record(4.0, 0, {}),
        "incomplete",
    ]
    (tmp_path / "calls-3").write_text("\n".join(lines))
    (calls,) = read_calls(tmp_path)
    assert calls.started == 2.0
    assert calls.count(STARTUP) == 30
    assert calls.count(INPUT) == 10


@pytest.mark.parametrize(
    ("main", "ended"),
    [
        ("ffffee", 4.0),  # the last call is the release of the dataset
        ("ffffff", 6.0),
        ("fefefe", 6.0),  # it occurred before
        ("ffffe", 4.0),
        ("f", 1.0),
    ],
)
def test_end_of_the_work_is_recorded(main: str, ended: float, tmp_path: Path) -> None:
    frames = {"f": [EXECUTE, (TRAINER, "fit"), MAIN], "e": [("/lib/python3.11/threading.py", "join"), MAIN]}
    stacks = {name: {"thread": 1, "is_main": True, "frames": each, "text": ""} for name, each in frames.items()}
    records = [{"seconds": 1.0 + index, "stacks": stacks, "counts": {name: 5}} for index, name in enumerate(main)]
    (tmp_path / "calls-3").write_text("\n".join(map(json.dumps, records)))
    (calls,) = read_calls(tmp_path)
    assert calls.ended == ended
    assert sum(calls.until(ended).main.values()) == 5 * ended


def test_location_is_the_running_line_of_own_code(sampler: agent.CallSampler, tmp_path: Path) -> None:
    def wait_in_library() -> None:
        is_started.set()
        leave.wait()

    is_started, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=wait_in_library)
    thread.start()
    is_started.wait()
    for work in (sampler.sample, sampler.flush):
        other = threading.Thread(target=work)
        other.start()
        other.join()
    leave.set()
    thread.join()
    (record,) = map(json.loads, (tmp_path / "calls-7").read_text().splitlines())
    own = [stack["own"] for stack in record["stacks"].values() if stack["own"]]
    locations = {function: (Path(file).name, text) for file, function, _, text in own}
    assert locations["wait_in_library"] in [
        ("test_calls.py", "leave.wait()"),
        ("test_calls.py", "is_started.set()"),
    ]


def test_number_of_stacks_is_limited(sampler: agent.CallSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "MAX_STACKS", 0)
    thread = threading.Thread(target=sampler.sample)
    thread.start()
    thread.join()
    assert list(sampler.counts) == [-1]


def test_sampler_ends_when_the_folder_is_gone(sampler: agent.CallSampler, tmp_path: Path) -> None:
    sampler.path = str(tmp_path / "missing" / "calls")
    sampler.flush()
    assert sampler.stop.is_set()


def test_source_of_a_program_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "-c", "import time\ntime.sleep(1)"])
    assert agent.source_line("<string>", 2) == "time.sleep(1)"
    assert agent.source_line("<string>", 9) == ""
    assert agent.source_line(__file__, 1).startswith('"""Purpose')
    assert agent.source_line("missing.py", 1) == ""
