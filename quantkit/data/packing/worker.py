"""Process that writes shards: one JSON request per line on stdin, progress and results as JSON lines on stdout.

The process ends when stdin is closed, and within a few samples when its parent has died.
"""

import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from quantkit.data.packing.examples import ImageOptions
from quantkit.data.packing.items import SourceItem
from quantkit.data.packing.writer import write_shard
from quantkit.errors import QuantkitError


def main() -> None:
    """Write the shards of the requests until stdin is closed."""
    parent = os.getppid()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print do not disturb the protocol
    for line in sys.stdin:
        if not line.endswith("\n"):  # the parent died while it sent the request
            break
        _send(output, _write(json.loads(line), output, parent))


def _write(request: dict[str, Any], output: IO[str], parent: int) -> dict[str, Any]:
    def report(count: int, num_bytes: int) -> None:
        if os.getppid() != parent:
            os._exit(1)
        _send(output, {"samples": count, "num_bytes": num_bytes})

    try:
        shard = write_shard(
            Path(request["path"]),
            [SourceItem(*values) for values in request["items"]],
            request["kind"],
            request["classes"],
            ImageOptions(**request["options"]),
            request["digest"],
            report,
        )
    except QuantkitError as error:
        return {"error": error.message, "hint": error.hint}
    return {"shard": shard.to_json()}


def _send(output: IO[str], message: dict[str, Any]) -> None:
    try:
        print(json.dumps(message), file=output, flush=True)
    except BrokenPipeError:  # the parent has died
        os._exit(1)
