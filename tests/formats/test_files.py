"""Detection of file kinds, and atomic writes."""

import os
from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import GraphError, InputError, QuantkitError, UsageError
from quantkit.formats import check_distinct, files, kind_of, load, save, temporary
from quantkit.ir.graph import Edge, Graph, Node, constant

GRAPH = Graph.of([Node("x", "Placeholder"), constant("w", np.arange(3000, dtype=np.float32)), Node("y", "Relu", ())])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.pb", b"", "is empty"),
        ("page.pb", b"<!DOCTYPE html><html>not found</html>", "is a web page"),
        ("page2.pb", b"\n\n<HTML><head>", "is a web page"),
        ("pointer.pb", b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer"),
        ("packed.pb", b"\x1f\x8b\x08\x00 and so on", "is an archive"),
        ("packed.onnx", b"PK\x03\x04 and so on", "is an archive"),
        ("array.npy", b"\x93NUMPY\x01\x00", "array.npy contains arrays, not a model"),
        ("arrays.npz", b"PK\x03\x04 and so on", "arrays.npz contains arrays, not a model"),
        ("prose.pb", b"this is a letter, not a graph", "is text, but not a GraphDef: line 1, column 1: "),
        ("twins.pbtxt", b'node { name: "x" } node { name: "x" }', "twins.pbtxt: two nodes are named 'x'"),
        ("noise.pb", bytes(range(3, 200)), "not a GraphDef"),
        ("zeros.pb", bytes(1000), "no protobuf field starts at byte 0"),
        ("key.pb", b"\x0a\x8b\x10\x2a\x88\x10\x0a\x01\xc4\x12\x82\x10" + bytes(2050), "not UTF-8"),
        ("nothing.pb", b"\x22\x00", "the graph has no nodes"),
    ],
)
def test_file_without_graph_is_rejected_with_reason_and_hint(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path / name)
    assert error.value.exit_code == 3
    assert error.value.hint


