"""Broken models that TensorFlow, Keras or HDF5 read are loaded, or rejected in a sentence.

The models are the same in every run; ``QUANTKIT_MUTATED_FILES_SEED=1 QUANTKIT_MUTATED_MODELS=3000
pytest tests/runtimes/test_mutated_models.py`` takes others, 3000 of each kind.
"""

import os
import subprocess
import sys
from pathlib import Path

import mutated_models
import pytest

from quantkit.errors import InputError
from quantkit.model.importers import keras
from quantkit.runtimes import tensorflow

SEED = int(os.environ.get("QUANTKIT_MUTATED_FILES_SEED", "0"))
COUNT = int(os.environ.get("QUANTKIT_MUTATED_MODELS", "0"))
# As many as take about half a second.
COUNTS = {
    "SavedModel v2": 75,
    "SavedModel v2's index": 50,
    "SavedModel v2's values": 50,
    "SavedModel text": 75,
    "SavedModel v1": 125,
    "checkpoint's graph": 125,
    "checkpoint's index": 125,
    "checkpoint's values": 50,
    "old checkpoint": 125,
    "keras": 100,
    "keras' layers": 100,
    "keras' weights": 15,
    "h5": 35,
}
TENSORFLOW = tensorflow.RUNTIME.available()
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail)]


def read(folder: Path, requests: dict[str, tuple[int, int]]) -> tuple[int, list[str]]:
    """Return the exit code and the output lines of a process that loads the models."""
    arguments = [text for name, numbers in requests.items() for text in (name, *map(str, numbers))]
    script = [sys.executable, str(Path(mutated_models.__file__)), str(folder), str(SEED), *arguments]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode <= 0, done.stderr[-2000:]
    return done.returncode, done.stdout.splitlines()


def test_all_kinds_are_mutated() -> None:
    assert COUNTS.keys() == mutated_models.KINDS.keys()


def test_mutated_model_is_read_or_rejected(tmp_path: Path) -> None:
    requests = {name: (0, COUNT or count) for name, count in COUNTS.items()}
    wrong: list[str] = []
    for attempt in range(1000):
        code, lines = read(tmp_path / str(attempt), requests)
        wrong += [line for line in lines if line.startswith("WRONG")]
        if not code:
            break
        name, which, model = lines[-1].split("\t")
        # HDF5 may hang or crash in the inspection process; TensorFlow may not.
        assert "keras" in name or name == "h5", f"{name} {which} of seed {SEED} ended the process with {code}"
        with pytest.raises(InputError, match="its inspection process ended"):
            keras.inspect_file(Path(model), model)
        left = list(requests)[list(requests).index(name) :]
        requests = {kind: (int(which) + 1 if kind == name else 0, requests[kind][1]) for kind in left}
    assert not wrong, "\n".join(wrong)
