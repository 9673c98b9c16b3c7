"""Functions that prepare a Keras model for the user's own training, and that end it."""

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

from quantkit.arguments import public, require_callable, require_positive
from quantkit.errors import InputError, UsageError
from quantkit.options import Declaration, option, takes
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.workflow.calibrated_model import calibrate_model
from quantkit.quantization.workflow.calibration_run import find_datasets
from quantkit.quantization.workflow.options import CALIBRATION_LIMIT, Options, check_options
from quantkit.quantization.workflow.planning import choose_scheme
from quantkit.quantization.workflow.preparation import load_float_model
from quantkit.training.batch_norms import average_statistics, find_batch_norms, split_batches
from quantkit.training.clusters import find_clusters
from quantkit.training.constraints import ClusterConstraint, MagnitudeConstraint, is_constrained
from quantkit.training.fake_quantization import TrainingProblem, aware_model, build_model
from quantkit.training.keras_models import copy_model, find_kernels, flatten, is_legacy
from quantkit.training.schedule import PruningSchedule
from quantkit.training.tf_mot import cluster_legacy, legacy_callbacks, prune_legacy, quantize_legacy, strip_legacy

# Op types without arithmetic, whose float fallback has no cost.
_NO_OPS = ("Identity", "NoOp")


@dataclass(frozen=True)
class AwareOptions:
    """The arguments of `quantization_aware`."""

    model: Annotated[Any, Declaration(doc="trained float model of Keras 3 or tf-keras, built; it is not changed")]
    scheme: Scheme | Mapping[str, Any] | str | os.PathLike[str] | None = option(
        None,
        doc="quantization scheme, its fields, or its TOML file (default: the target's). For tf-keras, only "
        "``keep_float`` has an effect",
    )
    calibration: Any = option(None, doc="calibration dataset, as for `quantkit.quantize`; only for Keras 3")
    _: KW_ONLY
    target: str | None = option(None, doc="target format and runtime (default: the scheme's, else ``onnx``)")
    reduce_range: bool = option(
        False, doc="use 7-bit weights instead of the limited sums of pairs for processors without VNNI"
    )
    limit: int = option(CALIBRATION_LIMIT, require_positive, doc="maximum number of calibration samples")
    on_progress: OnProgress = option(ignore_progress, require_callable, doc="receives the progress")
    on_message: OnMessage = option(ignore_message, require_callable, doc="receives messages")


@public
@takes(AwareOptions)
def quantization_aware(arguments: AwareOptions) -> Any:
    """Return a Keras model that computes with the rounding of its quantized form, to be trained with ``fit``.

    A model of Keras 3 is calibrated as in `quantkit.quantize`, and has the plan, the ranges and the
    corrected biases of that call. All layers become one layer with FakeQuant operations: folded
    batch norms keep their statistics, Dropout and augmentation layers do nothing. Train the float
    model first. `quantkit.quantize` converts the trained model without a calibration dataset.

    A model of tf-keras gets the wrappers of TensorFlow Model Optimization (TF-MOT), which observe
    the ranges during the training.

    Returns:
        Keras model with the names, shapes and types of the inputs and outputs of ``model``, not
            compiled. For Keras 3, its variables are weights, biases and the logarithms of scales,
            and it is saved with ``save_weights``.

    Raises:
        UsageError: the model is not a Keras model or is quantization-aware already, or scheme and
            target contradict each other.
        InputError: a file or the dataset is missing or broken.
        UnavailableError: TensorFlow, TF-MOT or the target is not installed.
    """
    model, options = arguments.model, Options(**vars(arguments))
    if is_legacy(model):
        return quantize_legacy(model, choose_scheme(options), options.on_message)
    if isinstance(model, aware_model()):
        raise UsageError(f"the Keras model {model.name!r} is quantization-aware already", hint="call its fit method")
    return _make_aware(model, choose_scheme(options), options)


def _make_aware(model: Any, scheme: Scheme, options: Options) -> Any:
    if scheme.weights_only:
        raise UsageError("the scheme quantizes weights only, and computes in float", hint="omit weights_only")
    if options.calibration is None:
        raise UsageError("no calibration dataset is given", hint="give calibration: samples for the first ranges")
    check_options(options, scheme)
    loaded = load_float_model(options)
    data, _ = find_datasets(loaded, options)
    float_model, conversion, trials = calibrate_model(loaded, scheme, data, None, options)
    for name, reason in conversion.plan.float_fallbacks.items():
        if (op := conversion.graph[name].op) not in _NO_OPS:
            options.on_message(f"{name} ({op}) stays float: {reason}")
    problem = TrainingProblem.of(float_model, conversion, trials.reference.feeds[0])
    for layer in problem.frozen_layers:
        options.on_message(f"{layer} keeps its weights: no gradient reaches it")
    return build_model(model, problem)


