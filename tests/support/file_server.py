"""File server with configurable faults, and small archives to serve."""

import errno
import gzip
import hashlib
import io
import tarfile
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quantkit.formats import graphdef
from quantkit.ir.graph import Graph, constant
from quantkit.zoo.cards import ModelCard

GRAPH = graphdef.encode(Graph.of([constant("weights", np.arange(25_600, dtype=np.int32))]))
LABELS = b"cat\ndog\n"


CARD = """
name = "small"
title = "Cats and dogs"
description = "A card for tests."
license = "Apache-2.0"
graph = "graph.pb"
num_classes = 2
recipe = "fold_constants"

[archive]
ARCHIVE

[[members]]
name = "labels.txt"

[[inputs]]
name = "input"
dtype = "float"
shape = [1, 8, 8, 3]

[[outputs]]
name = "softmax"
dtype = "float"
shape = [1, 2]

[preprocessing]
height = 8
width = 8
mean = 128
std = 128

[labels]
order = "own"
files = ["labels.txt"]
"""


@dataclass
class Server:
    """Files and faults of the server.

    Attributes:
        files: bodies by path.
        faults: faults of the next requests: number of bytes before the connection is closed, or a status.
        supports_ranges, sends_length: capabilities of the server.
        etag, last_modified: ETag and Last-Modified headers of every file.
        ignores_if_range: send a range of another version than If-Range names.
        seconds_per_byte: pause after each byte of a body.
        content_type: Content-Type header of every file.
        gate: event; if present, a body pauses after `gate_at` bytes until the event is set.
        requests: (path, Range header) of each request.
        authorization: Authorization header of each request.
    """

    base: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list["int | Status"] = field(default_factory=list)
    supports_ranges: bool = True
    sends_length: bool = True
    etag: str = '"one"'
    last_modified: str = ""
    ignores_if_range: bool = False
    seconds_per_byte: float = 0.0
    content_type: str = "application/octet-stream"
    gate: threading.Event | None = None
    gate_at: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    authorization: list[str] = field(default_factory=list)

    def url(self, path: str, body: bytes | None = None) -> str:
        if body is not None:
            self.files[path] = body
        return f"{self.base}/{path}"


@dataclass(frozen=True)
class Status:
    code: int
    body: bytes = b""


class Handler(BaseHTTPRequestHandler):
    state: Server

    def log_message(self, format: str, *values: object) -> None:
        pass

    def do_GET(self) -> None:
        state, path, range_header = self.state, self.path.lstrip("/"), self.headers.get("Range", "")
        state.requests.append((path, range_header))
        state.authorization.append(self.headers.get("Authorization", ""))
        fault = state.faults.pop(0) if state.faults else None
        if isinstance(fault, Status):
            self.send_error(fault.code)
            return
        if path not in state.files:
            self.send_error(404)
            return
        body = state.files[path]
        start = self._start(range_header, len(body))
        if start > len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if state.sends_length:
            self.send_header("Content-Length", str(len(body) - start))
        if state.etag:
            self.send_header("ETag", state.etag)
        if state.last_modified:
            self.send_header("Last-Modified", state.last_modified)
        self.send_header("Content-Type", state.content_type)
        self.end_headers()
        self._send(body[start:] if fault is None else body[start : start + fault])

    def _start(self, range_header: str, length: int) -> int:
        if not (range_header and self.state.supports_ranges) or (
            not self.state.ignores_if_range and self.headers.get("If-Range") not in self._versions()
        ):
            return 0
        return int(range_header.removeprefix("bytes=").rstrip("-"))

    def _versions(self) -> tuple[str | None, ...]:
        return (None, self.state.etag, self.state.last_modified)

    def _send(self, body: bytes) -> None:
        try:
            if self.state.gate:
                self.wfile.write(body[: self.state.gate_at])
                self.wfile.flush()
                self.state.gate.wait(20)
                body = body[self.state.gate_at :]
            if self.state.seconds_per_byte:
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    time.sleep(self.state.seconds_per_byte)
            else:
                self.wfile.write(body)
        except ConnectionError:
            pass


def tar_gz(entries: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    """Return a tar.gz archive of bodies; a TarInfo is added without a body."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as file:
        for name, body in entries.items():
            if isinstance(body, tarfile.TarInfo):
                file.addfile(body)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(body)
                file.addfile(info, io.BytesIO(body))
    return gzip.compress(raw.getvalue(), 1, mtime=0)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def special_entry(name: str, kind: bytes = tarfile.SYMTYPE, target: str = "/etc/passwd") -> tarfile.TarInfo:
    """Return an entry that is not a regular file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def open_on_limited_disk(num_bytes: int) -> Any:
    """Return a replacement of `Path.open` that raises ENOSPC for files above a size."""
    original_open = Path.open

    class Full(io.FileIO):
        def write(self, block: Any) -> int:
            if self.tell() + len(block) > num_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(block)

    def open_file(path: Path, mode: str = "r", *values: Any, **options: Any) -> Any:
        return (
            io.BufferedWriter(Full(path, mode))
            if mode in ("ab", "wb")
            else original_open(path, mode, *values, **options)
        )

    return open_file


class MakeCard(Protocol):
    """Function that creates the card of the small model from archive URLs, sizes and digests."""

    def __call__(
        self,
        *urls: str,
        num_bytes: int | None = None,
        sha256: str = "",
        graph_sha256: str = "",
        graph_bytes: int | None = None,
        graph_urls: tuple[str, ...] = (),
    ) -> ModelCard: ...