def test_error_for_missing_file_suggests_similar_name(tmp_path: Path) -> None:
    save(GRAPH, tmp_path / "inception.pb")
    with pytest.raises(InputError, match="does not exist") as error:
        load(tmp_path / "incepton.pb")
    assert "inception.pb" in error.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [("graph.pb", "check the path: the folder "), ("sub/graph.pb", "sub does not exist either: check the path")],
)
def test_hint_for_a_missing_file_is_about_its_path(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(InputError, match="does not exist") as error:
        load(tmp_path / name)
    assert hint in error.value.hint


def test_truncated_file_is_rejected_at_every_length(tmp_path: Path) -> None:
    save(GRAPH, tmp_path / "whole.pb")
    whole = (tmp_path / "whole.pb").read_bytes()
    truncated = tmp_path / "cut.pb"
    for length in [1, 2, 5, 40, 200, len(whole) // 2, len(whole) - 1]:
        truncated.write_bytes(whole[:length])
        with pytest.raises(QuantkitError, match="cut.pb"):
            load(truncated)


def test_binary_and_text_files_contain_equal_graphs(tmp_path: Path) -> None:
    save(GRAPH, tmp_path / "a.pb")
    save(GRAPH, tmp_path / "b.pbtxt")
    save(GRAPH, tmp_path / "text.pb", as_text=True)
    assert (tmp_path / "b.pbtxt").read_text().startswith("node {")
    assert load(tmp_path / "a.pb") == load(tmp_path / "b.pbtxt") == load(tmp_path / "text.pb")
    assert kind_of(tmp_path / "text.pb") == "graphdef_text"


def test_inputs_and_outputs_are_inferred_and_checked(tmp_path: Path) -> None:
    save(GRAPH, tmp_path / "g.pb")
    graph = load(tmp_path / "g.pb")
    assert [str(edge) for edge in graph.inputs] == ["x"]
    assert [str(edge) for edge in graph.outputs] == ["y"]
    with pytest.raises(UsageError, match="output 'softmx'") as error:
        load(tmp_path / "g.pb", outputs=["softmx"])
    assert error.value.exit_code == 2
    with pytest.raises(UsageError, match=r"'y:1' is not in the graph: y \(Relu\) has 1 outputs"):
        load(tmp_path / "g.pb", outputs=["y:1"])


def test_node_that_consumes_itself_is_an_output(tmp_path: Path) -> None:
    """Otherwise the node would be removed as unused."""
    nodes = [Node("x", "Placeholder"), Node("y", "Relu", (Edge("y"),)), Node("z", "Relu", (Edge("x"),))]
    save(Graph.of(nodes), tmp_path / "g.pb")
    assert load(tmp_path / "g.pb").outputs == (Edge("y"), Edge("z"))


def test_cycle_without_outputs_is_rejected(tmp_path: Path) -> None:
    save(Graph.of([Node("a", "Relu", (Edge("b"),)), Node("b", "Relu", (Edge("a"),))]), tmp_path / "g.pb")
    with pytest.raises(GraphError, match="cycle"):
        load(tmp_path / "g.pb")


def test_loaded_file_can_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "g.pb"
    save(GRAPH, path)
    save(load(path), path)
    np.testing.assert_array_equal(load(path)["w"].value.array, np.arange(3000))


def test_failed_write_keeps_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "g.pb"
    path.write_bytes(b"precious")

    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="the disk is full"):
        files.write_whole(path, fail)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["g.pb"]


def test_interrupted_write_leaves_no_file(tmp_path: Path) -> None:
    def interrupt(file: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_whole(tmp_path / "g.pb", interrupt)
    assert os.listdir(tmp_path) == []


def test_symlink_is_kept_and_its_target_replaced(tmp_path: Path) -> None:
    (tmp_path / "link.pb").symlink_to(tmp_path / "graph.pb")
    save(GRAPH, tmp_path / "link.pb")
    assert (tmp_path / "link.pb").is_symlink()
    assert load(tmp_path / "graph.pb") == load(tmp_path / "link.pb")


def test_stale_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those of this user and this output, and only old ones: another process may still write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    stale, recent, other = (tmp_path / f".{name}.part" for name in ("g.pb.1", "g.pb.2", "h.pb.3"))
    folder, unrelated = (
        tmp_path / "tmp" / f"{temporary.PREFIX}{name}" for name in ("abcdefgh", "not-a-temporary-folder")
    )
    for path in (folder, unrelated):
        path.mkdir(parents=True)
        (path / "part").touch()
    for path in (stale, recent, other):
        path.touch()
    for path in (stale, other, folder, unrelated):
        os.utime(path, (0, 0))
    save(GRAPH, tmp_path / "g.pb")
    with temporary.temporary_folder() as created:
        assert created.is_dir()
        assert not folder.exists()
    assert [path.exists() for path in (stale, recent, other, unrelated, created)] == [False, True, True, True, False]
    os.utime(recent, (0, 0))
    monkeypatch.setattr(os, "getuid", lambda: recent.stat().st_uid + 1)
    temporary.remove_stale([recent])
    assert recent.exists()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_mode_of_an_overwritten_file_is_kept(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "graph.pb"
    path.touch()
    path.chmod(mode)
    modes = []
    files.write_whole(path, lambda file: modes.append(os.fstat(file.fileno()).st_mode & 0o777))
    assert [*modes, path.stat().st_mode & 0o777] == [mode, mode]


def test_paths_of_one_file_are_rejected(tmp_path: Path) -> None:
    folder, model = tmp_path / "model", tmp_path / "graph.pb"
    folder.mkdir()
    for path in (model, folder / "part"):
        path.touch()
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "new link").symlink_to(tmp_path / "new")
    os.link(model, tmp_path / "hard link")
    inputs = {"the model": model, "the data": str(folder), "the graph": GRAPH}
    for name in ("graph.pb", "link", "hard link", "model/part", "model/../graph.pb"):
        with pytest.raises(UsageError, match=r"--save would overwrite .*, a file of the (model|data)") as caught:
            check_distinct({"--save": tmp_path / name}, inputs)
        assert caught.value.hint
    for first, second in (("new", "new"), ("new", "new link"), ("link", "graph.pb"), ("new", "model/../new")):
        with pytest.raises(UsageError, match="--a and --b name one file"):
            check_distinct({"--a": tmp_path / first, "--c": None, "--b": str(tmp_path / second)})
    check_distinct({"--a": tmp_path / "new", "--b": tmp_path / "other", "--c": tmp_path / "model/new"}, inputs)
    check_distinct({"--a": os.devnull, "--b": os.devnull})


def test_named_pipe_is_written_and_kept(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.pb"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        save(GRAPH, pipe)
        assert os.read(reader, 1 << 16) == files.graphdef.encode(GRAPH)
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="/dev/fd does not exist on this system")
def test_file_descriptor_is_written() -> None:
    reader, writer = os.pipe()
    try:
        save(GRAPH, Path(f"/dev/fd/{writer}"))
        assert os.read(reader, 1 << 16) == files.graphdef.encode(GRAPH)
    finally:
        os.close(reader)
        os.close(writer)


def test_folder_without_write_permission_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.os, "access", lambda folder, mode: False)
    with pytest.raises(InputError, match=r"cannot write .*g\.pb: permission denied"):
        files.check_target(tmp_path / "g.pb")
    files.check_target(Path("/dev/null"))


def test_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        save(GRAPH, tmp_path / "nowhere" / "g.pb")


@pytest.mark.parametrize("name", ["g.tflite", "g.keras", "g.h5", "g.onnx", "g.XML"])
def test_frozen_graph_is_not_written_to_suffix_of_other_format(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write a graph of dialect tensorflow"):
        save(GRAPH, tmp_path / name)
    save(GRAPH, tmp_path / "any.name")
    assert [path.name for path in tmp_path.iterdir()] == ["any.name"]


def test_file_over_two_gigabytes_is_rejected_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "huge.pb"
    with path.open("wb") as file:
        file.write(b"\x0a\x0b\x0a\x01x\x12\x06Custom")
        file.truncate(3 << 30)
    with pytest.raises(InputError, match=r"huge.pb: the file has 3.22 GB"):
        load(path)
