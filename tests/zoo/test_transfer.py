"""Download of a URL over a connection with all kinds of failures."""

import socket
import threading
import time
from base64 import b64encode
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

import pytest
from file_server import Server, Status, open_on_limited_disk

from quantkit.errors import InputError
from quantkit.progress import Progress
from quantkit.zoo import transfer
from quantkit.zoo.transfer import SourceError, count_resumable_bytes, download

BODY = bytes(range(256)) * 3000


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "model.part"


def test_file_is_downloaded_with_progress(server: Server, part: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    download(server.url("a", BODY), part, on_progress=lambda state: reports.append((state.done, state.total)))
    assert part.read_bytes() == BODY
    assert reports[0] == (0, len(BODY))
    assert reports[-1] == (len(BODY), len(BODY))


def test_progress_reports_are_throttled(server: Server, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1000)
    reports: list[int] = []
    download(server.url("a", BODY), part, on_progress=lambda state: reports.append(state.done))
    assert len(reports) < 100


def test_dropped_connection_is_resumed(server: Server, part: Path) -> None:
    server.faults = [100_000, 200_000]
    messages: list[str] = []
    download(server.url("a", BODY), part, on_message=messages.append)
    assert part.read_bytes() == BODY
    assert [ranges for _, ranges in server.requests] == ["", "bytes=100000-", "bytes=300000-"]
    assert len(messages) == 2
    assert "100,000 of 768,000 bytes" in messages[0]


def test_a_server_without_ranges_sends_the_whole_file(server: Server, part: Path) -> None:
    server.faults, server.supports_ranges = [100_000], False
    download(server.url("a", BODY), part)
    assert part.read_bytes() == BODY


def test_repeatedly_dropped_connection_is_an_error(server: Server, part: Path) -> None:
    server.faults, server.supports_ranges = [100_000] * 50, False
    with pytest.raises(SourceError, match="dropped after 100,000 of 768,000 bytes") as caught:
        download(server.url("a", BODY), part)
    assert len(server.requests) == transfer.FRUITLESS_ATTEMPTS + 1
    assert "resume the download" in caught.value.hint


def test_an_interrupted_download_is_resumed(server: Server, part: Path) -> None:
    def stop(state: Progress) -> None:
        if state.done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.url("a", BODY), part, on_progress=stop)
    half = part.stat().st_size
    assert half > 0
    download(server.url("a"), part)
    assert part.read_bytes() == BODY
    assert half == len(BODY) or server.requests[-1] == ("a", f"bytes={half}-")


def test_a_complete_part_needs_no_request(server: Server, part: Path) -> None:
    download(server.url("a", BODY), part)
    download(server.url("a"), part)
    assert len(server.requests) == 1


@pytest.mark.parametrize("ignores_if_range", [False, True])
@pytest.mark.parametrize("etag", ['"two"', 'W/"one"', ""])
def test_another_version_replaces_the_part(server: Server, part: Path, etag: str, ignores_if_range: bool) -> None:
    _leave_half(server, part)
    changed = BODY[::-1]
    server.files["a"], server.etag, server.ignores_if_range = changed, etag, ignores_if_range
    download(server.url("a"), part)
    assert part.read_bytes() == changed


# Headers that two versions of a file may share; the Date of the test server is the present.
@pytest.mark.parametrize(("etag", "last_modified"), [('W/"one"', ""), ("", ""), ("", "now"), ("", "yesterday")])
def test_without_a_strong_validator_the_download_starts_again(
    server: Server, part: Path, etag: str, last_modified: str
) -> None:
    server.etag = etag
    server.last_modified = formatdate(usegmt=True) if last_modified == "now" else last_modified
    _leave_half(server, part)
    changed = BODY[::-1]  # of equal length
    server.files["a"] = changed
    assert count_resumable_bytes(part) == 0
    download(server.url("a"), part)
    assert part.read_bytes() == changed
    assert server.requests[-1] == ("a", "")


def test_an_old_modification_time_is_a_strong_validator(server: Server, part: Path) -> None:
    server.etag, server.last_modified = "", "Mon, 02 Nov 2015 08:00:00 GMT"
    _leave_half(server, part)
    download(server.url("a"), part)
    assert part.read_bytes() == BODY
    assert server.requests[-1] == ("a", "bytes=400000-")


def test_a_damaged_note_starts_the_download_again(server: Server, part: Path) -> None:
    _leave_half(server, part)
    for note in ('{"validator": 3, "num_bytes": 768000}', '{"validator": "a\\nb", "num_bytes": 768000}', "[]"):
        part.with_name(part.name + ".json").write_text(note)
        assert count_resumable_bytes(part) == 0
    download(server.url("a"), part)
    assert part.read_bytes() == BODY


def test_a_slow_server_reaches_the_time_limit(server: Server, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "TOTAL_SECONDS", 0.5)
    server.seconds_per_byte = 0.05
    start = time.monotonic()
    with pytest.raises(SourceError, match=r"the server is too slow: \d+ bytes in 0 seconds") as caught:
        download(server.url("a", BODY), part)
    assert time.monotonic() - start < 10
    assert "resume" in caught.value.hint


def test_a_server_that_never_ends_its_headers_reaches_the_time_limit(
    part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "TOTAL_SECONDS", 0.5)
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not stop.wait(0.05):
                with suppress(OSError):
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        start = time.monotonic()
        with pytest.raises(SourceError, match="the server is too slow"):
            download(f"http://127.0.0.1:{listener.getsockname()[1]}/a", part)
        assert time.monotonic() - start < 10
        stop.set()
        thread.join()


