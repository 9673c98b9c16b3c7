"""Manifest of a folder of results: model, data and settings, so that a resumed run continues the same work."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit.batch_inference.results import publish
from quantkit.errors import InputError, UsageError
from quantkit.formats.documents import check_structure, read_json

FILE = "manifest.json"
SCHEMA = "quantkit.run.manifest/1"


@dataclass(frozen=True)
class Manifest:
    """Identity of the results of a folder; it holds no times.

    Attributes:
        settings: digests of model and data, and the options that the results depend on.
        facts: runtime and preprocessing of the workers; empty before the first worker is open.
    """

    settings: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def check(self, other: "Manifest", folder: Path) -> None:
        """Check that other settings or facts are the same.

        Args:
            other: settings of the present run, and facts of a worker, if any.
            folder: folder of this manifest.

        Raises:
            UsageError: a setting differs.
        """
        pairs = [(self.settings, other.settings)]
        if self.facts and other.facts:
            pairs.append((self.facts, other.facts))
        for recorded, present in pairs:
            for name in {**recorded, **present}:
                if recorded.get(name) != present.get(name):
                    raise UsageError(
                        f"{folder} holds results of another run: {name.replace('_', ' ')} is "
                        f"{recorded.get(name)!r} there and {present.get(name)!r} here",
                        hint="write to another folder, or remove this one",
                    )

    def write(self, folder: Path) -> None:
        """Write the manifest to a folder."""
        document = {"schema": SCHEMA, "settings": dict(self.settings), "facts": dict(self.facts)}
        publish(folder / FILE, (json.dumps(document, indent=2) + "\n").encode())


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None without one.

    Raises:
        InputError: the file is broken.
    """
    path = folder / FILE
    if not path.exists():
        return None
    hint = "remove the folder, or write to another one"
    document = read_json(path, hint)
    try:
        check_structure(document, {"settings": {str: object}, "facts": {str: object}}, "the manifest")
    except ValueError as error:
        raise InputError(f"{path} is broken: {error}", hint) from None
    return Manifest(document["settings"], document["facts"])
