import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_distribution import forget_plugins, write_distribution

from quantkit.runtimes import REGISTRY, Runtime, find_runtime, runtimes

TOY = Path(__file__).parents[1] / "support" / "toy_runtime" / "toy_runtime.py"


@pytest.fixture(scope="session", autouse=True)
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder for converted graphs: each is converted once for all runtimes."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("QUANTKIT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def toy_distribution(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Installed distribution that registers a runtime through an entry point."""
    folder = tmp_path_factory.mktemp("site-packages")
    write_distribution(folder, "toy_runtime", TOY.read_text(), {"quantkit.runtimes": {"toy": "toy_runtime:RUNTIME"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        forget_plugins(REGISTRY)
        yield folder
    sys.modules.pop("toy_runtime", None)
    forget_plugins(REGISTRY)


# Problems of the installed plugins that cannot be loaded.
PLUGIN_PROBLEMS = REGISTRY.plugin_problems()


@pytest.fixture(params=[*runtimes(), *PLUGIN_PROBLEMS, "toy"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Every runtime; a test of a missing one is skipped with the command that installs it."""
    if request.param in PLUGIN_PROBLEMS:
        pytest.fail(PLUGIN_PROBLEMS[request.param])
    runtime = find_runtime(request.param)
    if not runtime.available().ok:
        pytest.skip(runtime.available().detail)
    return runtime
