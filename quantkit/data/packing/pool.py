"""Worker processes from the parent's side: each one writes one shard after the other."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from quantkit.data.packing.examples import ImageOptions
from quantkit.data.packing.items import Source
from quantkit.data.packing.plan import ShardTask
from quantkit.data.packing.writer import Shard, write_shard
from quantkit.errors import InputError, UnavailableError

BOOTSTRAP = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from quantkit.data.packing.worker import main
main()
"""


def write_all(
    folder: str,
    tasks: Sequence[ShardTask],
    source: Source,
    options: ImageOptions,
    workers: int,
    lock: int,
    on_samples: Callable[[int, int], None],
) -> Iterator[Shard]:
    """Write shards; yield each one when it is complete. A single worker is this process itself.

    Args:
        folder: folder of the shards.
        tasks: shards to write.
        source: source of the samples.
        options: changes of the images.
        workers: number of processes.
        lock: descriptor of the locked folder, which the workers keep open, so that the lock ends with the last one.
        on_samples: receives the number and the bytes of the samples that were read since the last call.

    Raises:
        InputError: a shard cannot be written, or the source changed during the work.
        UnavailableError: a worker process ended unexpectedly.
    """
    if workers == 1 or len(tasks) == 1:
        for task in tasks:
            path = Path(folder, task.file)
            yield write_shard(path, task.items, source.kind, source.classes, options, task.digest, on_samples)
        return
    requests = _describe_tasks(folder, tasks, source, options)[::-1]
    messages: SimpleQueue[tuple[int, dict[str, Any] | None]] = SimpleQueue()
    processes = [_start(lock) for _ in range(min(workers, len(tasks)))]
    for index, process in enumerate(processes):
        Thread(target=_receive, args=(index, process, messages), daemon=True).start()
        _request(process, requests.pop())
    try:
        left = len(tasks)
        while left:
            index, message = messages.get()
            if message is None:
                raise UnavailableError(
                    f"a worker process ended with code {processes[index].wait()}",
                    hint="run the same command to resume; fewer --workers need less memory",
                )
            if "error" in message:
                raise InputError(message["error"], message["hint"])
            if "samples" in message:
                on_samples(message["samples"], message["num_bytes"])
                continue
            left -= 1
            if requests:
                _request(processes[index], requests.pop())
            yield Shard.from_json(message["shard"])
    finally:
        for process in processes:
            _end(process)


def _describe_tasks(folder: str, tasks: Sequence[ShardTask], source: Source, options: ImageOptions) -> list[str]:
    """Return the requests that a worker reads, one line for each shard."""
    return [
        json.dumps(
            {
                "path": os.path.join(folder, task.file),
                "items": [item.to_list() for item in task.items],
                "kind": source.kind,
                "classes": source.classes,
                "options": options.to_json(),
                "digest": task.digest,
            }
        )
        for task in tasks
    ]


def _start(lock: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(lock,),
        # One process per core: the libraries in it start no threads.
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        # Ctrl-C at the terminal interrupts the parent only, which ends its workers.
        start_new_session=True,
    )


def _request(process: subprocess.Popen[str], request: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the end of the process is reported by `_receive`
        process.stdin.write(f"{request}\n")
        process.stdin.flush()


def _receive(
    index: int, process: subprocess.Popen[str], messages: "SimpleQueue[tuple[int, dict[str, Any] | None]]"
) -> None:
    """Forward the messages of a process, then None."""
    assert process.stdout is not None
    with suppress(ValueError):  # the pipe was closed
        for line in process.stdout:
            messages.put((index, json.loads(line)))
    messages.put((index, None))


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
