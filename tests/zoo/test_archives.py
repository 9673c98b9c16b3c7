"""Untrusted archives."""

import gzip
import io
import stat
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest
from file_server import digest, special_entry, tar_gz
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import InputError
from quantkit.zoo import archives
from quantkit.zoo.archives import extract, kind_of, safe_name
from quantkit.zoo.cache import FileDigest
from quantkit.zoo.transfer import SourceError


def make_zip(entries: dict[str, bytes], modes: dict[str, int] | None = None) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as file:
        for name, body in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            file.writestr(info, body)
    return raw.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    archive = tmp_path / "inside" / "folder"
    archive.mkdir(parents=True)
    return archive


def unpack(data: bytes, folder: Path, *names: str) -> dict[str, FileDigest]:
    path = folder.parent.parent / "archive"
    path.write_bytes(data)
    return extract(path, names, folder)


@pytest.mark.parametrize(
    "pack", [tar_gz, lambda files: gzip.decompress(tar_gz(files)), make_zip], ids=["tgz", "tar", "zip"]
)
def test_only_the_requested_files_are_written(folder: Path, pack: object) -> None:
    data = pack({"./sub/graph.pb": b"graph", "other": b"other", "labels": b"a\nb"})  # type: ignore[operator]
    written = unpack(data, folder, "sub/graph.pb", "labels", "missing")
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["graph.pb", "labels"]
    assert (folder / "sub/graph.pb").read_bytes() == b"graph"
    assert written["sub/graph.pb"] == FileDigest(5, digest(b"graph"))
    assert set(written) == {"sub/graph.pb", "labels"}


@pytest.mark.parametrize(
    "name", ["../graph.pb", "/graph.pb", "a/../../graph.pb", "..\\graph.pb", "C:graph.pb", "a\nb", "x" * 300]
)
@pytest.mark.parametrize("pack", [tar_gz, make_zip], ids=["tgz", "zip"])
def test_archive_with_a_name_outside_the_folder_is_rejected(folder: Path, name: str, pack: object) -> None:
    data = pack({name: b"evil", "graph.pb": b"good"})  # type: ignore[operator]
    with pytest.raises(SourceError, match="rejected: an entry has the name"):
        unpack(data, folder, "graph.pb", name)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "entry",
    [
        special_entry("graph.pb", tarfile.SYMTYPE, "/etc/passwd"),
        special_entry("graph.pb", tarfile.LNKTYPE, "other"),
        special_entry("graph.pb", tarfile.FIFOTYPE),
        special_entry("graph.pb", tarfile.CHRTYPE),
    ],
    ids=["symbolic link", "hard link", "fifo", "device"],
)
def test_archive_with_links_or_devices_is_rejected(folder: Path, entry: tarfile.TarInfo) -> None:
    with pytest.raises(SourceError, match=r"'graph.pb' is a link or a device"):
        unpack(tar_gz({"graph.pb": entry}), folder, "graph.pb")
    assert not list(folder.iterdir())


def test_zip_with_a_link_is_rejected(folder: Path) -> None:
    data = make_zip({"graph.pb": b"/etc/passwd"}, {"graph.pb": stat.S_IFLNK | 0o777})
    with pytest.raises(SourceError, match="link or a device"):
        unpack(data, folder, "graph.pb")


def test_no_file_is_written_through_a_link(folder: Path) -> None:
    data = tar_gz({"sub": special_entry("sub", tarfile.SYMTYPE, ".."), "sub/graph.pb": b"evil"})
    with pytest.raises(SourceError, match="link or a device"):
        unpack(data, folder, "sub/graph.pb")
    assert not (folder.parent / "graph.pb").exists()


def test_duplicate_entry_is_rejected(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"it has 'graph.pb' twice"):
        unpack(tar_gz({"graph.pb": b"one", "./graph.pb": b"two"}), folder, "graph.pb")


