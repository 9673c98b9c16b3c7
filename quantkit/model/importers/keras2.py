"""Keras 2 files, which tf-keras loads, and the wrappers of TensorFlow Model Optimization (TF-MOT) in them.

The classes of TF-MOT that a file may reference are those of its scopes for loading: wrappers, quantizers and schedules,
which contain no code of the file.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from quantkit.distribution import install_command
from quantkit.errors import UnavailableError
from quantkit.model.importers.keras_contents import CONFIG

TFMOT = "tensorflow_model_optimization"
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
# Layers that call a function of TensorFlow by its name, and the functions that only compute.
FUNCTION_LAYERS = frozenset({"SlicingOpLambda", "TFOpLambda"})
_FUNCTION_MODULES = ("__operators__.", "math.", "nn.")
_FUNCTIONS = frozenset(
    {
        *("cast", "clip_by_value", "concat", "expand_dims", "identity", "image.resize", "pad", "reshape", "shape"),
        *("split", "squeeze", "stack", "strided_slice", "tile", "transpose"),
    }
)
# Modules of tf-keras with the classes that a model consists of.
_MODULES = (
    *("layers", "initializers", "regularizers", "constraints", "models", "mixed_precision", "activations"),
    *("losses", "metrics", "optimizers", "optimizers.schedules"),  # of the compiled model, which is not loaded
)
_WRAPPERS = ("PruneLowMagnitude", "ClusterWeights", "ClusterWeightsMHA")
TFMOT_LAYERS = frozenset({*_WRAPPERS, "QuantizeAnnotate", "QuantizeLayer", "QuantizeWrapper", "QuantizeWrapperV2"})


def is_available() -> bool:
    """Return True if tf-keras is installed."""
    return find_spec("tf_keras") is not None


def import_tf_keras(subject: str) -> Any:
    """Import tf-keras.

    Raises:
        UnavailableError: tf-keras is not installed; the message begins with ``subject``.
    """
    if not is_available():
        raise UnavailableError(f"{subject} needs tf-keras, which is not installed", hint=install_command("training"))
    return import_module("tf_keras")


def import_tfmot(subject: str) -> Any:
    """Import TF-MOT, which would make ``tf.keras`` Keras 2 in this process and in those that it starts.

    Raises:
        UnavailableError: TF-MOT is not installed; the message begins with ``subject``.
    """
    import_tf_keras(subject)
    if find_spec(TFMOT) is None:
        raise UnavailableError(
            f"{subject} needs tensorflow-model-optimization, which is not installed", hint=install_command("training")
        )
    # TF-MOT sets the variable while it is imported, and `tf.keras` reads it once.
    _ = import_module("tensorflow").keras.Model
    before = os.environ.get(LEGACY_KERAS)
    try:
        return import_module(TFMOT)
    finally:
        if before is None:
            os.environ.pop(LEGACY_KERAS, None)


@contextmanager
def tfmot_scopes(tfmot: Any) -> Iterator[None]:
    """Register the classes of TF-MOT in tf-keras."""
    with ExitStack() as stack:
        for scope in (
            tfmot.quantization.keras.quantize_scope,
            tfmot.sparsity.keras.prune_scope,
            tfmot.clustering.keras.cluster_scope,
        ):
            stack.enter_context(scope())
        yield


@cache
def tfmot_classes(tfmot: Any) -> Mapping[str, str]:
    """Return the module of each class of TF-MOT that a file may reference."""
    from tf_keras.utils import get_custom_objects

    sparsity = tfmot.sparsity.keras
    with tfmot_scopes(tfmot):
        classes = [value for value in _scope_objects(get_custom_objects) if isinstance(value, type)]
    classes += [sparsity.ConstantSparsity, sparsity.PolynomialDecay]
    return {value.__name__: value.__module__ for value in classes if value.__module__.startswith(f"{TFMOT}.")}


def _scope_objects(get_custom_objects: Callable[[], Mapping[str, Any]]) -> list[Any]:
    """Return the objects of the innermost scopes and the global ones."""
    from tf_keras.src.saving import object_registration

    return [*get_custom_objects().values(), *vars(object_registration._THREAD_LOCAL_CUSTOM_OBJECTS).values()]


def is_of_keras2(keras: Any, name: str) -> bool:
    """Return True if tf-keras has a public class or function of models with a name."""
    return any(hasattr(attrgetter(module)(keras), name) for module in _MODULES)


def is_harmless_function(name: str) -> bool:
    """Return True if a function of TensorFlow only computes: others read and write files."""
    return name.startswith(_FUNCTION_MODULES) or name in _FUNCTIONS


def remove_build_configs(path: Path) -> None:
    """Remove the build configurations of TF-MOT layers from a ``.keras`` archive.

    These layers add their variables again each time they are built.
    """
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, content in members:
            is_config = info.filename == CONFIG
            archive.writestr(info, _without_build_configs(content) if is_config else content, zipfile.ZIP_STORED)


def _without_build_configs(content: bytes) -> bytes:
    def visit(value: Any) -> Any:
        if isinstance(value, dict):
            is_tfmot = str(value.get("module")).startswith(f"{TFMOT}.")
            return {key: visit(item) for key, item in value.items() if not (is_tfmot and key == "build_config")}
        return [visit(item) for item in value] if isinstance(value, list) else value

    return json.dumps(visit(json.loads(content))).encode()


@contextmanager
def repeated_variables() -> Iterator[None]:
    """Allow archives in which the weights of a wrapped layer of TF-MOT are stored twice.

    A wrapper that was trained tracks its weights twice, one that was loaded once.
    """
    wrapper = import_module(f"{TFMOT}.python.core.quantization.keras.quantize_wrapper").QuantizeWrapper
    wrapper.load_own_variables = _load_variables
    try:
        yield
    finally:
        del wrapper.load_own_variables


def _load_variables(layer: Any, store: Mapping[str, Any]) -> None:
    """Assign stored arrays to the variables of a layer, in their order; arrays of other shapes are repetitions."""
    arrays = iter([store[str(index)][()] for index in range(len(store))])
    for variable in layer._trainable_weights + layer._non_trainable_weights:
        array = next((array for array in arrays if array.shape == tuple(variable.shape)), None)
        if array is None:
            raise ValueError(f"the variable {variable.name} of the layer {layer.name} is not in the file")
        variable.assign(array)


def strip_wrappers(model: Any) -> Any:
    """Return a Keras model without the wrappers of pruning and clustering; its weights have the zeros and clusters.

    A model without wrappers is returned unchanged; one with wrappers is copied.
    """
    names = {type(layer).__name__ for layer in _layers(model) if type(layer).__module__.startswith(f"{TFMOT}.")}
    if not names.intersection(_WRAPPERS):
        return model
    tfmot = import_tfmot(f"the model {model.name!r}")
    with tfmot_scopes(tfmot):
        copy = import_module("tf_keras").models.clone_model(model)
        copy.set_weights(model.get_weights())
        copy = tfmot.sparsity.keras.strip_pruning(copy)
        return tfmot.clustering.keras.strip_clustering(copy) if names.intersection(_WRAPPERS[1:]) else copy


def _layers(model: Any) -> Iterator[Any]:
    """Yield the layers of a model and of the models in it."""
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from _layers(layer)
