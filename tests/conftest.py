"""Options every test may ask for."""

import pytest


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