@public
def prune(model: Any, schedule: PruningSchedule | float, *, on_message: OnMessage = ignore_message) -> Any:
    """Return a copy of a Keras model whose weights of smallest magnitude become zero during the training.

    Each kernel has the sparsity of the schedule, and zeros stay zero. Depthwise kernels are
    not pruned. Train the copy with ``fit(..., callbacks=callbacks(copy))``, then call `strip`.

    Args:
        model: trained model of Keras 3 or tf-keras, built; it is not changed.
        schedule: sparsity at each step; a number is the constant fraction of zeros from the first
            step on.
        on_message: callback for layers that are not pruned.

    Returns:
        Keras model with the same layers, not compiled; with TF-MOT's wrappers for tf-keras.

    Raises:
        UsageError: the model is not a Keras model, cannot be copied, has no kernel, or is pruned or
            clustered already; or a fraction or step of the schedule is out of bounds.
        UnavailableError: TensorFlow or TF-MOT is not installed.
    """
    require_callable(on_message=on_message)
    schedule = schedule if isinstance(schedule, PruningSchedule) else PruningSchedule(schedule)
    if is_legacy(model):
        return prune_legacy(model, schedule, on_message)
    pruned = _copy_unconstrained(model)
    for kernel in find_kernels(pruned, "pruned", on_message):
        kernel.constraint = MagnitudeConstraint(kernel, schedule)
    return pruned


@public
def cluster(model: Any, n: int, *, on_message: OnMessage = ignore_message) -> Any:
    """Return a copy of a Keras model with at most ``n`` distinct values in each kernel.

    K-means with linear initialization selects the weights of each cluster. A cluster has one trained
    value (Han et al., "Deep Compression", 2016). Depthwise kernels are not clustered. Train the copy
    with ``fit``, then call `strip`.

    Args:
        model: trained model of Keras 3 or tf-keras, built; it is not changed.
        n: number of clusters of each kernel, at least 2.
        on_message: callback for layers that are not clustered.

    Returns:
        Keras model with the same layers, not compiled; with TF-MOT's wrappers for tf-keras.

    Raises:
        UsageError: the model is not a Keras model, cannot be copied, has no kernel, or is pruned or
            clustered already; or ``n`` is less than 2.
        UnavailableError: TensorFlow or TF-MOT is not installed.
    """
    require_positive(n=n)
    require_callable(on_message=on_message)
    if n < 2:
        raise UsageError("n is 1, and a layer needs at least 2 clusters", hint="for example n=16")
    if is_legacy(model):
        return cluster_legacy(model, n, on_message)
    clustered = _copy_unconstrained(model)
    for kernel in find_kernels(clustered, "clustered", on_message):
        constraint = ClusterConstraint(kernel, find_clusters(kernel.numpy(), n))
        kernel.assign(constraint.merge(kernel))
        kernel.constraint = constraint
    return clustered


@public
def strip(model: Any) -> Any:
    """Return a pruned or clustered Keras model in its original form, with its zeros and clusters.

    Args:
        model: model of `prune` or `cluster`, or of TF-MOT.

    Returns:
        Keras model with the original layers, not compiled, for ``save`` and `quantkit.quantize`.

    Raises:
        UsageError: the model is neither pruned nor clustered.
    """
    if is_legacy(model):
        return strip_legacy(model)
    if not is_constrained(model):
        is_aware = isinstance(model, aware_model())
        raise UsageError(
            f"the Keras model {model.name!r} is neither pruned nor clustered",
            hint="quantkit.quantize exports a quantization-aware model" if is_aware else "call prune or cluster",
        )
    return copy_model(model)


@public
def update_batch_norms(model: Any, samples: Any, *, batch: int = 32) -> Any:
    """Set the statistics of the batch norms to their mean over samples, and return the model.

    The moving averages of a training do not fit weights that were pruned or clustered in its last steps. Call this
    function with the training samples after the last step. Frozen batch norms keep their statistics.

    Args:
        model: model of Keras 3 or tf-keras, built; its batch norms are changed.
        samples: array (n, ...); a list or mapping of arrays for several inputs; or a ``tf.data.Dataset``
            of batches, with or without labels.
        batch: number of samples of a batch; a dataset has batches of its own.

    Raises:
        UsageError: the model is not a Keras model, or has no batch norm that is trained.
        InputError: there are no samples.
        UnavailableError: TensorFlow is not installed.
    """
    require_positive(batch=batch)
    layers = model._flatten_layers() if is_legacy(model) else flatten(model)
    batch_norms = find_batch_norms(layers)
    if not batch_norms:
        raise UsageError(
            f"the Keras model {model.name!r} has no batch norm that is trained", hint="set layer.trainable = True"
        )
    if not average_statistics(model, batch_norms, split_batches(samples, batch)):
        raise InputError("samples is empty, and the batch norms are unchanged", hint="pass the training samples")
    return model


@public
def callbacks(model: Any) -> list[Any]:
    """Return the callbacks that ``fit`` needs for a model of this package.

    Args:
        model: model of `prune`, `cluster` or `quantization_aware`.

    Returns:
        List for ``fit(callbacks=...)``: the step counter of TF-MOT for a pruned model of tf-keras,
            else empty.
    """
    return legacy_callbacks(model) if is_legacy(model) else []


def _copy_unconstrained(model: Any) -> Any:
    if is_constrained(model):
        raise UsageError(f"the Keras model {model.name!r} is pruned or clustered already", hint="call strip first")
    return copy_model(model)
