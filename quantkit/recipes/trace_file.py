"""Files of a trace: its document as JSON, or as an HTML page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit import formats
from quantkit.errors import UsageError
from quantkit.recipes.page import trace_page
from quantkit.recipes.trace_document import trace_document

if TYPE_CHECKING:
    from quantkit.recipes.trace import Trace


def check_trace_path(path: Path) -> None:
    """Check, before any work, that a trace can be written.

    Raises:
        UsageError: the suffix is neither ``.json`` nor ``.html``, or the path cannot be a file.
        InputError: the path is not writable.
    """
    if path.suffix.lower() not in (".json", ".html"):
        raise UsageError(f"a trace cannot be written to {path.name}", hint="name a file that ends in .json or .html")
    formats.check_target(path)


def write_trace(trace: "Trace", path: Path) -> None:
    """Write a trace with both graphs; see `Trace.save`."""
    check_trace_path(path)
    document = trace_document(trace)
    if path.suffix.lower() == ".html":
        text = trace_page(document, trace.before, trace.after)
    else:
        text = json.dumps(document, indent=1) + "\n"
    formats.files.write_whole(path, lambda file: file.write(text.encode()))
