"""Pack 100,000 small images, kill the packing at ten random moments, resume, and compare the shards.

    python tests/bench/measure_packing.py [--images 100000] [--seed 0] [--rounds 3] [--kills 10] [--work FOLDER]

Takes about 4 minutes. Writes ``tests/bench/packing.json``, and prints it without the machine:

    rates               packing next to a copy of the same files (``cp -r``) and of the shards, in alternation
    runs_with_kills     each kill (SIGKILL) is at a random moment of the first 60 % of the duration of a packing; the
                        same command then resumes; a packing that is complete before its last kill is followed by
                        another one; the shards are compared with those of a quiet packing
    tensorflow          the records as TensorFlow reads them, compared with the files of the source
    flipped_bits        shards with one flipped bit each, and the number that ``data verify`` finds
"""

import argparse
import io
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from quantkit.benchmark.host.machine import this_machine
from quantkit.data.packing import verify
from quantkit.runtimes.tensorflow_library import import_tensorflow

SHARD_SIZE = "4MB"
# Latest moment of a kill, as a fraction of the duration of a quiet packing.
KILL_FRACTION = 0.6
FOLDERS = 100
FLIPPED_BITS = 20
PACK = """
import sys
from quantkit.data.packing import pack
print(len(pack(sys.argv[1], sys.argv[2], shard_size=sys.argv[3]).written))
"""


def make_images(folder: Path, count: int, seed: int) -> None:
    """Write JPEG and PNG images with 32 to 64 rows in 100 folders; every file is different."""
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.starmap(make_class, [(folder, number, count, seed) for number in range(FOLDERS)])


def make_class(folder: Path, first: int, count: int, seed: int) -> None:
    """Write the images of one folder."""
    noise = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)
    target = folder / f"class{first:02}"
    target.mkdir(parents=True)
    for number in range(first, count, FOLDERS):
        kind = "PNG" if number % 8 == 0 else "JPEG"
        size = 32 + number % 33
        pixels = np.roll(noise, number, axis=(0, 1))[:size, :size] // 4 + np.uint8(number % 190)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind, quality=85)
        (target / f"{number:06}{'.png' if kind == 'PNG' else '.jpg'}").write_bytes(file.getvalue())


def pack_to(source: Path, folder: Path) -> int:
    """Pack, and return the number of shards that were not complete before."""
    command = [sys.executable, "-c", PACK, source, folder, SHARD_SIZE]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def seconds_of(function: Callable[[], object]) -> float:
    started = time.monotonic()
    function()
    return time.monotonic() - started


def copy_seconds(source: Path, copy: Path) -> float:
    """Return the duration of a copy of a folder, which is removed again."""
    seconds = seconds_of(lambda: subprocess.run(["cp", "-r", source, copy], check=True))
    shutil.rmtree(copy)
    return seconds


def measure_rates(source: Path, whole: Path, copy: Path, rounds: int) -> dict[str, Any]:
    """Return megabytes of the source per second of copies and packings, and of copies of the shards."""
    rates: dict[str, list[float]] = {"copy": [], "pack": [], "copy_of_shards": []}
    num_bytes = sum(path.stat().st_size for path in source.rglob("*.*"))
    for _ in range(rounds):
        rates["copy"].append(num_bytes / 1e6 / copy_seconds(source, copy))
        shutil.rmtree(whole, ignore_errors=True)
        rates["pack"].append(num_bytes / 1e6 / seconds_of(lambda: pack_to(source, whole)))
        shard_bytes = sum(path.stat().st_size for path in whole.iterdir())
        rates["copy_of_shards"].append(shard_bytes / 1e6 / copy_seconds(whole, copy))
    ratios = [pack / copied for pack, copied in zip(rates["pack"], rates["copy"], strict=True)]
    return {"num_bytes": num_bytes, "megabytes_per_second": rates, "pack_to_copy": median(ratios)}


