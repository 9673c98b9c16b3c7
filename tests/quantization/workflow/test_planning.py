from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UnavailableError
from quantkit.ir.tensor import Array
from quantkit.ir.text import from_text


@pytest.mark.engine
@pytest.mark.parametrize(("target", "suffix"), [("onnx", "onnx"), ("litert", "tflite")])
@pytest.mark.parametrize("weights_only", [False, True])
def test_an_op_without_a_form_in_the_target_fails_before_the_data_is_read(
    target: str, suffix: str, weights_only: bool, tmp_path: Path
) -> None:
    if target == "litert":
        pytest.importorskip("tensorflow", reason="pip install tensorflow")
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[1x16]()
        w = Const[16x16]()
        product = MatMul(x, w, T=float)
        y = Digamma(product, T=float)
        """
    )
    reads: list[int] = []

    def samples() -> Iterator[Array]:
        reads.append(1)
        yield np.ones((1, 16), np.float32)

    data: dict[str, Any] = {"held_out": samples} if weights_only else {"calibration": samples}
    with pytest.raises(UnavailableError, match="Digamma"):
        qk.quantize(graph, target=target, weights_only=weights_only, output=tmp_path / f"q.{suffix}", **data)
    assert len(reads) <= 1, "the first sample shows the form of the data"
    assert not list(tmp_path.iterdir())
