"""The opset of an ONNX output is chosen by the caller."""

from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.convert.onnx_opsets import change_opset
from quantkit.errors import UnavailableError, UsageError
from quantkit.formats import load, onnx

pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")


@pytest.mark.parametrize("opset", [15, 21])
def test_a_model_is_written_in_the_given_opset(tmp_path: Path, opset: int) -> None:
    images = np.random.default_rng(0).random((1, *(8, 8, 1))).astype(np.float32)
    outputs = []
    for name, version in (("default", None), ("other", opset)):
        path = tmp_path / f"{name}.onnx"
        qk.transform("digits", "inference", output=path, opset=version)
        assert onnx.opsets(load(path))[""] == (opset if version else 17)
        with qk.open_session(path, "onnxruntime") as session:
            (info,) = session.inputs
            shape = tuple(size or 1 for size in info.shape.dims or ())
            outputs.append(next(iter(session.run({info.name: np.resize(images, shape)}).values())))
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-6, atol=1e-7)


def test_names_of_inputs_and_outputs_stay(tmp_path: Path) -> None:
    qk.transform("digits", "inference", output=tmp_path / "a.onnx")
    before = load(tmp_path / "a.onnx")
    after = change_opset(before, 19)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert change_opset(before, 17) is before


def test_an_impossible_opset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no opset"):
        qk.transform("digits", "inference", output=tmp_path / "a.pb", opset=18)
    with pytest.raises(UnavailableError, match="opset 1000"):
        qk.transform("digits", "inference", output=tmp_path / "a.onnx", opset=1000)
    assert not list(tmp_path.iterdir())
