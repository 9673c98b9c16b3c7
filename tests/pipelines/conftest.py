"""State of TensorFlow before each test of pipelines."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """Remove the global seed that other tests of this process may have set: it seeds every random op."""
    if tf := sys.modules.get("tensorflow"):
        tf.random.set_seed(None)