def test_the_password_of_a_url_is_sent_and_hidden(server: Server, part: Path) -> None:
    url = server.url("a", BODY).replace("://", "://ann:s%65cret@")
    server.faults = [100_000]
    messages: list[str] = []
    download(url, part, on_message=messages.append)
    assert part.read_bytes() == BODY
    assert server.authorization == ["Basic " + b64encode(b"ann:secret").decode()] * 2
    with pytest.raises(SourceError, match="HTTP 404") as caught:
        download(url + "nothing", part.with_name("b.part"))
    for text in (*messages, caught.value.message):
        assert "http://ann:***@127.0.0.1" in text
        assert "s%65cret" not in text


@pytest.mark.parametrize("url", ["http://[::1", "http://[x]/a", "http://127.0.0.1:99999/a", "http://127.0.0.1:p/a"])
def test_a_broken_host_is_an_error(part: Path, url: str) -> None:
    with pytest.raises(SourceError, match="is not a valid URL"):
        download(url, part)


def test_a_shorter_version_replaces_the_part(server: Server, part: Path) -> None:
    server.etag = ""
    _leave_half(server, part)
    server.files["a"] = b"short"
    download(server.url("a"), part)
    assert part.read_bytes() == b"short"


def test_another_range_than_requested_is_retried(server: Server, part: Path) -> None:
    _leave_half(server, part)
    server.files["a"] = BODY + b"more"
    download(server.url("a"), part)
    assert part.read_bytes() == BODY + b"more"


def test_part_without_a_note_is_downloaded_again(server: Server, part: Path) -> None:
    part.write_bytes(b"?" * 1000)
    download(server.url("a", BODY), part)
    assert part.read_bytes() == BODY


@pytest.mark.parametrize("code", [429, 500, 503])
def test_temporary_status_is_retried(server: Server, part: Path, code: int) -> None:
    server.faults = [Status(code)]
    download(server.url("a", BODY), part)
    assert part.read_bytes() == BODY


@pytest.mark.parametrize("code", [401, 403, 404])
def test_permanent_status_is_not_retried(server: Server, part: Path, code: int) -> None:
    server.faults = [Status(code)]
    with pytest.raises(SourceError, match=f"HTTP {code}"):
        download(server.url("a", BODY), part)
    assert len(server.requests) == 1
    assert not part.exists()


@pytest.mark.parametrize("content_type", ["text/html", "application/octet-stream"])
def test_web_page_is_rejected_and_the_part_stays(server: Server, part: Path, content_type: str) -> None:
    _leave_half(server, part)
    half = part.read_bytes()
    page = b"\n<!DOCTYPE html><p>Log in" + b" " * 2109
    server.files["a"], server.content_type, server.etag = page, content_type, '"two"'
    with pytest.raises(SourceError, match="the server sent a web page, 2,134 bytes"):
        download(server.url("a"), part, num_bytes=len(BODY))
    assert part.read_bytes() == half


def test_wrong_size_is_rejected_before_the_download(server: Server, part: Path) -> None:
    with pytest.raises(SourceError, match="expected 88,931,400 bytes, found 768,000"):
        download(server.url("a", BODY), part, num_bytes=88931400)
    assert not part.exists()


def test_body_without_length_is_read_to_its_end(server: Server, part: Path) -> None:
    server.sends_length = False
    reports: list[tuple[int, int | None]] = []
    download(server.url("a", BODY), part, on_progress=lambda state: reports.append((state.done, state.total)))
    assert part.read_bytes() == BODY
    assert reports[0] == (0, None)
    assert reports[-1] == (len(BODY), len(BODY))


def test_too_long_body_without_length_is_rejected(server: Server, part: Path) -> None:
    server.sends_length = False
    with pytest.raises(SourceError, match="expected 1,000 bytes, found more"):
        download(server.url("a", BODY), part, num_bytes=1000)


def test_an_empty_file_is_rejected(server: Server, part: Path) -> None:
    with pytest.raises(SourceError, match="the server sent an empty file"):
        download(server.url("a", b""), part)


def test_file_url_is_copied(tmp_path: Path, part: Path) -> None:
    (tmp_path / "my model.tgz").write_bytes(BODY)
    download((tmp_path / "my model.tgz").as_uri(), part, num_bytes=len(BODY))
    assert part.read_bytes() == BODY
    with pytest.raises(SourceError, match="there is no such file"):
        download((tmp_path / "none").as_uri(), tmp_path / "other.part")


def test_an_unused_port_is_an_error(part: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SourceError, match="Connection refused"):
        download(f"http://127.0.0.1:{port}/a", part)


def test_url_with_spaces_is_rejected(part: Path) -> None:
    with pytest.raises(SourceError, match="not a valid URL"):
        download("http://127.0.0.1/a b", part)


def test_full_disk_keeps_the_part(server: Server, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 10_000)
    with monkeypatch.context() as full:
        full.setattr(Path, "open", open_on_limited_disk(55_000))
        with pytest.raises(InputError, match="the disk is full") as caught:
            download(server.url("a", BODY), part)
    assert not isinstance(caught.value, SourceError)
    assert "QUANTKIT_CACHE" in caught.value.hint
    half = part.stat().st_size
    assert 0 < half <= 55_000
    download(server.url("a"), part)
    assert part.read_bytes() == BODY
    assert server.requests[-1] == ("a", f"bytes={half}-")


def _leave_half(server: Server, part: Path) -> None:
    server.faults = [400_000]
    server.files["a"] = BODY

    def stop(sentence: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.url("a"), part, on_message=stop)
    assert part.stat().st_size == 400_000
