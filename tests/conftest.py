"""Options and data that every test may ask for."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Busy machines miss deadlines. HYPOTHESIS_PROFILE or --hypothesis-profile selects another profile.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SHARED = Path(__file__).parent.parent.parent / "shared" / "inception_v3"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write what transforms make now into tests/golden (review the diff)",
    )


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether goldens are rewritten rather than compared."""
    return bool(request.config.getoption("--update-goldens"))


@pytest.fixture(scope="session")
def standin() -> Path:
    """The folder with the stand-in of the 2015 Inception v3: its graph and its archive.

    QUANTKIT_STANDIN names one that exists; else it is made from ../shared once, and kept in the system's temporary
    folder.
    """
    if named := os.environ.get("QUANTKIT_STANDIN"):
        return Path(named) if Path(named).is_dir() else Path(named).parent
    script = SHARED / "make_graph.py"
    if not script.exists():
        pytest.skip("needs ../shared/inception_v3, the stand-in of the released network")
    pytest.importorskip("tensorflow", reason="the stand-in is written with TensorFlow")
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"quantkit-standin-{digest}"
    if not (folder / "inception-2015-12-05.tgz").exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        subprocess.run([sys.executable, str(script), str(making)], check=True, capture_output=True)
        making.rename(folder)
    return folder
