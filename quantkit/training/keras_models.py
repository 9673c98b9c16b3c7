"""Keras models as arguments: the kind of a model, copies of it, and its kernels."""

import sys
from collections.abc import Iterator
from typing import Any

from quantkit.arguments import type_name
from quantkit.distribution import install_command
from quantkit.errors import UnavailableError, UsageError
from quantkit.progress import OnMessage
from quantkit.runtimes.tensorflow_library import available, describe_error, import_tensorflow

# Layers whose kernel has few weights for much accuracy: Zhu & Gupta (2017) prune all others of MobileNet.
_DEPTHWISE = ("DepthwiseConv1D", "DepthwiseConv2D")


def is_legacy(model: Any) -> bool:
    """Return True if a model belongs to tf-keras, the Keras 2 of TensorFlow Model Optimization.

    Raises:
        UsageError: the value is not a Keras model.
        UnavailableError: TensorFlow is not installed, or is not the backend of Keras.
    """
    packages = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    if not packages & {"keras", "tf_keras"} or not hasattr(model, "layers"):
        raise UsageError(
            f"model is {type_name(model)}, and must be a Keras model",
            hint="a file is loaded by keras.saving.load_model; quantize(finetune=300) trains any other float model",
        )
    if not available().ok:
        raise UnavailableError("training needs TensorFlow, which is not installed", hint=install_command("training"))
    if "tf_keras" in packages:
        return True
    if (backend := sys.modules["keras"].backend.backend()) != "tensorflow":
        raise UnavailableError(
            f"training needs the TensorFlow backend of Keras, not {backend}", hint="set KERAS_BACKEND=tensorflow"
        )
    return False


def import_keras() -> Any:
    """Import Keras 3 after TensorFlow, whose log and home folder are set up first."""
    import_tensorflow()
    import keras

    return keras


def copy_model(model: Any) -> Any:
    """Return a copy of a Keras 3 model with its own variables, not compiled.

    Raises:
        UsageError: the model is not built, or Keras cannot copy one of its layers.
    """
    if not model.built:
        raise UsageError(f"the Keras model {model.name!r} is not built", hint="call it once, or give it a keras.Input")
    try:
        clone = import_keras().models.clone_model(model)
        clone.set_weights(model.get_weights())
    except (ValueError, TypeError, NotImplementedError, AttributeError) as error:
        raise UsageError(
            f"the Keras model {model.name!r} cannot be copied: {describe_error(error)}",
            hint="build it from keras.Input, of layers with get_config()",
        ) from error
    for layer, copied in zip(flatten(model), flatten(clone), strict=True):
        copied.trainable = layer.trainable
    return clone


def flatten(model: Any) -> list[Any]:
    """Return the layers of a Keras 3 model and of the models inside it."""
    return list(model._flatten_layers(include_self=False))


def find_kernels(model: Any, verb: str, on_message: OnMessage) -> list[Any]:
    """Return the kernels of a Keras 3 model, and report the layers that keep their weights.

    Args:
        model: Keras 3 model.
        verb: participle in the messages, for example ``pruned``.
        on_message: callback for messages.

    Raises:
        UsageError: no layer has a trainable kernel.
    """
    kernels = dict(_find_kernels(model, verb, on_message))
    if not kernels:
        raise UsageError(f"the Keras model {model.name!r} has no trainable kernel", hint="set layer.trainable = True")
    return list(kernels.values())


def _find_kernels(model: Any, verb: str, on_message: OnMessage) -> Iterator[tuple[int, Any]]:
    """Yield the kernels by identity: a shared layer occurs once."""
    for layer in flatten(model):
        matrices = [variable for variable in layer._trainable_variables if len(variable.shape) > 1]
        kind = type(layer).__name__
        kernels = [] if kind in _DEPTHWISE else [variable for variable in matrices if _is_kernel(variable)]
        if matrices and not kernels:
            reason = "a depthwise kernel" if kind in _DEPTHWISE else "no kernel"
            on_message(f"layer {layer.name!r} ({kind}) is not {verb}: it has {reason}")
        yield from ((id(variable), variable) for variable in kernels)


def _is_kernel(variable: Any) -> bool:
    return str(variable.name).endswith("kernel") and not str(variable.name).startswith("depthwise")
