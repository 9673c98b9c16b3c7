"""Download of a URL to a file: streamed, resumable, with retries.

``X.part.json`` stores the server's strong validator and the full size of ``X.part``. The next
attempt requests the rest with ``Range`` and ``If-Range``; a server that has another version, or
does not support ranges, sends the whole file, which replaces the part. Without a strong validator
(RFC 9110, section 8.8) two versions could be joined: the download starts again. A web page instead
of the file is rejected before it replaces the part.
"""

import http.client
import json
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from threading import Event, Timer
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, Request, build_opener

from quantkit.errors import hide_password
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.zoo.cache import SourceError, open_for_writing, translate_write_errors

CHUNK_BYTES = 1 << 18
MAX_BYTES = 4 << 30
# Limit of one wait for the server, and of the whole download with all attempts.
TIMEOUT_SECONDS = 30.0
TOTAL_SECONDS = 3600.0
BACKOFF_SECONDS = 0.5
FRUITLESS_ATTEMPTS = 3
ALL_ATTEMPTS = 20
REPORT_SECONDS = 0.1
Report = Callable[[int, int | None], None]
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})

# A Last-Modified is a strong validator if the server's clock is later by at least this number of seconds.
STRONG_SECONDS = 60

CHECK_NETWORK = "check the address, the network and the proxy (HTTPS_PROXY)"


class _TransientError(Exception):
    """Failure of a connection that a retry may solve."""


