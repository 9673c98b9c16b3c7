"""Kill workers, the command and the node of Ray at random moments, and compare the results with those of a quiet run.

    python tests/bench/measure_worker_kills.py IMAGES [--model digits@reference] [--samples 2000] [--kills 20]

Takes about 4 minutes. IMAGES is a folder of JPEG files. Writes `worker_kills.json`. Each kill follows a random number
of finished shards and a random fraction of the duration of a shard, so that the victim is in the middle of a shard; a
run that is complete before its last kill is followed by another one.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from quantkit.benchmark.host.machine import this_machine

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from linked_images import link_images
from worker_processes import kind_of

HERE = Path(__file__).parent
WORKER_OPTIONS = ("--workers=2", "--threads=1", "--batch=8", "--retries=20")
MAX_SHARDS_BETWEEN_KILLS = 4


def processes_of(pid: int) -> dict[str, list[int]]:
    """Return the command and the processes below it by kind."""
    kinds: dict[str, list[int]] = {"command": [pid]}
    try:
        for child in psutil.Process(pid).children(recursive=True):
            kinds.setdefault(kind_of(child), []).append(child.pid)
    except psutil.NoSuchProcess:
        pass
    return kinds


def count_results(folder: Path) -> int:
    return len(list(folder.glob("results-*")))


class Killer:
    """Random kills of a command that is started again until its results are complete.

    Args:
        command: command line that writes to `folder`.
        folder: folder of the results.
        kinds: kinds of victims; each kill draws one of them.
        shards: number of shards.
        shard_seconds: duration of a shard.
        generator: random numbers.
    """

    def __init__(
        self,
        command: list[str],
        folder: Path,
        kinds: list[str],
        shards: int,
        shard_seconds: float,
        generator: random.Random,
    ) -> None:
        self.command = command
        self.folder = folder
        self.kinds = kinds
        self.shards = shards
        self.shard_seconds = shard_seconds
        self.generator = generator

    def run(self, max_kills: int) -> Iterator[dict[str, Any]]:
        """Yield the kills of one run from its start until its results are complete."""
        shutil.rmtree(self.folder, ignore_errors=True)
        kills = 0
        while not (self.folder / "report.json").exists():
            process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and kills < max_kills:
                kill = self._kill_once(process)
                if kill is not None:
                    kills += 1
                    yield kill
            process.wait()

    def _kill_once(self, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """Kill one process after some finished shards; None if the command ends before."""
        before = count_results(self.folder)
        left = max(self.shards - 1 - before, 0)
        goal = before + self.generator.randint(0, min(MAX_SHARDS_BETWEEN_KILLS, left))
        kind = self.generator.choice(self.kinds)
        while process.poll() is None and (count_results(self.folder) < goal or kind not in processes_of(process.pid)):
            time.sleep(0.002)
        time.sleep(self.generator.random() * self.shard_seconds)
        victims = processes_of(process.pid).get(kind, [])
        finished = count_results(self.folder)
        if process.poll() is not None or not victims:
            return None
        try:
            os.kill(self.generator.choice(victims), signal.SIGKILL)
        except ProcessLookupError:
            return None
        if kind != "worker":
            process.wait()
        return {"victim": kind, "finished_shards": finished}


def same_results(first: Path, second: Path) -> bool:
    names = sorted(path.name for path in first.glob("results-*"))
    return names == sorted(path.name for path in second.glob("results-*")) and all(
        (first / name).read_bytes() == (second / name).read_bytes() for name in names
    )


def measure_cluster(options: argparse.Namespace, data: Path, folder: Path, cluster: str, kills: int) -> dict[str, Any]:
    """Return the kills, and the comparison of each complete run with a quiet one."""
    quiet, killed = folder / f"quiet_{cluster}", folder / f"killed_{cluster}"
    command = [sys.executable, "-m", "quantkit", "run", options.model, "--data", str(data), "-q", *WORKER_OPTIONS]
    command += [f"--shard-size={options.shard_size}", f"--cluster={cluster}", "-o"]
    subprocess.run([*command, str(quiet)], check=True, stdout=subprocess.DEVNULL)
    report = json.loads((quiet / "report.json").read_text())
    busy = sum(report["parts"][name] for name in ("input", "runtime", "write"))
    kinds = ["worker", "worker", "command", *(["node"] if cluster == "ray" else [])]
    shards = len(report["files"])
    killer = Killer([*command, str(killed)], killed, kinds, shards, busy / shards, random.Random(1))
    runs: list[dict[str, Any]] = []
    while (done := sum(len(run["kills"]) for run in runs)) < kills:
        events = list(killer.run(kills - done))
        remaining = [path.name for path in killed.glob(".results-*")]
        runs.append({"kills": events, "equal": same_results(quiet, killed), "remaining": remaining})
    return {"cluster": cluster, "files": shards, "samples": report["samples"], "runs": runs}


def main() -> None:
    """Measure, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", default="digits@reference")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--shard-size", type=int, default=40)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--target", type=Path, default=HERE / "worker_kills.json")
    options = parser.parse_args()
    in_ray = 0 if options.no_ray else options.kills // 3  # a start of Ray takes longer
    document: dict[str, Any] = {
        "schema": "quantkit.worker_kills/1",
        "machine": this_machine().to_json(),
        "model": options.model,
        "shard_size": options.shard_size,
        "clusters": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = link_images(options.images, options.samples, folder / "images")
        for cluster, kills in (("local", options.kills - in_ray), *([("ray", in_ray)] if in_ray else [])):
            row = measure_cluster(options, data, folder, cluster, kills)
            document["clusters"].append(row)
            options.target.write_text(json.dumps(document, indent=1) + "\n")
            events = [kill for run in row["runs"] for kill in run["kills"]]
            equal = all(run["equal"] and not run["remaining"] for run in row["runs"])
            victims = ", ".join(f"{kill['victim']} after {kill['finished_shards']}" for kill in events)
            print(f"{cluster}: {len(events)} kills in {len(row['runs'])} runs, equal: {equal} ({victims})", flush=True)


if __name__ == "__main__":
    main()
