"""Broken models that TensorFlow, Keras or HDF5 have a part in reading: an answer or a sentence, soon.

They are the same in every run; ``QUANTKIT_MUTATED_FILES_SEED=1 QUANTKIT_MUTATED_MODELS=3000 pytest
tests/runtimes/test_mutated_models.py`` takes others, and that many of each kind.
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
# As many as take about a second.
COUNTS = {
    "second kind": 150,
    "second kind's index": 100,
    "second kind's values": 100,
    "text form": 150,
    "first kind": 250,
    "checkpoint's graph": 250,
    "checkpoint's index": 250,
    "checkpoint's values": 100,
    "old checkpoint": 250,
    "keras": 200,
    "keras' layers": 200,
    "keras' weights": 30,
    "h5": 70,
}
ANSWER = tensorflow.RUNTIME.available()
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not ANSWER.ok, reason=ANSWER.detail)]


def read(folder: Path, asked: dict[str, tuple[int, int]]) -> tuple[int, list[str]]:
    """How the process that reads them ended, and what it said."""
    words = [word for name, numbers in asked.items() for word in (name, *map(str, numbers))]
    script = [sys.executable, str(Path(mutated_models.__file__)), str(folder), str(SEED), *words]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode <= 0, done.stderr[-2000:]
    return done.returncode, done.stdout.splitlines()


def test_all_kinds_are_broken() -> None:
    assert COUNTS.keys() == mutated_models.KINDS.keys()


def test_a_broken_model_is_read_or_refused(tmp_path: Path) -> None:
    asked = {name: (0, COUNT or count) for name, count in COUNTS.items()}
    wrong: list[str] = []
    for attempt in range(1000):
        code, said = read(tmp_path / str(attempt), asked)
        wrong += [line for line in said if line.startswith("WRONG")]
        if not code:
            break
        name, which, model = said[-1].split("\t")
        # In a process of its own, HDF5 may hang or break down: that is what it is for. TensorFlow may not.
        assert "keras" in name or name == "h5", f"{name} {which} of seed {SEED} ended the process with {code}"
        with pytest.raises(InputError, match="a process that read it to try ended"):
            keras.inspect_file(Path(model))
        left = list(asked)[list(asked).index(name) :]
        asked = {one: (int(which) + 1 if one == name else 0, asked[one][1]) for one in left}
    assert not wrong, "\n".join(wrong)