@dataclass(frozen=True)
class _Note:
    """Version of the file that a part belongs to."""

    validator: str
    num_bytes: int

    @classmethod
    def read(cls, part: Path) -> "_Note | None":
        try:
            note = cls(**json.loads(_note_of(part).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        is_valid = isinstance(note.validator, str) and isinstance(note.num_bytes, int) and note.num_bytes > 0
        return note if is_valid and note.validator.isprintable() else None


def download(
    url: str,
    part: Path,
    *,
    num_bytes: int | None = None,
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> None:
    """Download a URL to a file.

    Args:
        url: URL of the scheme http, https or file; the environment defines the proxies.
        part: path of the file; a partial file is resumed, and kept for the next attempt on failure.
        num_bytes: size that the file must have; None if it is not known.
        on_progress: receives the bytes done and the total number of bytes, at most ten times a
            second.
        on_message: receives a message before each retry.

    Raises:
        SourceError: the server rejects the request, sends another file or takes longer than
            `TOTAL_SECONDS`, or the connection fails repeatedly.
        InputError: the file cannot be written.
    """
    report = _throttle(on_progress)
    best, fruitless, deadline = -1, 0, time.monotonic() + TOTAL_SECONDS
    for _ in range(ALL_ATTEMPTS):
        try:
            return _connect(url, part, num_bytes, report, deadline)
        except _TransientError as error:
            reason, done = str(error), _size(part)
        fruitless = 0 if done > best else fruitless + 1
        best = max(best, done)
        if time.monotonic() >= deadline:
            reason = f"the server is too slow: {done:,} bytes in {TOTAL_SECONDS:,.0f} seconds"
            break
        if fruitless == FRUITLESS_ATTEMPTS:
            break
        on_message(hide_password(f"{url}: {reason}; trying again"))
        time.sleep(BACKOFF_SECONDS * 2**fruitless)
    raise SourceError(f"{url}: {reason}", hint="run the command again to resume the download")


def count_resumable_bytes(part: Path) -> int:
    """Return the number of bytes that the next attempt can resume from."""
    note = _Note.read(part)
    num_bytes = _size(part)
    return num_bytes if note and (note.validator or num_bytes == note.num_bytes) else 0


def discard(part: Path) -> None:
    """Remove a partial download."""
    part.unlink(missing_ok=True)
    _note_of(part).unlink(missing_ok=True)


def _connect(url: str, part: Path, num_bytes: int | None, report: Report, deadline: float) -> None:
    """Connect and receive the file once.

    Raises:
        _TransientError: a retry may succeed.
    """
    note = _Note.read(part)
    offset = count_resumable_bytes(part)
    if note and offset == note.num_bytes:
        return
    try:
        with _open(_request(url, offset, note), deadline) as response:
            offset, total = _start_and_size(response, offset, note, part)
            _receive(url, response, part, offset, total, num_bytes, report)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            discard(part)
            raise _TransientError("the file has changed on the server") from None
        raise _failure(url, error.code in TRANSIENT_STATUS, f"HTTP {error.code} {error.reason}") from None
    except URLError as error:
        raise _unreachable(url, error.reason) from None
    except (http.client.InvalidURL, UnicodeError):
        raise _invalid_url(url) from None
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _TransientError(f"the connection dropped after {_size(part):,} bytes ({_sentence(error)})") from None


def _request(url: str, offset: int, note: _Note | None) -> Request:
    try:
        parts = urlsplit(url)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        _ = parts.port
    except ValueError:
        raise _invalid_url(url) from None
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = Request(address, headers={"User-Agent": "quantkit", "Accept-Encoding": "identity"})
    if user:
        token = b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")  # another host must not receive it
    if offset and note:
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", note.validator)
    return request


def _invalid_url(url: str) -> SourceError:
    return SourceError(
        f"{url!r} is not a valid URL", hint="percent-encode spaces and other characters, for example %20"
    )


class _RecordSockets:
    """Mixin of urllib's handlers that keeps the sockets of all connections."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__()
        self._sockets = sockets

    def do_open(self, http_class: Any, req: Request, **http_conn_args: Any) -> Any:
        return super().do_open(partial(self._make_connection, http_class), req, **http_conn_args)  # type: ignore[misc]

    def _make_connection(self, http_class: Any, *arguments: Any, **options: Any) -> Any:
        connection = http_class(*arguments, **options)
        connect = connection.connect

        def connect_and_record() -> None:
            connect()
            self._sockets.append(connection.sock)

        connection.connect = connect_and_record
        return connection


class _HTTPHandler(_RecordSockets, HTTPHandler):
    pass


class _HTTPSHandler(_RecordSockets, HTTPSHandler):
    pass


@contextmanager
def _open(request: Request, deadline: float) -> Iterator[Any]:
    """Send a request; the connection is shut down at the deadline, also if the server sends byte after byte.

    Raises:
        _TransientError: the deadline is reached; a shut connection looks like the end of the file.
    """
    sockets: list[socket.socket] = []
    is_late = Event()

    def shut_down() -> None:
        is_late.set()
        for connection in sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    timer = Timer(max(0.0, deadline - time.monotonic()), shut_down)
    timer.daemon = True
    timer.start()
    try:
        opener = build_opener(_HTTPHandler(sockets), _HTTPSHandler(sockets))
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            yield response
    except SourceError:
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise _TransientError("the time is over")


def _start_and_size(response: Any, offset: int, note: _Note | None, part: Path) -> tuple[int, int | None]:
    """Return the offset of the response in the file, and the size of the file, if known."""
    if getattr(response, "status", None) == 206 and note:
        content_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        # Some servers ignore If-Range.
        is_same = note.validator in (response.headers.get("ETag"), response.headers.get("Last-Modified"))
        if is_same and content_range and (int(content_range[1]), int(content_range[2])) == (offset, note.num_bytes):
            return offset, note.num_bytes
        discard(part)
        raise _TransientError("the server sent another version or range than requested")
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _receive(
    url: str, response: Any, part: Path, offset: int, total: int | None, num_bytes: int | None, report: Report
) -> None:
    """Append a response to the part; a response with the whole file replaces it."""
    block = response.read1(CHUNK_BYTES)
    if offset == 0:
        _check_first(url, response, block, total, num_bytes)
        _begin(part, response, total)
    done, limit = offset, total or num_bytes or MAX_BYTES
    with open_for_writing(part, "ab") as write:
        report(done, total)
        while block:
            write(block)
            done += len(block)
            report(done, total)
            if done > limit:
                raise SourceError(f"{url}: expected {limit:,} bytes, found more")
            block = response.read1(CHUNK_BYTES) if done != total else b""
    if total is not None and done < total:
        raise _TransientError(f"the connection dropped after {done:,} of {total:,} bytes")
    if total is None:
        report(done, done)


def _begin(part: Path, response: Any, total: int | None) -> None:
    """Create an empty part, with a note that makes it resumable."""
    discard(part)
    if total is not None:
        note = _Note(_strong_validator(response.headers), total)
        with translate_write_errors(part):
            _note_of(part).write_text(json.dumps(asdict(note)), encoding="utf-8")


def _strong_validator(headers: Any) -> str:
    """Return the header that distinguishes two versions of a file; empty without such a header."""
    etag: str = headers.get("ETag", "")
    if etag.startswith('"'):
        return etag
    modified: str = headers.get("Last-Modified", "")
    try:
        age = parsedate_to_datetime(headers.get("Date", "")) - parsedate_to_datetime(modified)
    except (ValueError, TypeError):
        return ""
    return modified if age.total_seconds() >= STRONG_SECONDS else ""


def _check_first(url: str, response: Any, block: bytes, total: int | None, num_bytes: int | None) -> None:
    """Reject a login page, an error page with status 200, or a file of another size."""
    is_page = re.match(rb"\s*(<!doctype html|<html|<head|<body)", block, re.IGNORECASE)
    if is_page or response.headers.get_content_type() == "text/html":
        raise SourceError(
            f"{url}: the server sent a web page, {total or len(block):,} bytes",
            hint="open the address in a browser; a login page or a proxy may intercept the download",
        )
    if num_bytes is not None and total not in (None, num_bytes):
        raise SourceError(f"{url}: expected {num_bytes:,} bytes, found {total:,}")
    if total is not None and total > MAX_BYTES:
        raise SourceError(f"{url}: {total:,} bytes are more than any model needs")
    if total == 0 or (total is None and not block):
        raise SourceError(f"{url}: the server sent an empty file")


def _unreachable(url: str, reason: object) -> Exception:
    """Return the error for a failed connection."""
    is_permanent = isinstance(reason, ConnectionRefusedError | ssl.SSLCertVerificationError)
    is_transient = isinstance(reason, ConnectionError | ssl.SSLError) and not is_permanent
    if isinstance(reason, FileNotFoundError):
        return SourceError(f"{url}: there is no such file", hint="a file of this machine is file:///folder/archive.tgz")
    return _failure(url, is_transient, _sentence(reason))


def _failure(url: str, is_transient: bool, reason: str) -> Exception:
    return _TransientError(reason) if is_transient else SourceError(f"{url}: {reason}", hint=CHECK_NETWORK)


def _sentence(reason: object) -> str:
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return re.sub(r"^\[.*?\]\s*", "", str(text)) or type(reason).__name__


def _throttle(on_progress: OnProgress) -> Report:
    """Return a function that forwards the first report, the last, and one per `REPORT_SECONDS`."""
    last = float("-inf")

    def report(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS or done == total:
            last = now
            on_progress(Progress("downloading", done, total))

    return report


def _note_of(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
