"""Keras models in the user's own training: quantization-aware, pruned or clustered.

    aware = training.quantization_aware(model, calibration=images, target="onnx")
    aware.compile("adam", "sparse_categorical_crossentropy")
    aware.fit(images, labels)
    quantkit.quantize(aware, held_out=images).save("model.int8.onnx")

Importing this package loads neither TensorFlow nor Keras.
"""

from quantkit.training.schedule import PruningSchedule
from quantkit.training.verbs import callbacks, cluster, prune, quantization_aware, strip, update_batch_norms

__all__ = ["PruningSchedule", "callbacks", "cluster", "prune", "quantization_aware", "strip", "update_batch_norms"]
