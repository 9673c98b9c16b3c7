from collections.abc import Iterator
from pathlib import Path

import pytest

from quantkit.runtimes import find_runtime, runtimes
from quantkit.runtimes.runtime import Runtime


@pytest.fixture(scope="session", autouse=True)
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for converted graphs, so that each is converted once for all engines."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("QUANTKIT_CACHE", str(folder))
        yield folder


@pytest.fixture(params=runtimes())
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Every engine; a missing one is skipped with the command that installs it."""
    found = find_runtime(request.param)
    answer = found.available()
    if not answer.ok:
        pytest.skip(answer.detail)
    return found
