from pathlib import Path

import pytest
from measurements import tiny_graph

from quantkit import formats


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.pb"
    formats.save(tiny_graph(), path)
    return path
