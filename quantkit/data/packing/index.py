"""Index of a set of shards, and the journal of shards that an interrupted packing has finished.

NAME.index.json           every shard with its checksum and record offsets; written when all shards are complete
.NAME.packing.jsonl       one line for each finished shard, until then
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.data.packing.plan import ShardTask
from quantkit.data.packing.writer import Shard
from quantkit.errors import InputError
from quantkit.formats.documents import check_structure, read_json
from quantkit.formats.files import write_whole
from quantkit.formats.kinds import check_regular

SCHEMA = "quantkit.shards/1"
_STRUCTURE = {"name": str, "source": str, "classes": [str], "shards": [object], "options": {str: object}}


@dataclass(frozen=True)
class Index:
    """Content of an index file.

    Attributes:
        name: first part of the file names.
        source: path or name of the source.
        classes: class names in the order of the class numbers.
        shards: shards in order.
        options: changes of the images.
    """

    name: str
    source: str
    classes: tuple[str, ...]
    shards: tuple[Shard, ...]
    options: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "source": self.source,
            "options": dict(self.options),
            "classes": list(self.classes),
            "num_records": sum(shard.num_records for shard in self.shards),
            "shards": [shard.to_json() for shard in self.shards],
        }

    def write(self, folder: Path) -> None:
        """Write the index, and the label file if the classes have names."""
        if self.classes:
            lines = "".join(f"{name}\n" for name in self.classes)
            write_whole(folder / f"{self.name}.labels.txt", lambda file: file.write(lines.encode()))
        text = json.dumps(self.to_json())
        write_whole(index_path(folder, self.name), lambda file: file.write(f"{text}\n".encode()))


def index_path(folder: Path, name: str) -> Path:
    """Return the path of the index of a set of shards."""
    return folder / f"{name}.index.json"


def read_index(path: Path) -> Index:
    """Read an index.

    Raises:
        InputError: the file cannot be read, or is not an index.
    """
    hint = "pack the source again"
    try:
        table = read_json(path, hint)
        if table["schema"] != SCHEMA:
            raise InputError(f"{path} has the schema {table['schema']!r}, not {SCHEMA!r}", hint)
        check_structure(table, _STRUCTURE, "the index")
        shards = tuple(Shard.from_json(shard) for shard in table["shards"])
        return Index(table["name"], table["source"], tuple(table["classes"]), shards, table["options"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not an index of shards", hint) from None


class Journal:
    """Shards of a folder that are finished.

    Args:
        folder: folder of the shards.
        name: first part of the file names.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._index = index_path(folder, name)
        self.path = folder / f".{name}.packing.jsonl"

    def find_finished(self, tasks: Sequence[ShardTask]) -> dict[str, Shard]:
        """Return the shards that are complete and whose samples and options have not changed, by file name."""
        digests = {task.file: task.digest for task in tasks}
        finished = {}
        indexed = read_index(self._index).shards if self._index.exists() else ()
        for shard in (*indexed, *self._read_lines()):
            is_same = digests.get(shard.file) == shard.source_digest
            path = self._folder / shard.file
            if is_same and path.is_file() and path.stat().st_size == shard.num_bytes:
                finished[shard.file] = shard
        return finished

    def begin(self, finished: Mapping[str, Shard]) -> None:
        """Start the work on the other shards: the index is removed until all shards are complete again."""
        text = "".join(f"{json.dumps(shard.to_json())}\n" for shard in finished.values())
        write_whole(self.path, lambda file: file.write(text.encode()))
        self._index.unlink(missing_ok=True)

    def add(self, shard: Shard) -> None:
        """Append a finished shard."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(shard.to_json())}\n")
            file.flush()
            os.fsync(file.fileno())

    def _read_lines(self) -> list[Shard]:
        if not self.path.exists():
            return []
        shards = []
        check_regular(self.path)
        for line in self.path.read_bytes().splitlines():
            try:
                shards.append(Shard.from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError):  # the last line of an interrupted process
                continue
        return shards
