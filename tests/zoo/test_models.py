"""``quantkit models``, through the console entry point."""

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from file_server import GRAPH, Server, digest, tar_gz

from quantkit.zoo.cards import list_cards

Main = Callable[[list[str]], int]


@pytest.fixture
def main() -> Main:
    (document,) = entry_points(group="console_scripts", name="quantkit")
    loaded: Main = document.load()
    return loaded


@pytest.fixture
def own(server: Server) -> list[str]:
    body = tar_gz({"classify_image_graph_def.pb": GRAPH, "cropped_panda.jpg": b"panda"})
    return ["--url", server.url("own.tgz", body), "--sha256", digest(body)]


def error(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_list(main: Main, capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["models", "list"]) == 0
    text = capsys.readouterr().out
    assert all(card.name in text and card.title in text for card in list_cards())
    assert "88.9 MB to fetch" in text
    assert main(["models", "list", "--json"]) == 0
    document = error(capsys)
    assert document["schema"] == "quantkit.models/2"
    assert document["cache"] == str(cache)
    assert [model["name"] for model in document["models"]] == [card.name for card in list_cards()]


def test_show(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "inception_v3"]) == 0
    text = capsys.readouterr().out
    for arguments in ("Mul float [1, 299, 299, 3]", "bilinear to 299 x 299, (x - 128) / 128", "giant panda 0.89107"):
        assert arguments in text
    assert main(["models", "show", "mobilenet_v2", "--json"]) == 0
    document = error(capsys)
    assert document["inputs"] == [{"name": "input", "dtype": "float", "shape": [1, 224, 224, 3]}]
    assert document["path"] is None


def test_fetch_and_path(main: Main, capsys: pytest.CaptureFixture[str], cache: Path, own: list[str]) -> None:
    graph = cache / "inception_v3" / "classify_image_graph_def.pb"
    assert main(["models", "fetch", "inception_v3", *own]) == 0
    out, err = capsys.readouterr()
    assert out == f"{graph}\n"
    assert f"warning: classify_image_graph_def.pb has {len(GRAPH):,} bytes, the published file 95,673,916" in err
    assert main(["models", "path", "inception_v3"]) == 0
    assert capsys.readouterr().out == f"{graph}\n"
    assert main(["models", "fetch", "inception_v3", "--offline", "--json"]) == 0
    document = error(capsys)
    assert document["path"] == str(graph)
    assert document["is_cached"]
    assert document["receipt"]["verified"] == "given"
    assert main(["models", "list"]) == 0
    assert "cached" in capsys.readouterr().out


def test_quiet(main: Main, capsys: pytest.CaptureFixture[str], own: list[str]) -> None:
    assert main(["models", "fetch", "inception_v3", *own, "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "sentence", "hint"),
    [
        (["path", "inception_v3"], 3, "inception_v3 is not in", "quantkit models fetch inception_v3"),
        (["fetch", "inception_v3", "--offline"], 3, "--offline forbids a download", "QUANTKIT_CACHE"),
        (["show", "inception"], 2, "there is no model card 'inception'", "did you mean 'inception_v3'"),
        (["fetch", "mobilenet_v1", "--url", "x.tgz"], 2, "'x.tgz' is not a URL", "file://"),
        (["fetch"], 2, "required: name", "--help"),
        (["remove", "mobilenet_v1"], 2, "invalid choice", "--help"),
    ],
)
def test_errors(
    main: Main, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str, hint: str
) -> None:
    assert main(["models", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert sentence in first
    assert second.startswith("hint: ")
    assert hint in second


def test_rejected_archive_is_an_error(
    main: Main, capsys: pytest.CaptureFixture[str], own: list[str], cache: Path
) -> None:
    assert main(["models", "fetch", "inception_v3", *own[:3], "0" * 64]) == 3
    assert "expected SHA-256 000" in capsys.readouterr().err
    assert not (cache / "inception_v3").exists()


@pytest.mark.parametrize("arguments", [["list"], ["show", "digits"], ["path", "digits"], ["fetch", "digits"]])
def test_every_action_takes_offline(main: Main, arguments: list[str]) -> None:
    assert main(["models", *arguments, "--offline"]) == 0


@pytest.mark.parametrize(
    ("flag", "hint"),
    [("--ofline", "did you mean '--offline'?"), ("--sha256", "quantkit models path --help lists the flags")],
)
def test_hint_for_an_unknown_flag_is_about_the_action(
    main: Main, capsys: pytest.CaptureFixture[str], flag: str, hint: str
) -> None:
    assert main(["models", "path", "digits", flag]) == 2
    assert f"hint: {hint}" in capsys.readouterr().err
