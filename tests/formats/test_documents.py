from pathlib import Path

import pytest

from quantkit.errors import InputError
from quantkit.formats.documents import read_json, read_toml


def test_json_and_toml_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"a": [1, 2]}')
    (tmp_path / "one.toml").write_text("a = [1, 2]")
    assert read_json(tmp_path / "one.json", "") == read_toml(tmp_path / "one.toml", "") == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_json, "{", "is not a JSON file"),
        (read_json, "[1]", "does not contain a JSON object"),
        (read_json, "[" * 100_000, "nested too deeply"),
        (read_toml, "[[step", "is not a TOML file"),
        (read_toml, "a = " + "[" * 100_000, "nested too deeply"),
        (read_toml, "\udcff", "is not a TOML file"),
    ],
)
def test_invalid_document_is_rejected_with_hint(read: object, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=message) as error:
        read(path, "write a document")  # type: ignore[operator]
    assert error.value.hint == "write a document"


def test_error_names_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none\.json: no such file") as error:
        read_json(tmp_path / "none.json", "")
    assert error.value.hint
