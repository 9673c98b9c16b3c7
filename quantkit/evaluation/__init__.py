"""Evaluation of models: classification, accuracy, agreement, and comparison layer by layer."""

from quantkit.evaluation.accuracy import Evaluation, evaluate
from quantkit.evaluation.classification import Classification, classify, classify_images
from quantkit.evaluation.classifier import ImagePredictions, Prediction
from quantkit.evaluation.comparison import StructureComparison, compare, compare_structure
from quantkit.evaluation.interrupted import EvaluationInterrupted
from quantkit.evaluation.layer_comparison import LayerComparison, LayerRow

__all__ = [
    "Classification",
    "Evaluation",
    "EvaluationInterrupted",
    "ImagePredictions",
    "LayerComparison",
    "LayerRow",
    "Prediction",
    "StructureComparison",
    "classify",
    "classify_images",
    "compare",
    "compare_structure",
    "evaluate",
]
