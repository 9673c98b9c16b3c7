from pathlib import Path

import pytest

from quantkit.errors import InputError, UnavailableError
from quantkit.pipelines.loading import run_function
from quantkit.runtimes import tensorflow_library
from quantkit.runtimes.availability import find_package


def test_a_missing_file_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pipeline\.py does not exist"):
        run_function(f"{tmp_path / 'pipeline.py'}:dataset")


def test_without_tensorflow_the_hint_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = find_package("TensorFlow", "missing_package", extra="tensorflow")
    monkeypatch.setattr(tensorflow_library, "available", lambda: missing)
    file = tmp_path / "pipeline.py"
    file.write_text("import tensorflow as tf\n")
    with pytest.raises(UnavailableError, match="TensorFlow is not installed") as caught:
        run_function(f"{file}:dataset")
    assert caught.value.hint == "pip install 'quantkit[tensorflow]'"
