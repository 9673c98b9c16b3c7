"""Options, Hypothesis profiles and shared data of all tests."""

import gc
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from short_measurements import shorten_measurements

# The last digits of NumPy's products depend on the number of threads on some processors, and workers have fewer threads
# than this process. NumPy reads the variable when it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# TensorFlow enables oneDNN, which has the kernels of the target tensorflow, by itself only on some processors.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# Without bytecode files, each command that a test starts would compile the package again, for half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The garbage collector scans the objects of TensorFlow so often that it takes a tenth of the time of the tests.
gc.set_threshold(50_000, 20, 20)

# Busy machines miss deadlines. HYPOTHESIS_PROFILE or --hypothesis-profile selects another profile. Equal examples in
# every run find few new faults: more of them only take more time.
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("random", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SHARED = Path(__file__).parent.parent.parent / "shared" / "inception_v3"
# Files whose tests take the longest together: commands of all pages, trainings, trained networks.
SLOW_FILES = {"test_documentation.py", "test_training.py", "test_finetuning.py", "test_onnx_networks.py"}

# Scripts without doctests, some of which need a runtime.
collect_ignore_glob = ["bench/measure_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="rewrite tests/golden and the generated pages",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one process more than cores for the whole suite, at most 4, and none for selected files.

    Many tests sleep or start other processes, and leave a core idle. The start of a process takes seconds.
    """
    return min((os.cpu_count() or 1) + 1, 4) if config.args == config.getini("testpaths") else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take minutes first: at the end, only one process would be busy."""
    items.sort(key=lambda item: item.path.name not in SLOW_FILES)


@pytest.fixture(scope="session", autouse=True)
def _short_measurements() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shorten_measurements(patch.setattr)
        yield


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Return True if golden files are rewritten instead of compared."""
    return bool(request.config.getoption("--update-goldens"))


@pytest.fixture(scope="session")
def standin() -> Path:
    """Return the folder with the stand-in for the 2015 Inception v3: its graph and its archive.

    QUANTKIT_STANDIN names an existing folder. Otherwise the stand-in is generated from ../shared once, in the
    temporary folder of the system.
    """
    if path := os.environ.get("QUANTKIT_STANDIN"):
        return Path(path) if Path(path).is_dir() else Path(path).parent
    script = SHARED / "make_graph.py"
    if not script.exists():
        pytest.skip("needs ../shared/inception_v3, the stand-in of the released network")
    pytest.importorskip("tensorflow", reason="the stand-in is written with TensorFlow")
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"quantkit-standin-{digest}"
    if not (folder / "inception-2015-12-05.tgz").exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        subprocess.run([sys.executable, str(script), str(partial)], check=True, capture_output=True)
        with suppress(OSError):  # another process was first
            partial.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)
    return folder
