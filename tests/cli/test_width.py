"""Tables fit into 80 columns."""

from pathlib import Path

import pytest
from command_line import main

DATA = str(Path(__file__).parents[2] / "assets" / "digits_heldout.npz")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["models", "list"],
        ["transforms", "list"],
        ["evaluate", "digits", "--data", DATA, "--limit", "3", "--reference", "digits", "--runtime", "reference"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_output_fits_into_80_columns(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 4
    assert not [line for line in lines if len(line) > 80 and not line.startswith("cache: ")]


def test_table_of_compare_fits_into_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folded = str(tmp_path / "folded.pb")
    assert main(["transform", "digits", "-o", folded, "--recipe", "inference"]) == 0
    arguments = ["compare", "digits", folded, "--limit", "1", "--runtime", "reference"]
    capsys.readouterr()
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith("tensor ")]
    (end,) = [number for number, line in enumerate(lines) if line.startswith("... and ")]
    assert end - start == 21
    assert max(map(len, lines[start:end])) <= 80
    assert "BatchNormWithGlobalNormalization" not in "\n".join(lines)
    assert main([*arguments, "-v"]) == 0
    assert "BatchNormWithGlobalNormalization" in capsys.readouterr().out
