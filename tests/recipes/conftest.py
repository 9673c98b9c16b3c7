"""Tests of this folder may register transforms: afterwards the table is as it was."""

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