@pytest.mark.parametrize("position", [200, -6])
def test_damaged_archive_is_rejected(folder: Path, position: int) -> None:
    data = bytearray(tar_gz({"graph.pb": bytes(range(256)) * 40}))
    data[position] ^= 0xFF
    with pytest.raises(SourceError, match="damaged"):
        unpack(bytes(data), folder, "graph.pb")


@pytest.mark.parametrize("length", [60, -20, -4])
def test_truncated_archive_is_rejected(folder: Path, length: int) -> None:
    with pytest.raises(SourceError, match="damaged"):
        unpack(tar_gz({"graph.pb": bytes(range(256)) * 40})[:length], folder, "graph.pb")


def test_truncated_zip_is_rejected(folder: Path) -> None:
    with pytest.raises(SourceError, match="damaged"):
        unpack(make_zip({"graph.pb": b"graph"})[:-30], folder, "graph.pb")


def test_sizes_are_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = {"graph.pb": bytes(2 << 20), "skipped": bytes(9 << 20), "last": b""}
    monkeypatch.setattr(archives, "MAX_TOTAL_BYTES", 8 << 20)
    with pytest.raises(SourceError, match="unpacks to more than"):
        unpack(tar_gz(bomb), folder, "graph.pb")
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 1 << 20)
    with pytest.raises(SourceError, match="has more than 1,048,576 bytes"):
        unpack(make_zip(bomb), folder, "graph.pb")


def test_a_header_with_a_huge_length_is_rejected(folder: Path) -> None:
    header = tarfile.TarInfo("header")
    header.type, header.size = tarfile.XHDTYPE, 8**11 - 1
    data = header.tobuf(tarfile.USTAR_FORMAT)
    data += bytes(20_000)
    with pytest.raises(SourceError, match="header of unreasonable length"):
        unpack(gzip.compress(data), folder, "graph.pb")


def test_number_of_entries_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_ENTRIES", 3)
    with pytest.raises(SourceError, match="more than 3 entries"):
        unpack(tar_gz({str(number): b"" for number in range(4)}), folder, "graph.pb")


def test_error_names_unwritable_folder(folder: Path) -> None:
    (folder / "sub").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written"):
        unpack(tar_gz({"sub/graph.pb": b"graph"}), folder, "sub/graph.pb")


def test_kind_is_detected_from_the_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    digests = []
    for data in (tar_gz({}), gzip.decompress(tar_gz({"a": b"a"})), make_zip({"a": b"a"}), b"\x0agraph", b""):
        path.write_bytes(data)
        digests.append(kind_of(path))
    assert digests == ["gzip", "tar", "zip", "other", "other"]


PARTS = st.sampled_from(["..", ".", "", "a", "graph.pb", "\\", "C:", "\x00", "\u202e", "é", " ", "~", "-"])


@given(st.one_of(st.text(max_size=40), st.lists(PARTS, max_size=6).map("/".join)))
def test_safe_name_stays_in_the_folder(name: str) -> None:
    try:
        safe = safe_name(name)
    except SourceError:
        return
    path = PurePosixPath(safe)
    assert not path.is_absolute()
    assert ".." not in path.parts
    assert safe.isprintable()
    assert safe_name(safe) == safe


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=3, unique=True), st.booleans()
)
def test_no_file_is_written_outside_the_folder(names: list[str], is_zip: bool) -> None:
    with TemporaryDirectory() as root:
        folder = Path(root) / "one" / "two"
        folder.mkdir(parents=True)
        data = make_zip(dict.fromkeys(names, b"x")) if is_zip else tar_gz(dict.fromkeys(names, b"x"))
        with suppress(InputError):
            unpack(data, folder, *names, "graph.pb", "a", "a/graph.pb")
        outside = [path for path in Path(root).rglob("*") if path.is_file() and not path.is_relative_to(folder)]
        assert [path.name for path in outside] == ["archive"]
