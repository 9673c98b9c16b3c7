"""Quantizing a graph without a model card keeps the name of its preparing recipe, whose steps may be for ONNX only."""

from conformance_cases import CASES

from quantkit.quantization.workflow import quantize
from quantkit.recipes.named import find_recipe
from quantkit.transforms.registry import REGISTRY


def test_steps_of_another_dialect_are_omitted() -> None:
    assert any("tensorflow" not in REGISTRY[step.name].dialects for step in find_recipe("inference").steps)
    result = quantize(CASES["dense"].graph, weights_only=True, runs=0)
    assert result.plan.weights
