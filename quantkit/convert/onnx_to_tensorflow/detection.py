"""Conversion of NonMaxSuppression, for one image and one class."""

import numpy as np

from quantkit.convert.onnx_to_tensorflow.translator import PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType

# Default values of the inputs 2 to 4: number of boxes, overlap and score.
_DEFAULTS = ((0, DType.INT64), (0.0, DType.FLOAT), (float(np.finfo(np.float32).min), DType.FLOAT))


@converts("NonMaxSuppression")
def _non_max_suppression(translator: OnnxTranslator, node: Node) -> None:
    boxes, scores = (translator.shape(edge).dims for edge in node.inputs[:2])
    if boxes is None or scores is None or boxes[0] != 1 or scores[1] != 1 or node.attrs.get("center_point_box"):
        raise conversion_error(node, "several images or classes, or boxes by center, are not supported")
    inputs = [
        translator.reshape(node, name, translator.plain(edge), dims)
        for name, edge, dims in zip(("boxes", "scores"), node.inputs, ([-1, 4], [-1]), strict=False)
    ]
    for slot, (default, dtype) in enumerate(_DEFAULTS, start=2):
        is_stated = translator.has_input(node, slot)
        edge = (
            translator.plain(node.inputs[slot]) if is_stated else translator.add_array(node, f"{slot}", default, dtype)
        )
        inputs.append(translator.reshape(node, f"limit_{slot}", edge, []))
    # Exporters write the largest int64 for all boxes, which int32 does not have.
    num_boxes = translator.add_intermediate(node, "num_boxes", "Size", [inputs[1]], out_type=DType.INT64)
    count = translator.add_intermediate(node, "limited", "Minimum", [inputs[2], num_boxes])
    inputs[2] = translator.add_cast(node, "count", count, DType.INT32)
    name = f"{translator.name(node.name)}/selected"
    selected = translator.add_node(name, "NonMaxSuppressionV3", inputs, T=DType.FLOAT, T_threshold=DType.FLOAT)
    translator.types[selected] = DType.INT32
    column = translator.reshape(node, "column", translator.add_cast(node, "wide", selected, DType.INT64), [-1, 1])
    image_and_class = translator.add_array(node, "image_and_class", [[0, 0], [2, 0]], DType.INT32)
    translator.emit_typed(node, "Pad", [column, image_and_class], PLAIN, Tpaddings=DType.INT32)
