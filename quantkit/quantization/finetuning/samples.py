"""Samples of a fine-tuning on disk: runs of the float model with their feeds, outputs and classes.

The arrays are in files of a temporary folder, so that memory holds only the batch that is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from quantkit.ir.tensor import Array


@dataclass
class SampleStore:
    """Runs of the float model.

    Attributes:
        folder: folder of the files.
        counts: number of samples of each run; the other rows pad a fixed batch.
        classes: class index of each row of each run, -1 without a label.
        num_feeds: number of inputs.
        outputs: positions of the outputs that `read` returns.
    """

    folder: Path
    counts: list[int] = field(default_factory=list)
    classes: list[Array] = field(default_factory=list)
    num_feeds: int = 0
    outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._digest = blake2b(digest_size=8)

    def add(self, feeds: Sequence[Array], outputs: Sequence[Array], classes: Sequence[int | None], rows: int) -> None:
        """Add a run.

        Args:
            feeds: array of each input, in the order of the graph's inputs.
            outputs: array of each output.
            classes: class index of each sample; None without a label.
            rows: number of rows of the run; those after the samples pad the batch.
        """
        if not self.counts:
            self.num_feeds, self.outputs = len(feeds), tuple(range(len(outputs)))
        for kind, arrays in (("feed", feeds), ("output", outputs)):
            for index, array in enumerate(arrays):
                np.save(self._file(kind, index, len(self)), array)
                self._digest.update(np.ascontiguousarray(array).tobytes())
        indices = [-1 if index is None else index for index in classes]
        self.counts.append(len(classes))
        self.classes.append(np.array(indices + [-1] * (rows - len(indices)), np.int32))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def digest(self) -> str:
        """Digest of all arrays."""
        return self._digest.hexdigest()

    def select_outputs(self, dtype: type) -> tuple[int, ...]:
        """Keep the outputs of a type for `read`; return their positions."""
        arrays = [np.load(self._file("output", index, 0)) for index in self.outputs]
        self.outputs = tuple(index for index, array in zip(self.outputs, arrays, strict=True) if array.dtype == dtype)
        return self.outputs

    def read(self, runs: Sequence[int]) -> tuple[list[Array], list[Array], Array]:
        """Return feeds, outputs and classes of some runs, joined along the batch."""
        feeds = [self._join("feed", index, runs) for index in range(self.num_feeds)]
        outputs = [self._join("output", index, runs) for index in self.outputs]
        return feeds, outputs, np.concatenate([self.classes[run] for run in runs])

    def _join(self, kind: str, index: int, runs: Sequence[int]) -> Array:
        arrays = [np.load(self._file(kind, index, run)) for run in runs]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def _file(self, kind: str, index: int, run: int) -> Path:
        return self.folder / f"{kind}{index}_{run}.npy"
