"""Pack 100,000 small images, kill the packing at ten random moments, resume, and compare the shards.

    python tests/bench/measure_packing.py --work FOLDER [--images 100000] [--seed 0] [--rounds 3] [--kills 10]

Takes about 4 minutes. Writes ``tests/bench/packing.json``: the rate of packing next to the rate of a copy of the same
files (``cp -r``), in alternation; the moments of the kills; the comparison of the shards; the reading by TensorFlow;
and the verification of shards with one flipped bit each. Each kill follows a random number of finished shards and a
random fraction of the duration of a shard; a packing that is complete before its last kill is followed by another one.
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from quantkit.benchmark.host.machine import this_machine
from quantkit.data.packing import verify

SHARD_SIZE = "4MB"
MAX_SHARDS_BETWEEN_KILLS = 8
PACK = "import sys; from quantkit.data.packing import pack; pack(sys.argv[1], sys.argv[2], shard_size=sys.argv[3])"


def make_images(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Write JPEG and PNG images with 32 to 64 rows in 100 folders; every file is different."""
    noise = rng.integers(0, 256, (64, 64, 3), np.uint8)
    for number in range(count):
        target = folder / f"class{number % 100:02}" / f"{number:06}{'.png' if number % 8 == 0 else '.jpg'}"
        if number < 100:
            target.parent.mkdir(parents=True)
        size = 32 + number % 33
        pixels = np.roll(noise, number, axis=(0, 1))[:size, :size] // 4 + np.uint8(number % 190)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG" if number % 8 == 0 else "JPEG", quality=85)
        target.write_bytes(file.getvalue())


def pack_to(source: Path, folder: Path) -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", PACK, source, folder, SHARD_SIZE], check=True)
    return time.monotonic() - started


def copy_to(source: Path, folder: Path) -> float:
    started = time.monotonic()
    subprocess.run(["cp", "-r", source, folder], check=True)
    return time.monotonic() - started


def shard_times(folder: Path) -> dict[str, int]:
    """Return the time of the last change of each complete shard."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tfrecord")} if folder.exists() else {}


def kill_once(source: Path, folder: Path, shards: int, seconds: float, rng: random.Random) -> dict[str, Any] | None:
    """Start or resume the packing, and kill it with its workers' parent; None if it is complete before."""
    before = shard_times(folder)
    goal = len(before) + rng.randint(0, min(MAX_SHARDS_BETWEEN_KILLS, shards - 1 - len(before)))
    process = subprocess.Popen([sys.executable, "-c", PACK, source, folder, SHARD_SIZE])
    while process.poll() is None and len(shard_times(folder)) < goal:
        time.sleep(0.005)
    time.sleep(rng.random() * seconds / shards)
    if process.poll() is not None:
        return None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    after = shard_times(folder)
    unchanged = sum(after.get(name) == changed for name, changed in before.items())
    return {"shards_before": len(before), "shards_after": len(after), "unchanged_shards": unchanged}


def measure_kills(source: Path, whole: Path, folder: Path, options: argparse.Namespace, seconds: float) -> Any:
    """Return the packings with their kills, and the comparison of their shards with those of a quiet one."""
    rng, shards = random.Random(options.seed), len(shard_times(whole))
    runs: list[dict[str, Any]] = []
    while (done := sum(len(run["kills"]) for run in runs)) < options.kills:
        shutil.rmtree(folder, ignore_errors=True)
        kills: list[dict[str, Any]] = []
        while len(kills) < options.kills - done and (kill := kill_once(source, folder, shards, seconds, rng)):
            kills.append(kill)
        pack_to(source, folder)
        runs.append({"kills": kills, "identical": same_files(whole, folder)})
    return runs


def same_files(first: Path, second: Path) -> bool:
    names = sorted(path.name for path in first.iterdir())
    return names == sorted(path.name for path in second.iterdir()) and all(
        (first / name).read_bytes() == (second / name).read_bytes() for name in names
    )


def count_with_tensorflow(folder: Path) -> int:
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    files = sorted(str(path) for path in folder.glob("*.tfrecord"))
    records = tf.data.TFRecordDataset(files).batch(1024).map(lambda batch: tf.io.parse_example(batch, features))
    return sum(int(batch["image/class/label"].shape[0]) for batch in records)


def flip_bits(folder: Path, count: int, rng: random.Random) -> int:
    """Flip one bit of a shard at a time; return the number of flips that the verification finds."""
    num_detected = 0
    for _ in range(count):
        path = rng.choice(sorted(folder.glob("*.tfrecord")))
        position, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
        with path.open("r+b") as file:
            file.seek(position)
            value = file.read(1)[0]
            file.seek(position)
            file.write(bytes([value ^ 1 << bit]))
            file.flush()
            num_detected += bool(verify(path).problems[path.name])
            file.seek(position)
            file.write(bytes([value]))
    return num_detected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=Path, default=Path(__file__).with_name("packing.json"))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    source = args.work / "images"
    if not source.exists():
        make_images(source, args.images, np.random.default_rng(args.seed))
    num_bytes = sum(path.stat().st_size for path in source.rglob("*.*"))
    copy_seconds: list[float] = []
    pack_seconds: list[float] = []
    for _ in range(args.rounds):
        for measure, seconds, name in ((copy_to, copy_seconds, "copy"), (pack_to, pack_seconds, "whole")):
            shutil.rmtree(args.work / name, ignore_errors=True)
            seconds.append(measure(source, args.work / name))
    shutil.rmtree(args.work / "copy")
    killed = args.work / "killed"
    runs = measure_kills(source, args.work / "whole", killed, args, median(pack_seconds))
    document = {
        "schema": "quantkit.bench_packing/2",
        "machine": this_machine().to_json(),
        "images": args.images,
        "num_bytes": num_bytes,
        "shards": len(list((args.work / "whole").glob("*.tfrecord"))),
        "copy_seconds": copy_seconds,
        "pack_seconds": pack_seconds,
        "pack_megabytes_per_second": [num_bytes / 1e6 / seconds for seconds in pack_seconds],
        "copy_megabytes_per_second": [num_bytes / 1e6 / seconds for seconds in copy_seconds],
        "ratios": [copy / pack for copy, pack in zip(copy_seconds, pack_seconds, strict=True)],
        "runs_with_kills": runs,
        "records_read_by_tensorflow": count_with_tensorflow(killed),
        "flipped_bits": 20,
        "flipped_bits_found": flip_bits(killed, 20, rng),
        "intact_after_repair": verify(killed).ok,
    }
    args.target.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({key: value for key, value in document.items() if key != "machine"}, indent=1))


if __name__ == "__main__":
    main()
