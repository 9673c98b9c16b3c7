"""Evaluation in several workers: the same metrics as in one process."""

from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.evaluation import Evaluation

ASSETS = Path(__file__).parent.parent.parent / "assets"
HELD_OUT = ASSETS / "digits_heldout.npz"


def without_times(evaluation: Evaluation) -> dict[str, object]:
    document = evaluation.to_json()
    return {key: value for key, value in document.items() if key not in ("seconds", "samples_per_second", "input")}


def test_two_workers_count_as_one_process() -> None:
    folded = qk.transform("digits", "inference")
    options = {"reference": folded, "runtime": "reference", "reference_runtime": "reference", "limit": 50, "batch": 4}
    single, parallel = (qk.evaluate("digits", HELD_OUT, workers=workers, **options) for workers in (1, 2))
    assert without_times(single) == without_times(parallel)
    assert single.metrics.samples == 50
    assert single.metrics.kl_divergence is not None


def test_streams_and_wrong_models_are_errors() -> None:
    with pytest.raises(UsageError, match="cannot be divided among processes"):
        qk.evaluate("digits", iter([np.zeros((1, 16, 16, 1), np.float32)]), workers=2, runtime="reference")
    with pytest.raises(UsageError, match="workers is 0"):
        qk.evaluate("digits", HELD_OUT, workers=0)
    with pytest.raises(UsageError, match="not a score for each class"):
        qk.evaluate("digits", HELD_OUT, workers=2, runtime="reference", output_layer="Mul", limit=8)


def test_workers_without_a_batch_of_their_own_do_not_count() -> None:
    evaluation = qk.evaluate("digits", HELD_OUT, workers=1_000_000, runtime="reference", limit=4, batch=4)
    assert evaluation.samples_per_second < 1e6
