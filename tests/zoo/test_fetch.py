"""From a card to a verified file: caches, mirrors, checksums, locks."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from file_server import (
    CARD,
    GRAPH,
    LABELS,
    MakeCard,
    Server,
    Status,
    digest,
    open_on_limited_disk,
    special_entry,
    tar_gz,
)

from quantkit.errors import InputError, UsageError
from quantkit.progress import Progress
from quantkit.zoo.cache import Receipt, cache_folder
from quantkit.zoo.cards import ModelCard, read_card
from quantkit.zoo.datasets import data_cards, obtain_data
from quantkit.zoo.fetch import fetch, label_files, locate, locate_member, obtain


@pytest.fixture
def card(server: Server, archive: bytes, make_card: MakeCard) -> ModelCard:
    return make_card(server.url("small.tgz", archive), num_bytes=len(archive), sha256=digest(archive))


def leftovers(cache: Path) -> list[str]:
    """List the cache without models and their locks."""
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock") and path.name != "small")


def test_a_model_is_fetched_once(server: Server, card: ModelCard, cache: Path) -> None:
    assert locate(card) is None
    path = fetch(card)
    assert path == cache / "small" / "graph.pb" == locate(card)
    assert path.read_bytes() == GRAPH
    assert sorted(file.name for file in path.parent.iterdir()) == ["graph.pb", "labels.txt", "receipt.json"]
    assert leftovers(cache) == []
    again = obtain(card)
    assert again.is_cached
    assert again.path == path
    assert again.warnings == ()
    assert len(server.requests) == 1


def test_receipt_contains_the_source(server: Server, card: ModelCard, archive: bytes) -> None:
    receipt = obtain(card).receipt
    assert receipt is not None
    assert receipt == Receipt.read(fetch(card).parent)
    assert (receipt.url, receipt.sha256, receipt.verified) == (server.url("small.tgz"), digest(archive), "archive")
    assert receipt.members["labels.txt"].sha256 == digest(LABELS)


def test_members_verify_an_archive_without_digest(server: Server, archive: bytes, make_card: MakeCard) -> None:
    card = make_card(server.url("a.tgz", archive), graph_sha256=digest(GRAPH), graph_bytes=len(GRAPH))
    receipt = obtain(card).receipt
    assert receipt is not None
    assert (receipt.verified, receipt.sha256) == ("members", digest(archive))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"sha256": "0" * 64}, "expected SHA-256 0{64}, found [0-9a-f]{64}"),
        ({"graph_sha256": "0" * 64}, "graph.pb: expected SHA-256 0{64}, found [0-9a-f]{64}"),
        ({"graph_bytes": 95673916}, f"graph.pb: expected 95,673,916 bytes, found {len(GRAPH):,}"),
        ({"num_bytes": 88931400}, "expected 88,931,400 bytes, found"),
    ],
)
def test_a_file_that_fails_a_check_is_removed(
    server: Server, archive: bytes, cache: Path, make_card: MakeCard, facts: dict[str, object], message: str
) -> None:
    card = make_card(server.url("small.tgz", archive), **facts)
    with pytest.raises(InputError, match=message) as caught:
        fetch(card)
    assert server.base in str(caught.value)
    assert locate(card) is None
    assert leftovers(cache) == []


def test_missing_member_is_rejected(server: Server, cache: Path, make_card: MakeCard) -> None:
    with pytest.raises(InputError, match=r"has no 'labels.txt'"):
        fetch(make_card(server.url("small.tgz", tar_gz({"graph.pb": GRAPH}))))
    assert leftovers(cache) == []


@pytest.mark.parametrize("entry", ["../graph.pb", "/graph.pb", "link"])
def test_unsafe_archive_is_rejected(server: Server, cache: Path, make_card: MakeCard, entry: str) -> None:
    body = {"graph.pb": special_entry("graph.pb")} if entry == "link" else {entry: GRAPH}
    with pytest.raises(InputError, match="the archive is rejected"):
        fetch(make_card(server.url("small.tgz", tar_gz(body))))
    assert leftovers(cache) == []


def test_mirrors_are_tried_in_order(server: Server, archive: bytes, make_card: MakeCard) -> None:
    messages: list[str] = []
    corrupt = bytearray(archive)
    corrupt[100] ^= 1
    card = make_card(
        server.url("missing.tgz"),
        server.url("corrupt.tgz", bytes(corrupt)),
        server.url("good.tgz", archive),
        sha256=digest(archive),
    )
    fetched = obtain(card, on_message=messages.append)
    assert fetched.receipt is not None
    assert fetched.receipt.url == server.url("good.tgz")
    assert [path for path, _ in server.requests] == ["missing.tgz", "corrupt.tgz", "good.tgz"]
    assert messages == [f"fetching small from {server.url(path)}" for path, _ in server.requests]


def test_error_lists_every_failure(server: Server, make_card: MakeCard) -> None:
    server.content_type = "text/html"
    card = make_card(server.url("missing.tgz"), server.url("page.tgz", b"<html>" + b" " * 2128))
    with pytest.raises(InputError, match=r"missing.tgz: HTTP 404 .*; .*page.tgz: the server sent a web page, 2,134 b"):
        fetch(card)


def test_graph_alone_is_downloaded_last(server: Server, make_card: MakeCard) -> None:
    url = server.url("bare.pb", GRAPH)
    card = make_card(server.url("missing.tgz"), graph_urls=(url,), graph_sha256=digest(GRAPH))
    fetched = obtain(card)
    assert fetched.path.read_bytes() == GRAPH
    assert fetched.warnings == (f"{url} has no labels.txt",)
    assert label_files(card) == ()


def test_graph_of_another_digest_is_rejected(server: Server, make_card: MakeCard) -> None:
    card = make_card(server.url("no.tgz"), graph_urls=(server.url("bare.pb", GRAPH),), graph_sha256="0" * 64)
    with pytest.raises(InputError, match=r"expected SHA-256 0{64}"):
        fetch(card)


def test_offline_names_the_cache(card: ModelCard, cache: Path, server: Server) -> None:
    with pytest.raises(InputError, match="--offline forbids a download") as caught:
        fetch(card, offline=True)
    assert str(cache / "small") in str(caught.value)
    assert "QUANTKIT_CACHE" in caught.value.hint
    assert server.requests == []
    fetch(card)
    assert obtain(card, offline=True).is_cached


class TestAnArchiveOfOnesOwn:
    def test_with_a_digest_the_cards_checksums_do_not_apply(
        self, server: Server, archive: bytes, make_card: MakeCard
    ) -> None:
        card = make_card("http://nowhere/", sha256="0" * 64, graph_sha256="0" * 64, graph_bytes=7)
        url = server.url("own.tgz", archive)
        fetched = obtain(card, url=url, sha256=digest(archive).upper())
        assert fetched.receipt is not None
        assert fetched.receipt.verified == "given"
        assert fetched.warnings == (f"graph.pb has {len(GRAPH):,} bytes, the published file 7",)
        assert obtain(card, url=url, sha256=digest(archive)).is_cached
        assert obtain(card).path == fetched.path

    def test_without_a_digest_there_is_a_warning(self, server: Server, archive: bytes, card: ModelCard) -> None:
        fetched = obtain(card, url=server.url("own.tgz", archive))
        assert "was not verified" in fetched.warnings[0]
        assert digest(archive) in fetched.warnings[0]
        assert obtain(card).warnings == fetched.warnings

    def test_file_of_another_digest_is_rejected_and_the_old_model_stays(
        self, server: Server, archive: bytes, card: ModelCard, cache: Path
    ) -> None:
        path = fetch(card)
        with pytest.raises(InputError, match=r"expected SHA-256 1{64}, found"):
            obtain(card, url=server.url("own.tgz", archive), sha256="1" * 64)
        assert path.read_bytes() == GRAPH
        assert leftovers(cache) == []

    def test_a_forced_download_replaces_the_cached_model(self, server: Server, card: ModelCard, cache: Path) -> None:
        fetch(card)
        other = GRAPH + GRAPH.replace(b"weights", b"another")
        own = tar_gz({"graph.pb": other, "labels.txt": LABELS})
        assert obtain(card, url=server.url("own.tgz", own)).path.read_bytes() == other
        assert fetch(card).read_bytes() == other
        assert obtain(card, force=True).path.read_bytes() == GRAPH
        assert leftovers(cache) == []

    def test_file_url_works_offline(self, tmp_path: Path, archive: bytes, card: ModelCard) -> None:
        (tmp_path / "own.tgz").write_bytes(archive)
        assert obtain(card, url=(tmp_path / "own.tgz").as_uri(), offline=True).path.read_bytes() == GRAPH

    def test_graph_without_archive_is_accepted(self, server: Server, card: ModelCard) -> None:
        fetched = obtain(card, url=server.url("own.pb", GRAPH), sha256=digest(GRAPH))
        assert fetched.path.read_bytes() == GRAPH
        assert fetched.warnings == (f"{server.url('own.pb')} has no labels.txt",)

    def test_file_of_another_kind_is_rejected(self, server: Server, card: ModelCard) -> None:
        with pytest.raises(InputError, match=r"neither an archive .* nor a frozen graph"):
            obtain(card, url=server.url("own.pb", b"not found"))
        for graph in (GRAPH[:-5], b"\x0aother", b"\0" * 100, b""):
            with pytest.raises(InputError, match=r"graph.pb is not a model|has no 'graph.pb'"):
                obtain(card, url=server.url("broken.tgz", tar_gz({"graph.pb": graph})))
            with pytest.raises(InputError):
                obtain(card, url=server.url("broken.pb", graph))
        assert leftovers(cache_folder()) == []
        assert fetch(card).read_bytes() == GRAPH
        with pytest.raises(InputError, match=r"has no 'graph.pb'"):
            obtain(card, url=server.url("own.tgz", tar_gz({"other.pb": GRAPH})))

    def test_the_password_of_a_url_is_not_stored(self, server: Server, archive: bytes, card: ModelCard) -> None:
        url = server.url("own.tgz", archive).replace("://", "://ann:secret@")
        messages: list[str] = []
        assert not obtain(card, url=url, on_message=messages.append).is_cached
        fetched = obtain(card, url=url)
        assert fetched.is_cached
        assert fetched.receipt is not None
        assert fetched.receipt.url.startswith("http://ann:***@127.0.0.1")
        assert "secret" not in (fetched.path.parent / "receipt.json").read_text() + "".join(messages)

    def test_the_password_of_a_dataset_is_not_stored(self, server: Server, archive: bytes, cache: Path) -> None:
        url = server.url("own.tgz", archive).replace("://", "://ann:secret@")
        messages: list[str] = []
        card = data_cards()[0]
        path = obtain_data(card, url=url, on_message=messages.append)
        assert path == obtain_data(card, url=url, offline=True)
        assert "http://ann:***@127.0.0.1" in "".join(messages)
        assert "secret" not in (path.parent / "receipt.json").read_text() + "".join(messages)

    def test_arguments_are_checked(self, card: ModelCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "own.tgz").write_bytes(b"")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match="not a URL") as caught:
            obtain(card, url="own.tgz")
        assert caught.value.hint == f"name a file as --url file://{tmp_path}/own.tgz"
        for url in ("ftp://host/a", "data:,x", "http://[::1"):
            with pytest.raises(UsageError, match="not a URL"):
                obtain(card, url=url)
        with pytest.raises(UsageError, match="64 hexadecimal digits"):
            obtain(card, url="http://host/a", sha256="abc")
        with pytest.raises(UsageError, match="sha256 without url"):
            obtain(card, sha256="0" * 64)
        with pytest.raises(UsageError, match="no model card"):
            fetch("inception_v9")


def test_truncated_file_in_the_cache_is_downloaded_again(card: ModelCard, server: Server) -> None:
    path = fetch(card)
    path.write_bytes(GRAPH[:100])
    assert locate(card) is None
    assert fetch(card).read_bytes() == GRAPH
    (path.parent / "receipt.json").write_text("{")
    assert locate(card) is None


def test_labels_may_belong_to_another_card(card: ModelCard) -> None:
    fetch(card)
    assert [path.name for path in label_files(card)] == ["labels.txt"]
    assert locate_member(card, "labels.txt") == label_files(card)[0]
    assert locate_member(card, "unwanted.bin") is None


def test_error_names_unwritable_cache(card: ModelCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written") as caught:
        fetch(card)
    assert "QUANTKIT_CACHE" in caught.value.hint


def test_interrupt_keeps_only_the_partial_download(server: Server, card: ModelCard, cache: Path) -> None:
    def stop(state: Progress) -> None:
        if state.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(card, on_progress=stop)
    assert locate(card) is None
    assert [name.partition("-")[0] for name in leftovers(cache)] == ["small", "small"]
    fetch(card)
    assert leftovers(cache) == []


def test_files_of_a_killed_process_are_removed(card: ModelCard, cache: Path) -> None:
    for role in ("new", "old"):
        (cache / f".small.{role}.tmp" / "sub").mkdir(parents=True)
    fetch(card)
    assert leftovers(cache) == []


def start(card_text: str, tmp_path: Path) -> "subprocess.Popen[str]":
    """Another process that fetches the card, with its sentences on stdout."""
    script = tmp_path / "fetch.py"
    script.write_text(
        "import sys\n"
        "from quantkit.zoo.fetch import obtain\n"
        "from quantkit.zoo.cards import read_card\n"
        "tell = lambda sentence: print(sentence, flush=True)\n"
        "print(obtain(read_card(sys.argv[1], 'small.toml'), on_message=tell).is_cached)\n"
    )
    return subprocess.Popen(
        [sys.executable, str(script), card_text], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )


@pytest.fixture
def card_text(server: Server, archive: bytes) -> str:
    url = server.url("small.tgz", archive)
    return CARD.replace("ARCHIVE", f'urls = ["{url}"]\n[[members]]\nname = "graph.pb"')


def test_second_process_waits_and_uses_the_result(server: Server, card_text: str, tmp_path: Path) -> None:
    server.gate, server.gate_at = threading.Event(), 50
    with start(card_text, tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("fetching small from")
        with start(card_text, tmp_path) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "another process is fetching small; waiting for it\n"
            server.gate.set()
            assert first.communicate(timeout=20)[0] == "False\n"
            assert second.communicate(timeout=20)[0] == "True\n"
    assert len(server.requests) == 1


def test_a_killed_download_is_resumed(server: Server, card_text: str, tmp_path: Path, cache: Path) -> None:
    server.gate, server.gate_at = threading.Event(), 50
    with start(card_text, tmp_path) as process:
        while not any(path.stat().st_size == 50 for path in cache.glob("small-*.part")):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    server.gate.set()
    server.gate = None
    messages: list[str] = []
    assert obtain(read_card(card_text, "small.toml"), on_message=messages.append).path.read_bytes() == GRAPH
    assert messages[0].endswith(", 0.0 MB are already here")
    assert server.requests[-1][1] == "bytes=50-"
    assert leftovers(cache) == []


def test_full_disk_while_unpacking_is_an_error(
    server: Server, card: ModelCard, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(Path, "open", open_on_limited_disk(len(GRAPH) - 1))
        with pytest.raises(InputError, match=r"the disk is full: .*graph.pb"):
            fetch(card)
    assert locate(card) is None
    assert [name.partition("-")[0] for name in leftovers(cache)] == ["small", "small"]
    assert fetch(card).read_bytes() == GRAPH
    assert len(server.requests) == 1


def test_a_busy_server_gets_a_second_request(server: Server, card: ModelCard) -> None:
    server.faults = [Status(503)]
    assert fetch(card).read_bytes() == GRAPH
