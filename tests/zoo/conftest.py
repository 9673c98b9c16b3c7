"""A running file server, an empty cache, and a card of a small model."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from file_server import CARD, GRAPH, LABELS, Handler, MakeCard, Server, tar_gz

from quantkit.zoo import transfer
from quantkit.zoo.cards import ModelCard, read_card


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    handler = type("Serving", (Handler,), {"state": state})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.base = f"http://127.0.0.1:{http.server_port}"
    yield state
    if state.gate:
        state.gate.set()
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(transfer, "BACKOFF_SECONDS", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def archive() -> bytes:
    return tar_gz({"graph.pb": GRAPH, "labels.txt": LABELS, "unwanted.bin": b"x" * 100})


@pytest.fixture
def make_card() -> MakeCard:
    def make(
        *urls: str,
        num_bytes: int | None = None,
        sha256: str = "",
        graph_sha256: str = "",
        graph_bytes: int | None = None,
        graph_urls: tuple[str, ...] = (),
    ) -> ModelCard:
        lines = [
            f"urls = {list(urls)}",
            f"num_bytes = {num_bytes}" if num_bytes else "",
            f'sha256 = "{sha256}"',
            '[[members]]\nname = "graph.pb"',
            f'sha256 = "{graph_sha256}"',
            f"num_bytes = {graph_bytes}" if graph_bytes else "",
            f"urls = {list(graph_urls)}",
        ]
        return read_card(CARD.replace("ARCHIVE", "\n".join(lines)), "small.toml")

    return make
