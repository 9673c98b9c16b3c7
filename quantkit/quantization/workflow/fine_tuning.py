"""``finetune``: train weights and ranges after the calibration; the result is never worse than the calibrated model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod
from pathlib import Path
from time import monotonic

import numpy as np

from quantkit.data import Dataset
from quantkit.errors import QuantkitError, UsageError
from quantkit.evaluation.classification_metrics import SUM_TOLERANCE
from quantkit.formats.temporary import temporary_folder
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.memory import available_memory
from quantkit.model import Model
from quantkit.ops.roles import find_roles
from quantkit.ops.shape_inference import infer_shapes
from quantkit.progress import Progress
from quantkit.quantization.calibration import choose_float_runtime
from quantkit.quantization.calibration.observation import tensor_name
from quantkit.quantization.corrections import correct_biases
from quantkit.quantization.fallback import Loss
from quantkit.quantization.finetuning.augmentation import augment, find_sides
from quantkit.quantization.finetuning.equalization import equalize_layers
from quantkit.quantization.finetuning.layerwise import tune_layers
from quantkit.quantization.finetuning.report import FineTuning, MetricGain
from quantkit.quantization.finetuning.samples import SampleStore
from quantkit.quantization.finetuning.simulation import Simulation, scale_ranges, simulate
from quantkit.quantization.finetuning.simulator import (
    LEAST_DOUBT,
    LEAST_PROBABILITY,
    LOGITS,
    PROBABILITIES,
    VALUES,
    Objective,
    OutOfMemoryError,
    Simulator,
    compute_doubts,
)
from quantkit.quantization.finetuning.training import BATCH, LEAST_BATCH, Budget, Training, TrainingResult
from quantkit.quantization.finetuning.variables import Floats, Variables
from quantkit.quantization.ranges import graph_digest
from quantkit.quantization.workflow.accuracy import open_conversion
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.cross_validation import choose_ranges
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.labeled_feeds import Feeds, LabeledFeeds
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes import open_session
from quantkit.runtimes.session import Session
from quantkit.runtimes.tensorflow_library import import_tensorflow

# Memory for the tensors of one micro-batch, and their copies: quantized values and gradients.
TRAINING_BYTES, COPIES = 1 << 30, 3
# Copies of the trained constants: variables, moments of the optimizer, gradients and their sums, best values, the
# quantized constants, the calibrated ones, TensorFlow's own.
CONSTANT_COPIES = 14
# Functions of TensorFlow and their threads.
TENSORFLOW_BYTES = 400 << 20
# Largest number of values of the features of a sample.
MAX_FEATURES = 1 << 16
# Largest number of runs that compare the file with the simulation, and that show the kind of the outputs.
COMPARED_RUNS, OBSERVED_RUNS = 64, 64
# Smallest and largest number of augmented runs.
AUGMENTED = 256, 512
# Largest part of a time for the training that the ranges and the fit of the layers take, and that of the ranges in it.
FIT, RANGES = 0.25, 0.2
# Part of the budget of a short training that compares the samples, and its smallest number of steps.
SHORT, LEAST_SHORT_STEPS = 0.125, 8


@dataclass(frozen=True)
class _TuningProblem:
    """A calibrated model with everything that its training needs.

    Attributes:
        conversion: calibrated model, whose biases are corrected, and whose layers may be equalized.
        features: edge whose values are the last output of the simulation, or None.
        simulator: its simulation, with loss and gradients.
        store: samples.
        batch: number of samples of one step.
        micro_batch: largest number of runs computed together.
    """

    conversion: Conversion
    features: Edge | None
    simulator: Simulator
    store: SampleStore
    batch: int
    micro_batch: int

    @property
    def simulation(self) -> Simulation:
        """Simulation of the calibrated model."""
        return self.simulator.simulation


def fine_tune(
    model: Model,
    conversion: Conversion,
    data: Dataset,
    reference: FloatReference,
    calibration: FloatReference,
    options: Options,
) -> tuple[Conversion, FineTuning]:
    """Train weights and ranges of a calibrated model; return it unchanged if that brings no improvement.

    Args:
        model: float model.
        conversion: calibrated model.
        data: calibration dataset, the training data.
        reference: float outputs of the samples that decide which file is better in the task's metric. With equal
            metrics, the calibrated model is kept.
        calibration: float outputs of the training data; the samples of ``reference`` if there are no others, which then
            do not decide.
        options: options of the caller.
    """
    assert options.finetune is not None, "fine_tune is called with --finetune"
    start, budget, ranges = monotonic(), str(options.finetune), None
    is_held_out = reference is not calibration
    limit = Budget.parse(options.finetune).seconds
    limit = options.seconds if limit is None else min(options.seconds, FIT * limit)
    with temporary_folder() as folder:
        try:
            # Ranges and rounding before weights: each starts from the best file so far.
            samples = [calibration, reference] if is_held_out else [calibration]
            conversion, ranges = choose_ranges(model, conversion, data, samples, options, RANGES * limit)
            # No variable holds the first problem: the training may replace it, and then its memory is free.
            problem, trained = _train(
                _prepare(model, conversion, data, reference, options, folder),
                conversion,
                options,
                limit - (monotonic() - start),
            )
        except (QuantkitError, MemoryError) as error:
            reason = (
                error.message
                if isinstance(error, QuantkitError)
                else "the fine-tuning needs more memory than is available"
            )
            report = FineTuning(budget, seconds=monotonic() - start, ranges=ranges, reason=reason)
            options.on_message(f"{report.reason}; the calibrated model is kept")
            return conversion, report
        tuned = apply_values(problem.conversion, problem.simulation, trained.simulator.variables, trained.values)
        is_better, gain = trained.after < trained.before, None
        reason = trained.stopped or ("" if is_better else "the loss on held-out samples did not fall")
        if is_better and is_held_out and len(reference):
            options.on_progress(Progress("comparing with the calibrated model", 0))
            before, after = (_measure_losses(each, reference) for each in (conversion, tuned))
            gain = MetricGain.of(before, after, list(map(len, reference.classes)), reference.source)
            is_better = gain.after < gain.before
        fidelity = _measure_fidelity(problem, trained, tuned) if is_better else None
    report = FineTuning(
        budget,
        trained.steps,
        monotonic() - start,
        ranges,
        trained.before,
        trained.after,
        gain,
        is_fine_tuned=is_better,
        reason=reason,
        frozen=trained.simulator.frozen_layers,
        fidelity=fidelity,
    )
    return (tuned if is_better else conversion), report


def _prepare(
    model: Model,
    conversion: Conversion,
    data: Dataset,
    reference: FloatReference,
    options: Options,
    folder: Path,
) -> _TuningProblem:
    features = _find_features(conversion) if reference.has_class_scores else None
    store = _collect(model, _with_outputs(conversion.graph, features), data, options, folder)
    objective = _choose_objective(reference, store, features)
    corrected, simulator = _simulate(conversion, features, objective, store)
    graph, variables = corrected.graph, simulator.variables
    fitting = TRAINING_BYTES // max(_tensor_bytes(graph), 1)
    micro_batch = int(np.clip(fitting, 1, BATCH)) if _takes_batches(simulator, store) else 1
    fixed = CONSTANT_COPIES * variables.num_bytes + TENSORFLOW_BYTES
    micro_batch = _fit_memory(_tensor_bytes(graph), fixed, micro_batch)
    megabytes = (_tensor_bytes(graph) * micro_batch + fixed) / 1e6
    options.on_message(
        f"fine-tuning {len(variables.constants)} constants and {len(variables.scales)} ranges on "
        f"{sum(store.counts)} samples (up to {megabytes:.0f} MB of memory)"
    )
    # A network with large tensors takes long for a sample: more steps of fewer samples are better.
    batch = int(np.clip(fitting, LEAST_BATCH, BATCH))
    return _TuningProblem(corrected, features, simulator, store, batch, micro_batch)


def _fit_memory(sample_bytes: int, fixed: int, micro_batch: int) -> int:
    """Return the micro-batch that fits into the available memory.

    Args:
        sample_bytes: memory of a sample.
        fixed: memory that does not depend on the micro-batch.
        micro_batch: largest micro-batch.

    Raises:
        OutOfMemoryError: a single sample does not fit.
    """
    available = available_memory()
    if fixed + sample_bytes > available:
        raise OutOfMemoryError(
            f"fine-tuning needs {(fixed + sample_bytes) / 1e6:.0f} MB of memory, and {available / 1e6:.0f} MB "
            "are available"
        )
    return int(min(micro_batch, (available - fixed) / max(sample_bytes, 1)))


def _find_features(conversion: Conversion) -> Edge | None:
    """Return the input of the last layer with weights; None if it is large, or an input of the graph."""
    graph = conversion.graph
    edge = next((pattern.input for pattern in reversed(conversion.plan.patterns) if pattern.weights), None)
    shape = None if edge is None else infer_shapes(graph).get(edge)
    if edge is None or edge.node in graph.endpoint_names or shape is None or shape.dims is None:
        return None
    return edge if prod(size or 1 for size in shape.dims) <= MAX_FEATURES else None


def _with_outputs(graph: Graph, features: Edge | None) -> Graph:
    """Return the graph with the features as its last output."""
    return graph if features is None else graph.with_endpoints(None, [*graph.outputs, features])


def _simulate(
    conversion: Conversion, features: Edge | None, objective: Objective, store: SampleStore
) -> tuple[Conversion, Simulator]:
    """Return the conversion with corrected biases, and its simulator."""
    corrected = correct(conversion)
    graph = _with_outputs(corrected.graph, features)
    simulation = _keep_float_outputs(simulate(graph, corrected.plan, corrected.ranges), store)
    return corrected, Simulator(simulation, Variables.of(simulation), objective)


def _equalize(problem: _TuningProblem, calibrated: Conversion, options: Options) -> _TuningProblem | None:
    """Return the problem of the model with equalized layers; None without such layers, or with trained ranges."""
    if calibrated.ranges.provenance.trained:
        return None
    options.on_progress(Progress("equalizing the layers", 0))
    # The scale of the features, an output, stays.
    graph = _with_outputs(calibrated.graph, problem.features)
    equalized = equalize_layers(graph, calibrated.plan, problem.store, options.runtime)
    if equalized is None:
        return None
    graph, ranges = equalized[0].with_endpoints(None, calibrated.graph.outputs), equalized[1]
    conversion = replace(calibrated, graph=graph, ranges=ranges)
    corrected, simulator = _simulate(conversion, problem.features, problem.simulator.objective, problem.store)
    return replace(problem, conversion=corrected, simulator=simulator)


def correct(conversion: Conversion) -> Conversion:
    """Return a calibrated model with corrected biases and without means, the start of a training."""
    plan, ranges = conversion.plan, conversion.ranges.merge_groups(conversion.plan.groups)
    graph = correct_biases(conversion.graph, plan, ranges) if plan.scheme.bias_correction else conversion.graph
    return replace(conversion, graph=graph, ranges=replace(ranges, means={}), float_graph=conversion.graph)


def _collect(model: Model, graph: Graph, data: Dataset, options: Options, folder: Path) -> SampleStore:
    """Run the float model on the training data."""
    store = SampleStore(folder)
    with open_session(graph, choose_float_runtime(graph, options.runtime)) as session:
        samples = LabeledFeeds.of(model, session, data, options)
        for feeds in samples:
            arrays = [feeds[info.name] for info in session.inputs]
            store.add(arrays, _run(session, graph, feeds), samples.classes, samples.batch)
            options.on_progress(Progress("running the float model", samples.position, data.size))
    return store


def _run(session: Session, graph: Graph, feeds: Feeds) -> list[Array]:
    values = {**feeds, **session.run(feeds)}  # an input may be an output of the graph, too
    return [np.asarray(values[tensor_name(graph, edge)]) for edge in graph.outputs]


def _keep_float_outputs(simulation: Simulation, store: SampleStore) -> Simulation:
    """Return the simulation with the outputs that have a distance: those of integers have no gradient.

    Raises:
        UsageError: no output is float.
    """
    outputs = simulation.graph.outputs
    outputs = tuple(outputs[index] for index in store.select_outputs(np.float32) if index < len(outputs))
    if not outputs:
        raise UsageError(
            "--finetune needs a float32 output, and all outputs are integers", hint="name one: --outputs NAMES"
        )
    return replace(simulation, graph=simulation.graph.with_endpoints(None, outputs))


def _choose_objective(reference: FloatReference, store: SampleStore, features: Edge | None) -> Objective:
    """Return the distance that suits the float outputs of the float model."""
    store.select_outputs(np.float32)
    runs = [store.read([run])[1] for run in range(min(len(store), OBSERVED_RUNS))]
    if not reference.has_class_scores:
        return Objective(VALUES, tuple(np.mean([list(map(_power, run)) for run in runs], 0).tolist()))
    scores = np.concatenate([outputs[0].reshape(len(outputs[0]), -1) for outputs in runs])
    are_probabilities = bool((scores >= 0).all() and np.allclose(scores.sum(-1), 1, atol=SUM_TOLERANCE))
    logits = np.log(np.maximum(scores, LEAST_PROBABILITY)) if are_probabilities else scores
    centered = logits - logits.mean(-1, keepdims=True)
    feature_power = None if features is None else float(np.mean([_power(outputs[-1]) for outputs in runs]))
    tf = import_tensorflow()
    doubt = max(float(np.mean(compute_doubts(tf, tf.nn.softmax(logits)))), LEAST_DOUBT)
    return Objective(PROBABILITIES if are_probabilities else LOGITS, (_power(centered),), feature_power, doubt)


def _power(array: Array) -> float:
    return max(float(np.mean(np.square(array, dtype=np.float64))), 1e-12)


def _tensor_bytes(graph: Graph) -> int:
    """Return the memory of the tensors that the training of one sample keeps."""
    shapes = infer_shapes(graph).items()
    sizes = [prod(size or 1 for size in shape.dims or ()) for edge, shape in shapes if not graph[edge.node].is_constant]
    return 4 * COPIES * sum(sizes)


def _takes_batches(simulator: Simulator, store: SampleStore) -> bool:
    """Return True if several runs can be computed together: the graph does not contain its batch size."""
    if len(store) < 2:
        return False
    try:
        feeds, expected, _ = store.read([0, 1])
        shapes = [output.shape for output in simulator.outputs(simulator.variables.zeros(), feeds)]
    except (QuantkitError, ValueError):
        return False
    return shapes == [array.shape for array in expected]


def _train(
    problem: _TuningProblem, calibrated: Conversion, options: Options, seconds: float
) -> tuple[_TuningProblem, TrainingResult]:
    """Equalize the layers, then train the variables, or fit each layer by itself.

    An interrupted training is saved next to the output.

    Args:
        problem: calibrated model.
        calibrated: the same, without corrected biases.
        options: options of the caller.
        seconds: time budget of the fit of the layers.

    Returns:
        The problem whose variables are trained, with equalized layers where that is the better start, and the result.
    """
    assert options.finetune is not None, "fine_tune is called with --finetune"
    path = options.state_file("finetune")
    facts = (problem.conversion.plan.digest, problem.store.digest, str(options.finetune), str(options.seed))
    training = Training(
        problem.simulator,
        problem.store,
        Budget.parse(options.finetune),
        seed=options.seed,
        batch=problem.batch,
        micro_batch=problem.micro_batch,
        path=path,
        on_progress=options.on_progress,
    )
    before = training.evaluate_start()
    problem, training = _choose_start(problem, training, calibrated, options)
    if training.budget.seconds is not None:
        training = replace(training, budget=training.budget.part(1 - FIT))
    trained = _tune_layers(training, problem, options, seconds)
    if training.budget.is_layerwise:
        return problem, replace(trained, before=before)
    key = blake2b(" ".join((*facts, graph_digest(trained.simulator.simulation.source))).encode(), digest_size=8)
    training = replace(training, simulator=trained.simulator, key=key.hexdigest())
    training = _choose_samples(training, problem, options)
    if training.saved_state() is not None:
        options.on_message(f"resuming from the fine-tuning state in {path}")
    try:
        return problem, replace(training.run(), before=before)
    except KeyboardInterrupt:
        if path is not None and path.exists():
            options.on_message(f"fine-tuning state saved to {path}; run the same command to resume")
        raise


def _choose_start(
    problem: _TuningProblem, training: Training, calibrated: Conversion, options: Options
) -> tuple[_TuningProblem, Training]:
    """Return the problem and its training with equalized layers, if the loss on held-out samples is smaller."""
    equalized = _equalize(problem, calibrated, options)
    if equalized is not None:
        alternative = replace(training, simulator=equalized.simulator)
        if alternative.evaluate_start() < training.evaluate_start():
            return equalized, alternative
    return problem, training


def _choose_samples(training: Training, problem: _TuningProblem, options: Options) -> Training:
    """Return the training, with augmented samples if the held-out loss of a short training is smaller with them.

    The short trainings are a part of the budget. The training continues from the better one.
    """
    budget = training.budget
    feeds, _, _ = problem.store.read(training.training_runs[:1])
    sides = find_sides(feeds[0].shape) if len(feeds) == 1 and feeds[0].dtype == np.float32 else None
    if sides is None or (budget.steps is not None and budget.steps * SHORT < LEAST_SHORT_STEPS):
        return training
    runs = _augment(problem, training.training_runs, sides, options)
    augmented = replace(training, augmented_runs=runs, key=f"{training.key} augmented")
    rest = budget.part(1 - 2 * SHORT)
    for each in (training, augmented):
        if each.saved_state() is not None:
            return replace(each, budget=rest)
    first = replace(training, budget=budget.part(SHORT), path=None).run()
    other = replace(augmented, budget=Budget(steps=first.steps), path=None).run()
    best, result = (augmented, other) if other.after < first.after else (training, first)
    return replace(best, budget=rest, start=result.values, steps_before=first.steps + other.steps)


def _augment(problem: _TuningProblem, runs: Sequence[int], sides: tuple[int, int], options: Options) -> range:
    """Add augmented samples of some runs to the store, with their float outputs; return the new runs."""
    conversion, store = problem.conversion, problem.store
    assert conversion.float_graph is not None, "the conversion was prepared"
    graph = _with_outputs(conversion.float_graph, problem.features)
    random, first = np.random.default_rng(options.seed), len(store)
    count = int(np.clip(len(runs), *AUGMENTED))
    with open_session(graph, choose_float_runtime(graph, options.runtime)) as session:
        for number in range(count):
            run = runs[number % len(runs)]
            images, others = (store.read([each])[0][0] for each in (run, random.choice(runs)))
            images = augment(images, others, sides, random)
            outputs = _run(session, graph, {session.inputs[0].name: images})
            store.add([images], outputs, [None] * store.counts[run], len(images))
            options.on_progress(Progress("augmenting the samples", number + 1, count))
    return range(first, len(store))


def _tune_layers(training: Training, problem: _TuningProblem, options: Options, seconds: float) -> TrainingResult:
    conversion = problem.conversion
    float_graph, graph, plan = conversion.float_graph, conversion.graph, conversion.plan
    assert float_graph is not None, "the conversion was prepared"
    roles = find_roles(graph)
    biases: dict[str, Array] = {}
    for pattern in plan.patterns:
        name = roles.bias_constant(graph, graph[pattern.layer], pattern.bias) if pattern.weights else ""
        if name:
            float_name = roles.bias_constant(float_graph, float_graph[pattern.layer], pattern.bias)
            value = float_graph[float_name].value.array if float_name else np.zeros(1, np.float32)
            biases[name] = np.broadcast_to(value.reshape(-1), (graph[name].value.num_elements,))
    simulation = simulate(float_graph, plan, conversion.ranges)
    return tune_layers(training, simulation, biases, seconds, options.on_progress)


def apply_values(
    conversion: Conversion, simulation: Simulation, variables: Variables, values: Sequence[Floats]
) -> Conversion:
    """Return a calibrated model with trained constants and ranges.

    Args:
        conversion: calibrated model of the simulation, after `correct`.
        simulation: its simulation.
        variables: variables of the simulation.
        values: trained value of each variable.
    """
    graph = conversion.graph.with_values(dict(variables.tensors(values)))
    ranges = conversion.ranges
    tuned = scale_ranges(conversion.plan, simulation.edges, variables.tuned_scales(values))
    provenance = replace(ranges.provenance, graph=graph_digest(graph))
    return replace(
        conversion,
        graph=graph,
        ranges=replace(ranges, ranges={**ranges.ranges, **tuned}, provenance=provenance, extremes={}),
    )


def _measure_losses(conversion: Conversion, reference: FloatReference) -> list[Loss]:
    """Return the loss of the file of a conversion in each run."""
    with open_conversion(conversion) as session:
        return reference.losses(session)


def _measure_fidelity(problem: _TuningProblem, trained: TrainingResult, tuned: Conversion) -> float:
    """Return the agreement of the quantized model with the simulation of its runtime.

    For outputs other than class scores, it is their correlation.
    """
    simulated, computed = [], []
    with open_conversion(tuned) as session:
        simulation = simulate(tuned.graph, tuned.plan, tuned.ranges, session.runtime.name)
        simulator = trained.simulator.with_simulation(_keep_float_outputs(simulation, problem.store))
        zeros = simulator.variables.zeros()
        for run in range(min(len(problem.store), COMPARED_RUNS)):
            feeds, _, _ = problem.store.read([run])
            simulated.append(simulator.outputs(zeros, feeds)[0].reshape(len(feeds[0]), -1))
            feeds_by_name = {info.name: array for info, array in zip(session.inputs, feeds, strict=True)}
            outputs = [values for values in session.run(feeds_by_name).values() if values.dtype == np.float32]
            computed.append(outputs[0].reshape(simulated[-1].shape))
    first, second = np.concatenate(simulated), np.concatenate(computed)
    if problem.simulator.objective.kind == VALUES:
        return float(np.corrcoef(first.reshape(-1), second.reshape(-1))[0, 1])
    return float(np.mean(first.argmax(-1) == second.argmax(-1)))
