"""A file server with faults that can be switched on, and small archives to serve."""

import errno
import gzip
import hashlib
import io
import tarfile
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

from quantkit.zoo.cards import ModelCard

GRAPH = b"\x0a" + bytes(range(256)) * 400
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
    """What is served, and how badly.

    Attributes:
        files: bodies by path.
        faults: for the next requests, one each: bytes after which the line drops, or a status.
        knows_ranges, sends_length: what the server can do.
        etag: of every file.
        content_type: of every file.
        gate: when set, a body stops at `gate_at` bytes until it is opened.
        requests: (path, Range header) of each request.
    """

    base: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list["int | Status"] = field(default_factory=list)
    knows_ranges: bool = True
    sends_length: bool = True
    etag: str = '"one"'
    content_type: str = "application/octet-stream"
    gate: threading.Event | None = None
    gate_at: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)

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
        state, path, asked = self.state, self.path.lstrip("/"), self.headers.get("Range", "")
        state.requests.append((path, asked))
        fault = state.faults.pop(0) if state.faults else None
        if isinstance(fault, Status):
            self.send_error(fault.code)
            return
        if path not in state.files:
            self.send_error(404)
            return
        body = state.files[path]
        start = self._start(asked, len(body))
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
        self.send_header("Content-Type", state.content_type)
        self.end_headers()
        self._send(body[start:] if fault is None else body[start : start + fault])

    def _start(self, asked: str, length: int) -> int:
        if not (asked and self.state.knows_ranges) or self.headers.get("If-Range", self.state.etag) != self.state.etag:
            return 0
        return int(asked.removeprefix("bytes=").rstrip("-"))

    def _send(self, body: bytes) -> None:
        try:
            if self.state.gate:
                self.wfile.write(body[: self.state.gate_at])
                self.wfile.flush()
                self.state.gate.wait(20)
                body = body[self.state.gate_at :]
            self.wfile.write(body)
        except ConnectionError:
            pass


def tape(entries: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    """A tar.gz; a TarInfo instead of a body stands for itself."""
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


def odd(name: str, kind: bytes = tarfile.SYMTYPE, target: str = "/etc/passwd") -> tarfile.TarInfo:
    """An entry that is no regular file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def opening_on_a_disk_of(num_bytes: int) -> Any:
    """A stand-in for `Path.open` that writes no file beyond a size."""
    opening = Path.open

    class Full(io.FileIO):
        def write(self, block: Any) -> int:
            if self.tell() + len(block) > num_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(block)

    def open_it(path: Path, mode: str = "r", *values: Any, **named: Any) -> Any:
        return io.BufferedWriter(Full(path, mode)) if mode in ("ab", "wb") else opening(path, mode, *values, **named)

    return open_it


class MakeCard(Protocol):
    """Makes the card of the small model: urls of its archive, sizes and digests of archive and graph."""

    def __call__(self, *urls: str, **facts: Any) -> ModelCard: ...
