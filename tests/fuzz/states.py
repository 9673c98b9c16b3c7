"""Files of work that resumes or is compared later: shards, results, benchmarks, and states of interrupted commands."""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import quantkit as qk
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.sweep.state import MeasuredTrial, SweepState
from quantkit.data.packing import pack
from quantkit.progress import Progress

Contents = dict[str, bytes]


def _contents(folder: Path) -> Contents:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@cache
def shard_files(npz: bytes) -> Contents:
    """Return the shard ``x-00000-of-00001.tfrecord`` and the index ``x.index.json`` of arrays."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.npz").write_bytes(npz)
        pack(Path(folder, "x.npz"), Path(folder, "out"), name="x", workers=1)
        return _contents(Path(folder, "out"))


@cache
def result_files(graph: bytes, npz: bytes, form: str) -> Contents:
    """Return the files of a batch inference with two shards."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "dense.pb").write_bytes(graph)
        Path(folder, "x.npz").write_bytes(npz)
        model = qk.load(Path(folder, "dense.pb"), outputs=["softmax"])
        qk.run(model, Path(folder, "x.npz"), Path(folder, "out"), runtime="reference", shard_size=3, format=form)
        return _contents(Path(folder, "out"))


@cache
def saved_benchmark(graph: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dense.pb")
        path.write_bytes(graph)
        result = qk.benchmark([f"{path}@reference"], runs=2, warmup=1, processes=1)
        result.save(Path(folder, "b.json"))
        return Path(folder, "b.json").read_bytes()


def sweep_state() -> bytes:
    """Return the state of a sweep on this machine with two trials."""
    with tempfile.TemporaryDirectory() as folder:
        state = SweepState(this_machine(), Path(folder, "s.json"))
        state.add("model", [MeasuredTrial(0, "{}", 1.0, 0.01), MeasuredTrial(0, '{"intra_op": 1}', failure="timeout")])
        return Path(folder, "s.json").read_bytes()


@cache
def interrupted_calibration(graph: bytes, npz: bytes) -> bytes:
    return _interrupt(graph, npz, "calibration", lambda progress: progress.stage == "calibrating" and progress.done > 0)


@cache
def interrupted_finetuning(graph: bytes, npz: bytes) -> bytes:
    """Return the state of an interrupted fine-tuning, which requires TensorFlow."""
    return _interrupt(graph, npz, "finetune", lambda progress: progress.step.startswith("loss"))


def _interrupt(graph: bytes, npz: bytes, suffix: str, is_time: Callable[[Progress], bool]) -> bytes:
    def stop(progress: Progress) -> None:
        if is_time(progress):
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("dense.pb", graph), ("x.npz", npz)):
            Path(folder, name).write_bytes(content)
        finetune = {"finetune": 2} if suffix == "finetune" else {}
        with suppress(KeyboardInterrupt):
            qk.quantize(
                Path(folder, "dense.pb"),
                Path(folder, "x.npz"),
                output=Path(folder, "a.onnx"),
                runtime="reference",
                runs=0,
                on_progress=stop,
                **finetune,
            )
        state = Path(folder, f"a.onnx.{suffix}")
        assert state.exists(), sorted(Path(folder).iterdir())
        return state.read_bytes()
