"""TensorFlow Model Optimization (TF-MOT), which trains the models of tf-keras."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from quantkit.errors import QuantkitError, UsageError
from quantkit.model.importers.keras2 import import_tfmot
from quantkit.progress import OnMessage
from quantkit.quantization.scheme import Scheme
from quantkit.runtimes.availability import find_package, require
from quantkit.runtimes.tensorflow_library import describe_error, import_tensorflow, suppress_log
from quantkit.training.schedule import PruningSchedule

# Classes of wrapped layers.
_QUANTIZED, _PRUNED, _CLUSTERED = {"QuantizeWrapperV2", "QuantizeLayer"}, {"PruneLowMagnitude"}, {"ClusterWeights"}


def import_tf_mot() -> Any:
    """Import TF-MOT without its change of the environment, which replaces Keras in other processes.

    Raises:
        UnavailableError: TF-MOT is not installed.
    """
    require(
        find_package(
            "TensorFlow Model Optimization, which trains models of tf-keras,",
            "tensorflow_model_optimization",
            "tensorflow-model-optimization",
            extra="training",
        )
    )
    with suppress_log():
        import_tensorflow()
        return import_tfmot("the training of models of tf-keras")


def quantize_legacy(model: Any, scheme: Scheme, on_message: OnMessage) -> Any:
    """Return a tf-keras model with the fake quantization of TF-MOT.

    Args:
        model: model of tf-keras, functional or sequential.
        scheme: scheme whose ``keep_float`` names layers or classes of layers.
        on_message: callback for messages.

    Raises:
        UsageError: the model is quantization-aware already, or TF-MOT does not support it or the scheme.
    """
    api = import_tf_mot().quantization.keras
    from tensorflow_model_optimization.python.core.quantization.keras.default_8bit import (
        default_8bit_quantize_registry as registries,
    )

    _require_unwrapped(model, _QUANTIZED, "quantization-aware")
    if scheme.weights.reduce_range:
        raise UsageError("TF-MOT trains 8-bit weights, and the scheme has reduce_range", hint="use a model of Keras 3")
    registry = registries.Default8BitQuantizeRegistry()

    def supports(layer: Any) -> bool:
        # TF-MOT folds a BatchNormalization into the layer before it.
        return type(layer).__name__ == "BatchNormalization" or bool(registry.supports(layer))

    def annotate(layer: Any) -> Any:
        is_float = {layer.name, type(layer).__name__} & set(scheme.keep_float)
        return layer if is_float else api.quantize_annotate_layer(layer)

    with _translate_errors(model), api.quantize_scope():
        return api.quantize_apply(_wrap_layers(model, annotate, supports, "quantized", on_message))


def prune_legacy(model: Any, schedule: PruningSchedule, on_message: OnMessage) -> Any:
    """Return a copy of a tf-keras model with the pruning wrappers of TF-MOT.

    Raises:
        UsageError: the model is pruned already, or TF-MOT does not support it.
    """
    api = import_tf_mot().sparsity.keras
    from tensorflow_model_optimization.python.core.sparsity.keras.prune_registry import PruneRegistry

    _require_unwrapped(model, _PRUNED, "pruned")
    pruning = _translate_schedule(api, schedule)

    def wrap(layer: Any) -> Any:
        return api.prune_low_magnitude(layer, pruning)

    with _translate_errors(model):
        return _wrap_layers(_copy(model), wrap, PruneRegistry.supports, "pruned", on_message)


def _translate_schedule(api: Any, schedule: PruningSchedule) -> Any:
    """Return TF-MOT's form of a schedule: its first step is 1, and it selects weights at multiples of its frequency."""
    begin, end = schedule.begin + 1, schedule.end + 1
    if schedule.is_constant:
        return api.ConstantSparsity(schedule.final, begin, frequency=schedule.frequency)
    # The last selection is at the end of the schedule.
    frequency = max(steps for steps in range(1, schedule.frequency + 1) if (end - begin) % steps == 0)
    return api.PolynomialDecay(schedule.initial, schedule.final, begin, end, frequency=frequency)


def cluster_legacy(model: Any, count: int, on_message: OnMessage) -> Any:
    """Return a copy of a tf-keras model with the clustering wrappers of TF-MOT.

    Raises:
        UsageError: the model is clustered already, or TF-MOT does not support it.
    """
    api = import_tf_mot().clustering.keras
    from tensorflow_model_optimization.python.core.clustering.keras.clustering_registry import ClusteringRegistry

    _require_unwrapped(model, _CLUSTERED, "clustered")

    def wrap(layer: Any) -> Any:
        return api.cluster_weights(layer, count, api.CentroidInitialization.LINEAR)

    with _translate_errors(model):
        return _wrap_layers(_copy(model), wrap, ClusteringRegistry.supports, "clustered", on_message)


def strip_legacy(model: Any) -> Any:
    """Return a tf-keras model without the wrappers of pruning and clustering.

    Raises:
        UsageError: the model has no such wrappers.
    """
    api = import_tf_mot()
    kinds = _kinds(model)
    with _translate_errors(model):
        if kinds & _PRUNED:
            return api.sparsity.keras.strip_pruning(model)
        if kinds & _CLUSTERED:
            return api.clustering.keras.strip_clustering(model)
    raise UsageError(
        f"the Keras model {model.name!r} is neither pruned nor clustered",
        hint="quantkit.quantize exports a quantization-aware model" if kinds & _QUANTIZED else "call prune or cluster",
    )


def legacy_callbacks(model: Any) -> list[Any]:
    """Return the callback that counts the steps of a pruned tf-keras model; none for other models."""
    return [import_tf_mot().sparsity.keras.UpdatePruningStep()] if _kinds(model) & _PRUNED else []


def _wrap_layers(
    model: Any, wrap: Callable[[Any], Any], supports: Callable[[Any], bool], state: str, on_message: OnMessage
) -> Any:
    """Return the model with wrapped layers; layers that TF-MOT does not support are reported and stay."""
    import tf_keras

    def replace_layer(layer: Any) -> Any:
        if isinstance(layer, tf_keras.Model):
            return _wrap_layers(layer, wrap, supports, state, on_message)
        if isinstance(layer, tf_keras.layers.InputLayer):
            return layer
        if not supports(layer):
            on_message(f"layer {layer.name!r} ({type(layer).__name__}) is not {state}: TF-MOT does not support it")
            return layer
        return wrap(layer)

    return tf_keras.models.clone_model(model, clone_function=replace_layer)


def _copy(model: Any) -> Any:
    """Return a copy with its own variables: the wrappers train those of the layers inside."""
    import tf_keras

    copied = tf_keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    return copied


def _kinds(model: Any) -> set[str]:
    """Return the names of the classes of all layers."""
    return {type(layer).__name__ for layer in model._flatten_layers()}


def _require_unwrapped(model: Any, kinds: set[str], state: str) -> None:
    if _kinds(model) & kinds:
        raise UsageError(f"the Keras model {model.name!r} is {state} already", hint="give the model before this step")


@contextmanager
def _translate_errors(model: Any) -> Iterator[None]:
    """Convert the errors of TF-MOT to one sentence."""
    try:
        yield
    except QuantkitError:
        raise
    except (ValueError, TypeError, RuntimeError, AttributeError, NotImplementedError) as error:
        raise UsageError(
            f"TF-MOT does not support the Keras model {model.name!r}: {describe_error(error)}",
            hint="build a functional or sequential model of layers that TF-MOT supports",
        ) from error
