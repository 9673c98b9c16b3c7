"""Restore the registry of transforms after each test of this folder."""

from collections.abc import Iterator

import pytest

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.transforms.registry import REGISTRY


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)
