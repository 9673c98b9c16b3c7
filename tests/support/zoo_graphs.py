"""Frozen graphs as frameworks write them: Keras applications, an SSD with control flow, LSTMs.

Weights are random, with the scale of trained networks: activations neither vanish nor explode. Every function imports
TensorFlow.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph
from quantkit.model import load
from quantkit.zoo.architectures import random_graph

SEED = 0


@dataclass(frozen=True)
class Detector:
    """Sizes of a single-shot detector.

    Attributes:
        side: height and width of the input images, in pixels.
        resized: height and width of the input of the first layer.
        layers: channels and stride of each layer.
        heads: indices of the layers whose feature maps predict boxes.
        anchors: number of boxes per position of a feature map.
        classes: number of classes.
        boxes: number of output boxes per image.
        by_class: suppress overlapping boxes of each class separately, unrolled over the classes.
        score: minimum score of a box.
    """

    side: int
    resized: int
    layers: tuple[tuple[int, int], ...]
    heads: tuple[int, ...]
    anchors: int
    classes: int
    boxes: int
    by_class: bool = False
    score: float = 0.5


SMALL_DETECTOR = Detector(96, 64, ((8, 2), (16, 2), (16, 1), (32, 2), (32, 2)), (3, 4), 2, 5, 20)
_MOBILENET = (
    ((32, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)) + ((512, 1),) * 5 + ((1024, 2), (1024, 1))
)
# The sizes of SSD MobileNet v1 for COCO's 90 classes.
DETECTOR = Detector(
    480, 300, (*_MOBILENET, (512, 2), (256, 2), (256, 2), (128, 2)), (11, 13, 14, 15, 16, 17), 6, 90, 100, by_class=True
)


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    import tensorflow

    return tensorflow


def keras_application(name: str, **options: Any) -> Graph:
    """Return a network of ``keras.applications`` with random weights and random batch norm statistics."""
    tf = _tensorflow()
    tf.keras.utils.set_random_seed(SEED)
    model = getattr(tf.keras.applications, name)(weights=None, **options)
    return _with_statistics(tf, model)


def _with_statistics(tf: Any, model: Any) -> Graph:
    """Return the frozen graph of a model with random biases and batch norm statistics."""
    randomize_statistics(tf.keras, model)
    return load(model).graph


def randomize_statistics(keras: Any, model: Any) -> None:
    """Set random biases and batch norm statistics."""
    random = np.random.default_rng(SEED)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            for variable in layer.weights:
                is_offset = any(name in variable.path for name in ("beta", "moving_mean"))
                low, high = (-0.2, 0.2) if is_offset else (0.7, 1.3)
                variable.assign(random.uniform(low, high, variable.shape))
        elif getattr(layer, "bias", None) is not None:
            layer.bias.assign(random.uniform(-0.2, 0.2, layer.bias.shape))


def small_network() -> Graph:
    """Return a small Keras network with separable layers, residuals, gates and a pad."""
    tf = _tensorflow()
    tf.keras.utils.set_random_seed(SEED)
    layers = tf.keras.layers
    x = inputs = tf.keras.Input((32, 32, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(x)
    x = layers.ZeroPadding2D(1)(x)
    x = layers.Conv2D(8, 3, strides=2, use_bias=False)(x)
    x = shortcut = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same")(x)
    x = layers.Activation("swish")(layers.BatchNormalization(scale=False)(x))
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.multiply([x, layers.Conv2D(8, 1, activation="sigmoid")(gate)])
    x = layers.BatchNormalization()(layers.Conv2D(8, 1)(x))
    x = layers.Dropout(0.2)(layers.add([x, shortcut]))
    x = layers.SeparableConv2D(16, 3, activation="relu")(x)
    x = layers.Dense(10, activation="softmax")(layers.Flatten()(layers.MaxPooling2D()(x)))
    return _with_statistics(tf, tf.keras.Model(inputs, x))


def lstm(
    *,
    steps: int = 10,
    features: int = 16,
    layer_sizes: tuple[int, int] = (24, 32),
    unroll: bool = False,
    lower: bool = False,
) -> Graph:
    """Return a network of two Keras LSTMs, the first bidirectional.

    Args:
        steps: length of the sequence.
        features: size of the input per step.
        layer_sizes: sizes of the two layers.
        unroll: unroll all steps instead of While nodes and functions.
        lower: lower the loops to Enter, Switch and Merge, as TensorFlow's converters do.
    """
    tf = _tensorflow()
    tf.keras.utils.set_random_seed(SEED)
    layers = tf.keras.layers
    x = inputs = tf.keras.Input((steps, features))
    x = layers.Bidirectional(layers.LSTM(layer_sizes[0], return_sequences=True, unroll=unroll))(x)
    x = layers.LSTM(layer_sizes[1], unroll=unroll)(x)
    model = tf.keras.Model(inputs, layers.Dense(8, activation="softmax")(x))
    return _lower_control_flow(tf, model) if lower else load(model).graph


def _lower_control_flow(tf: Any, model: Any) -> Graph:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    function = tf.function(lambda x: model(x, training=False))
    [tensor] = model.inputs
    concrete = function.get_concrete_function(tf.TensorSpec(tensor.shape, tensor.dtype, name="x"))
    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=True)
    graph = graphdef.decode(frozen.graph.as_graph_def().SerializeToString())
    return graph.with_endpoints(["x"], [Edge.parse(frozen.outputs[0].name)])


def ssd(size: Detector = SMALL_DETECTOR) -> Graph:
    """Return a single-shot detector as the Object Detection API freezes it, with loops and conditions."""
    tf = _tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        uses_v2 = v1.control_flow_v2_enabled()
        v1.disable_control_flow_v2()
        try:
            outputs = _detector(tf, size)
        finally:
            if uses_v2:
                v1.enable_control_flow_v2()
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), outputs)
    return graphdef.decode(frozen.SerializeToString()).with_endpoints(["image_tensor"], outputs)


def _detector(tf: Any, size: Detector) -> list[str]:
    v1 = tf.compat.v1
    v1.set_random_seed(SEED)
    images = v1.placeholder(tf.uint8, [None, size.side, size.side, 3], name="image_tensor")
    with v1.name_scope("Preprocessor"):
        floats = tf.cast(images, tf.float32)
        shape = [size.resized, size.resized]
        x = v1.map_fn(lambda image: (2 / 255) * v1.image.resize_images(image, shape) - 1.0, floats)
        x = tf.ensure_shape(x, [None, *shape, 3])
    features = []
    for number, (channels, stride) in enumerate(size.layers):
        with v1.variable_scope(f"FeatureExtractor/layer_{number}"):
            x = _separable(tf, x, channels, stride, is_first=not number)
        features.append(x)
    maps = enumerate(features[head] for head in size.heads)
    boxes, scores = zip(*(_predict(tf, feature_map, index, size) for index, feature_map in maps), strict=True)
    with v1.name_scope("Postprocessor"):
        decoded = _decode_boxes(tf, tf.concat(boxes, 1))
        probabilities = tf.sigmoid(tf.concat(scores, 1))
        detected = v1.map_fn(
            partial(_select_boxes, tf, size), (decoded, probabilities), (tf.float32, tf.float32, tf.int32)
        )
    names = ["detection_boxes", "detection_scores", "num_detections"]
    for tensor, name in zip(detected, names, strict=True):
        tf.identity(tensor, name=name)
    return names


def _separable(tf: Any, x: Any, channels: int, stride: int, is_first: bool) -> Any:
    v1 = tf.compat.v1
    if is_first:
        return tf.nn.relu6(
            _batch_norm(tf, tf.nn.conv2d(x, _variable(tf, "weights", 3, 3, 3, channels), stride, "SAME"))
        )
    weights = _variable(tf, "depthwise_weights", 3, 3, x.shape[3], 1)
    x = v1.nn.depthwise_conv2d_native(x, weights, [1, stride, stride, 1], "SAME")
    with v1.variable_scope("depthwise"):
        x = tf.nn.relu6(_batch_norm(tf, x))
    x = tf.nn.conv2d(x, _variable(tf, "weights", 1, 1, x.shape[3], channels), 1, "SAME")
    return tf.identity(tf.nn.relu6(_batch_norm(tf, x)), name="Dropout/Identity")


def _variable(tf: Any, name: str, *shape: int) -> Any:
    fan_in = int(np.prod(shape[:-1])) if shape[-1] > 1 else shape[0] * shape[1]
    values = np.random.default_rng(shape).standard_normal(shape) * np.sqrt(2 / fan_in)
    return tf.compat.v1.get_variable(name, initializer=values.astype(np.float32), use_resource=False)


def _batch_norm(tf: Any, x: Any) -> Any:
    random = np.random.default_rng(int(x.shape[3]))
    vectors = []
    with tf.compat.v1.variable_scope("BatchNorm"):
        for name, low, high in (("gamma", 0.7, 1.3), ("beta", -0.2, 0.2), ("mean", -0.2, 0.2), ("variance", 0.7, 1.3)):
            values = random.uniform(low, high, x.shape[3]).astype(np.float32)
            vectors.append(tf.compat.v1.get_variable(name, initializer=values, use_resource=False))
    return tf.compat.v1.nn.fused_batch_norm(x, *vectors, is_training=False)[0]


def _predict(tf: Any, x: Any, index: int, size: Detector) -> tuple[Any, Any]:
    """Return boxes (n, anchors, 4) and scores (n, anchors, classes) of a feature map with a dynamic Reshape."""
    predictions = []
    with tf.compat.v1.variable_scope(f"BoxPredictor_{index}"):
        for name, values in (("BoxEncodings", 4), ("ClassScores", size.classes)):
            with tf.compat.v1.variable_scope(name):
                channels = size.anchors * values
                y = tf.nn.conv2d(x, _variable(tf, "weights", 1, 1, x.shape[3], channels), 1, "SAME")
                y = tf.nn.bias_add(y, _variable(tf, "biases", channels))
                num_boxes = y.shape[1] * y.shape[2] * size.anchors
                predictions.append(tf.reshape(y, tf.stack([tf.shape(x)[0], num_boxes, values])))
    return predictions[0], predictions[1]


def _decode_boxes(tf: Any, encodings: Any) -> Any:
    """Return the corners of boxes from encodings: center and logarithmic size."""
    anchors = np.random.default_rng(SEED).uniform(0.2, 0.8, (encodings.shape[1], 2)).astype(np.float32)
    center = encodings[..., :2] / 10.0 + anchors
    half = tf.exp(encodings[..., 2:] / 5.0) * 0.1
    return tf.concat([center - half, center + half], 2)


def _select_boxes(tf: Any, size: Detector, detections: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """Return the best boxes of an image, padded to a fixed number."""
    v1 = tf.compat.v1
    boxes, best = (
        _select_per_class(tf, size, *detections) if size.by_class else (detections[0], tf.reduce_max(detections[1], 1))
    )
    indices = tf.image.non_max_suppression(boxes, best, size.boxes, 0.6)
    selected = v1.cond(tf.size(indices) > 0, lambda: tf.gather(boxes, indices), lambda: tf.zeros([0, 4]))
    missing = size.boxes - tf.shape(selected)[0]
    index = v1.while_loop(lambda i: i < tf.shape(selected)[0], lambda i: i + 1, [0])
    padded = tf.pad(selected, [[0, missing], [0, 0]])
    return padded, tf.pad(tf.gather(best, indices), [[0, missing]]), index


def _select_per_class(tf: Any, size: Detector, boxes: Any, scores: Any) -> tuple[Any, Any]:
    """Return boxes (n, 4) and scores (n,) after suppression per class."""
    selections = []
    for number, class_scores in enumerate(tf.unstack(scores, axis=1)):
        with tf.compat.v1.name_scope(f"Class_{number}"):
            indices = tf.image.non_max_suppression(boxes, class_scores, 5, 0.6, size.score)
            selections.append((tf.gather(boxes, indices), tf.gather(class_scores, indices)))
    class_boxes, class_best = zip(*selections, strict=True)
    return tf.concat(class_boxes, 0), tf.concat(class_best, 0)


# Sizes of a sentence tagger, at which arithmetic dominates the run time.
LSTM: Mapping[str, Any] = {"steps": 32, "features": 128, "layer_sizes": (256, 256)}

BUILDERS: Mapping[str, Callable[[], Graph]] = {
    "inception_v3_2016": partial(random_graph, "inception_v3_2016"),
    "mobilenet_v1": partial(random_graph, "mobilenet_v1"),
    "mobilenet_v2": partial(random_graph, "mobilenet_v2"),
    "keras_resnet50": partial(keras_application, "ResNet50"),
    "keras_efficientnet_b0": partial(keras_application, "EfficientNetB0"),
    "keras_inception_resnet_v2": partial(keras_application, "InceptionResNetV2"),
    "ssd": partial(ssd, DETECTOR),
    "lstm_loop": partial(lstm, **LSTM),
    "lstm_lowered": partial(lstm, **LSTM, lower=True),
    "lstm_unrolled": partial(lstm, **LSTM, unroll=True),
}