def shard_times(folder: Path) -> dict[str, int]:
    """Return the time of the last change of each complete shard."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tfrecord")} if folder.exists() else {}


def kill_once(source: Path, folder: Path, seconds: float, rng: random.Random) -> dict[str, Any] | None:
    """Start or resume the packing, and kill it at a random moment; None if it is complete before.

    Args:
        source, folder: images, and folder of the shards.
        seconds: duration of a quiet packing.
        rng: random numbers.
    """
    before = shard_times(folder)
    command = [sys.executable, "-c", PACK, source, folder, SHARD_SIZE]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    moment = rng.random() * seconds * KILL_FRACTION
    try:
        process.wait(timeout=moment)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    else:
        return None
    after = shard_times(folder)
    unchanged = sum(after.get(name) == changed for name, changed in before.items())
    return {"seconds": moment, "shards_before": len(before), "shards_kept": unchanged, "shards_after": len(after)}


def measure_kills(source: Path, whole: Path, folder: Path, options: argparse.Namespace, seconds: float) -> Any:
    """Return the packings with their kills, and the comparison of their shards with those of a quiet one."""
    rng = random.Random(options.seed)
    runs: list[dict[str, Any]] = []
    while (done := sum(len(run["kills"]) for run in runs)) < options.kills:
        shutil.rmtree(folder, ignore_errors=True)
        kills: list[dict[str, Any]] = []
        while len(kills) < options.kills - done and (kill := kill_once(source, folder, seconds, rng)):
            kills.append(kill)
        before = shard_times(folder)
        written = pack_to(source, folder)
        after = shard_times(folder)
        resumed = {
            "shards_before": len(before),
            "shards_kept": sum(after[name] == changed for name, changed in before.items()),
            "shards_written": written,
        }
        runs.append({"kills": kills, "last_resume": resumed, "identical": same_files(whole, folder)})
    return runs


def same_files(first: Path, second: Path) -> bool:
    names = sorted(path.name for path in first.iterdir())
    return names == sorted(path.name for path in second.iterdir()) and all(
        (first / name).read_bytes() == (second / name).read_bytes() for name in names
    )


def read_with_tensorflow(folder: Path, source: Path) -> dict[str, int]:
    """Return the number of records that TensorFlow reads, and of those that equal their files."""
    tf = import_tensorflow()
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        "image/class/text": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    files = sorted(str(path) for path in folder.glob("*.tfrecord"))
    dataset = tf.data.TFRecordDataset(files).batch(1024).map(lambda batch: tf.io.parse_example(batch, features))
    count = equal = 0
    for batch in dataset.prefetch(2).as_numpy_iterator():
        rows = list(zip(*(batch[name].tolist() for name in features), strict=True))
        count += len(rows)
        for data, file, text, label in rows:
            name = file.decode()
            is_labeled = text.decode() == name.partition("/")[0] == f"class{label:02}"
            equal += is_labeled and (source / name).read_bytes() == data
    return {"records": count, "equal": equal}


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
    """Measure, write the document, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="folder of the images, which a later call uses again")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=Path, default=Path(__file__).with_name("packing.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        document = measure(args, args.work or Path(temporary))
    args.target.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({key: value for key, value in document.items() if key != "machine"}, indent=1))


def measure(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return the document.

    Args:
        args: arguments of the command.
        work: folder of the images and of the shards.
    """
    source, whole, killed = work / "images", work / "whole", work / "killed"
    if not source.exists():
        make_images(source, args.images, args.seed)
        show("images")
    rates = measure_rates(source, whole, work / "copy", args.rounds)
    show("rates")
    seconds = rates["num_bytes"] / 1e6 / median(rates["megabytes_per_second"]["pack"])
    runs = measure_kills(source, whole, killed, args, seconds)
    show("kills")
    return {
        "schema": "quantkit.bench_packing/3",
        "machine": this_machine().to_json(),
        "load": os.getloadavg()[0],
        "images": args.images,
        "shards": len(shard_times(whole)),
        **rates,
        "runs_with_kills": runs,
        "tensorflow": read_with_tensorflow(killed, source),
        "flipped_bits": FLIPPED_BITS,
        "flipped_bits_found": flip_bits(killed, FLIPPED_BITS, random.Random(args.seed)),
        "intact_after_repair": verify(killed).ok,
    }


def show(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
