"""Texts of reports."""

from collections.abc import Iterable, Sequence
from html import escape

# Name and value of each fact.
Facts = Iterable[tuple[str, str]]
RANDOM_WEIGHTS_NOTE = "random weights: latency is valid, predictions are not"


class PlainReport:
    """Report whose text is also its form in notebooks."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def join_names(names: Iterable[str], conjunction: str = "and") -> str:
    """Return names as one list of a sentence.

    >>> join_names(["OpenVINO", "TensorRT", "ONNX Runtime"])
    'OpenVINO, TensorRT and ONNX Runtime'
    """
    *others, last = names
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def format_facts(title: str, facts: Facts, notes: Iterable[str] = ()) -> str:
    """Return a title and one line for each fact and note.

    >>> print(format_facts("digits", [("speed", "10 samples per second")], ["no labels"]))
    digits
      speed        10 samples per second
      no labels
    """
    return "\n".join([title, *(f"  {name:<12} {value}" for name, value in facts), *(f"  {note}" for note in notes)])


def align_columns(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Return the lines of a table.

    Args:
        rows: cells; the first row is the heading.
        right: indices of right-aligned columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right_aligned = set(right)
    return [
        "  ".join(
            cell.rjust(width) if index in right_aligned else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
