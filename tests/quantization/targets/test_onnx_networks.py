"""Quantization of trained ONNX networks of ``../shared/onnx_models`` with their own data."""

import sys
from pathlib import Path

import pytest

import quantkit as qk
from quantkit import formats
from quantkit.formats import onnx as onnx_format

pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from onnx_networks import FOLDER, NETWORKS, open_onnxruntime

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the networks of ../shared/onnx_models are not here"),
]
NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))
# Least metric in int8, and least fraction of the MACs that ONNX Runtime computes in int8.
EXPECTED = {
    "kwt1": (0.9, 0.4),
    "pplcnet_orientation": (0.95, 0.86),  # the first layer and one with half of the noise stay float
    "sediment_unet": (0.96, 0.88),  # the last two layers stay float
    "super_resolution_10": (25.7, 1.0),
    "vittrack": (0.85, 0.57),  # attention products and the first layers stay float
    "xfeat": (0.95, 0.85),
}


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_every_network_can_be_stored_in_int8(name: str, tmp_path: Path) -> None:
    before = formats.load(NETWORKS[name].path)
    output = tmp_path / "int8.onnx"
    qk.quantize(NETWORKS[name].path, target="onnx", weights_only=True, runs=0, output=output)
    after = formats.load(output)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert onnx_format.opsets(after) == onnx_format.opsets(before)
    samples = NETWORKS[name].calibration(open_onnxruntime(NETWORKS[name].path))[:1]
    expected, actual = (open_onnxruntime(path)(samples[0]) for path in (NETWORKS[name].path, output))
    assert list(expected) == list(actual)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_metric_of_the_task_in_int8(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    samples = network.calibration(open_onnxruntime(network.path))[:8]
    output = tmp_path / "int8.onnx"
    result = qk.quantize(network.path, samples, target="onnx", runs=0, output=output)
    assert list(result.report.census.executed) == ["openvino", "onnxruntime"]
    metric, fraction = EXPECTED[name]
    assert network.measure(open_onnxruntime(output)) >= metric
    assert result.report.census.executed["onnxruntime"] >= fraction
    assert formats.load(output).outputs == formats.load(network.path).outputs
