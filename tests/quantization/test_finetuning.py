"""Fine-tuning after calibration: it improves a coarse model, and keeps the better model on errors."""

import re
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.distribution import install_command
from quantkit.errors import QuantkitError, UnavailableError, UsageError
from quantkit.formats.onnx import decode
from quantkit.formats.state_files import write_state
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.memory import available_memory
from quantkit.quantization.fallback import ERROR, Loss
from quantkit.quantization.finetuning import augmentation
from quantkit.quantization.finetuning.augmentation import augment
from quantkit.quantization.finetuning.layerwise import _Moments, tune_layers
from quantkit.quantization.finetuning.report import MetricGain
from quantkit.quantization.finetuning.samples import SampleStore
from quantkit.quantization.finetuning.simulation import Simulation, simulate
from quantkit.quantization.finetuning.simulator import (
    LOGITS,
    VALUES,
    MicroBatch,
    Objective,
    OutOfMemoryError,
    Simulator,
    compute_doubts,
)
from quantkit.quantization.finetuning.sums import QuantizedSum
from quantkit.quantization.finetuning.training import BACK_OFF, Budget, Training, _State
from quantkit.quantization.finetuning.variables import Variables
from quantkit.quantization.targets import eightbit
from quantkit.quantization.targets.onnx.fused_sums import find_unrounded
from quantkit.quantization.workflow import fine_tuning
from quantkit.quantization.workflow import options as options_module
from quantkit.quantization.workflow.calibration_run import find_datasets
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes import open_session
from quantkit.runtimes.availability import Availability
from quantkit.runtimes.tensorflow_library import import_tensorflow

onnx = pytest.importorskip("onnx")

pytestmark = pytest.mark.engine
TARGETS = ("onnx", "tensorflow", "eightbit", "litert")
FLOAT = {"T": DType.FLOAT}
RANDOM = np.random.default_rng(0)
IMAGES = (RANDOM.normal(RANDOM.normal(0, 1, (100, 1, 1, 3)), 1, (100, 6, 6, 3))).astype(np.float32)
# All channels of a layer share one scale of 7 bits.
COARSE = {"target": "onnx", "weights": "qint8 symmetric reduce_range"}
# The ranges of an observer of the caller stay. Their choice by cross-validation, which takes a third of the time of a
# fine-tuning of `network`, has tests of its own.
OPTIONS: dict[str, Any] = {"runs": 0, "scheme": COARSE, "observer": "mean_squared_error"}

# Weights of each layer of `network`.
# Weights by the name of the layer in the ONNX graph.
LAYERS = {"bias": "w1/oihw", "bias2": "w2/depthwise", "y": "w3"}


def network() -> Graph:
    """Return convolution, depthwise convolution and product; the channels of the weights differ much in size."""
    random = np.random.default_rng(1)

    def weights(*shape: int) -> Array:
        sizes = np.exp(random.uniform(-1.5, 1.5, shape[-1] if shape[-1] > 1 else (shape[-2], 1)))
        values: Array = (random.normal(0, 1, shape) * sizes / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)
        return values

    windows: dict[str, Any] = {**FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME", "data_format": b"NHWC"}
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 6, 6, 3))}),
        constant("w1", weights(3, 3, 3, 8)),
        constant("b1", random.normal(0, 0.3, 8).astype(np.float32)),
        Node("conv", "Conv2D", ("x", "w1"), attrs=windows),
        Node("bias", "BiasAdd", ("conv", "b1"), attrs=FLOAT),
        Node("relu", "Relu", ("bias",), attrs=FLOAT),
        constant("w2", weights(3, 3, 8, 1)),
        constant("b2", random.normal(0, 0.3, 8).astype(np.float32)),
        Node("depthwise", "DepthwiseConv2dNative", ("relu", "w2"), attrs={**windows, "strides": (1, 2, 2, 1)}),
        Node("bias2", "BiasAdd", ("depthwise", "b2"), attrs=FLOAT),
        Node("relu2", "Relu", ("bias2",), attrs=FLOAT),
        constant("shape", np.int32([-1, 72])),
        Node("flat", "Reshape", ("relu2", "shape"), attrs={**FLOAT, "Tshape": DType.INT32}),
        constant("w3", weights(72, 5)),
        constant("b3", random.normal(0, 0.3, 5).astype(np.float32)),
        Node("product", "MatMul", ("flat", "w3"), attrs=FLOAT),
        Node("y", "BiasAdd", ("product", "b3"), attrs=FLOAT),
    )
    return Graph.of(nodes, ["x"], ["y"])


def build_simulation(graph: Graph, target: str = "onnx", **changes: Any) -> tuple[Simulation, qk.QuantizationResult]:
    """Return the simulation of a calibrated model, and the model."""
    result = qk.quantize(graph, IMAGES, runs=0, scheme={"target": target, "bias_correction": False, **changes})
    conversion = result.conversion
    ranges = conversion.ranges.merge_groups(conversion.plan.groups)
    return simulate(conversion.graph, conversion.plan, ranges), result


@cache
def build_network_simulation() -> tuple[Simulation, Array]:
    """Return the simulation of `network`, and its float outputs."""
    simulation, result = build_simulation(network(), weights="qint8 symmetric reduce_range")
    with open_session(result.conversion.graph, "reference") as session:
        return simulation, np.stack([session.run({"x": image[None]})["y"] for image in IMAGES])


@cache
def build_simulator() -> Simulator:
    """Return a simulator of `network`; TensorFlow traces its functions once."""
    simulation, _ = build_network_simulation()
    return Simulator(simulation, Variables.of(simulation), Objective(VALUES, (1.0,)))


@cache
def tune_layerwise() -> qk.QuantizationResult:
    """Return `network` after the layer-wise fit."""
    return qk.quantize(network(), IMAGES, runs=0, scheme=COARSE, finetune="layerwise")


def training(folder: Path, **changes: Any) -> Training:
    """Return a training of 3 steps towards the float outputs of `network`."""
    _, outputs = build_network_simulation()
    store = SampleStore(folder)
    for image, output in zip(IMAGES, outputs, strict=True):
        store.add([image[None]], [output], [None], 1)
    return Training(**{"simulator": build_simulator(), "store": store, "budget": Budget(steps=3), **changes})


@pytest.mark.parametrize("target", TARGETS)
def test_simulation_and_file_have_the_same_outputs(target: str, tmp_path: Path) -> None:
    simulation, result = build_simulation(network(), target)
    simulator = Simulator(simulation, Variables.of(simulation), Objective(VALUES, (1.0,)))
    (outputs,) = simulator.outputs(simulator.variables.zeros(), [IMAGES])
    path = result.save(tmp_path / f"model{result.conversion.target.suffixes[0]}")
    runtime = {"onnx": "onnxruntime", "litert": "litert"}.get(target, "tensorflow")
    with open_session(path, runtime) as session:
        runs = (session.run({session.inputs[0].name: image[None]}) for image in IMAGES)
        computed = np.concatenate([next(iter(outputs.values())) for outputs in runs])
    with open_session(result.conversion.graph, "reference") as session:
        floats = np.concatenate([session.run({"x": image[None]})["y"] for image in IMAGES])
    error, distance = (np.sqrt(np.mean((values - computed) ** 2)) for values in (outputs, floats))
    assert distance > 0
    assert error < 0.3 * distance, "kernels of integers and of floats round differently at ties only"
    # The classic ops have no depthwise convolution.
    assert len(simulation.trainables) == (4 if target == "eightbit" else 6)


def test_an_onnx_graph_is_simulated_in_its_own_layout(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    qk.load(network()).save(path)
    simulation, result = build_simulation(qk.load(path).graph)
    assert result.conversion.graph.dialect == "onnx"
    assert len(simulation.trainables) == 6
    simulator = Simulator(simulation, Variables.of(simulation), Objective(VALUES, (1.0,)))
    (outputs,) = simulator.outputs(simulator.variables.zeros(), [IMAGES])
    with open_session(result.model.graph, "onnxruntime") as session:
        computed = np.concatenate([session.run({"x": image[None]})["y"] for image in IMAGES])
    np.testing.assert_allclose(outputs, computed, atol=1e-4)


@pytest.mark.parametrize("limit", [6.826969, 2.267183, 0.731])
def test_biases_of_eightbit_have_no_offset(limit: float) -> None:
    tf = import_tensorflow()
    conversion_limit = eightbit.find_exact_limit(limit)
    assert limit <= np.float32(conversion_limit) < 1.0005 * limit

    def add_zero(high: float) -> float:
        """Return the error of a sum of two zeros, as a fraction of the largest value."""
        zeros = tf.bitcast(tf.zeros([4], tf.uint8), tf.quint8)
        limits = {"min_input": 0.0, "max_input": high, "min_bias": 0.0, "max_bias": high / 2}
        sums, _, last = tf.raw_ops.QuantizedBiasAdd(input=zeros[None], bias=zeros, out_type=tf.qint32, **limits)
        return float(np.abs(tf.bitcast(sums, tf.int32).numpy()).max() * float(last) / 2**31 / high)

    assert add_zero(conversion_limit) == 0
    if limit == 6.826969:
        assert add_zero(limit) == pytest.approx(1 / 64, rel=0.01), "the limit needs no change in this TensorFlow"


def residual_network() -> Graph:
    """Return two convolutions with biases, whose outputs are added."""
    windows = {**FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME", "data_format": b"NHWC"}
    random = np.random.default_rng(3)
    weights = [constant(f"w{index}", random.normal(0, 0.3, (3, 3, 3, 3)).astype(np.float32)) for index in (1, 2)]
    biases = [constant(f"b{index}", random.normal(0, 0.5, 3).astype(np.float32)) for index in (1, 2)]
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 6, 6, 3))}),
        *weights,
        *biases,
        Node("first", "Conv2D", ("x", "w1"), attrs=windows),
        Node("bias1", "BiasAdd", ("first", "b1"), attrs=FLOAT),
        Node("relu", "Relu", ("bias1",), attrs=FLOAT),
        Node("second", "Conv2D", ("relu", "w2"), attrs=windows),
        Node("bias2", "BiasAdd", ("second", "b2"), attrs=FLOAT),
        Node("y", "AddV2", ("bias2", "relu"), attrs=FLOAT),
    )
    return Graph.of(nodes, ["x"], ["y"])


def test_classic_sums_are_simulated_with_the_steps_of_their_kernels(tmp_path: Path) -> None:
    simulation, result = build_simulation(residual_network(), "eightbit")
    assert {quantized_sum.node for quantized_sum in simulation.sums} == {"bias1", "bias2", "y"}
    path = result.save(tmp_path / "model.pb")
    with open_session(path, "tensorflow") as session:
        computed = np.concatenate([session.run({"x": image[None]})["y"] for image in IMAGES])

    def count_differences(simulation: Simulation) -> float:
        """Return the fraction of outputs that differ from those of the file."""
        simulator = Simulator(simulation, Variables.of(simulation), Objective(VALUES, (1.0,)))
        (outputs,) = simulator.outputs(simulator.variables.zeros(), [IMAGES])
        return float(np.mean(np.abs(outputs - computed) > 1e-4))

    nodes = dict(simulation.graph.nodes)
    for added in simulation.sums:
        nodes[added.node] = nodes[added.node].with_(inputs=tuple(unrounded_operands(simulation, added)))
    exact = simulation.graph.with_nodes(nodes.values())
    assert count_differences(simulation) < 0.2 * count_differences(replace(simulation, graph=exact, sums=()))


def test_the_layerwise_fit_has_float_outputs_of_classic_sums() -> None:
    graph = residual_network()
    simulation, _ = build_simulation(graph, "eightbit")
    simulator = Simulator(simulation, Variables.of(simulation), Objective(VALUES, (1.0,)))
    with open_session(graph, "reference") as session:
        expected = np.concatenate([session.run({"x": image[None]})["y"] for image in IMAGES])
    (outputs,) = simulator.float_outputs([IMAGES])
    np.testing.assert_allclose(outputs, expected, atol=1e-4)
    tuning = qk.quantize(
        graph, IMAGES, runs=0, observer=OPTIONS["observer"], target="eightbit", finetune="layerwise"
    ).report.fine_tuning
    assert tuning is not None
    assert tuning.steps == 2, tuning.reason


def unrounded_operands(simulation: Simulation, added: QuantizedSum) -> list[Edge]:
    """Return the operands of a sum before the conversion to its steps."""
    return [
        Edge(operand) if isinstance(operand, str) else Edge(simulation.edge_of[operand].node)
        for operand in added.operands
    ]


def test_openvino_adds_residuals_to_convolutions_that_are_not_rounded(tmp_path: Path) -> None:
    windows = {**FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME", "data_format": b"NHWC"}
    random = np.random.default_rng(3)
    weights = [constant(f"w{index}", random.normal(0, 0.3, (3, 3, 3, 3)).astype(np.float32)) for index in (1, 2, 3)]
    graph = Graph.of(
        (
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 6, 6, 3))}),
            *weights,
            Node("first", "Conv2D", ("x", "w1"), attrs=windows),
            Node("second", "Conv2D", ("x", "w2"), attrs=windows),
            Node("sum", "AddV2", ("first", "second"), attrs=FLOAT),
            Node("relu", "Relu", ("sum",), attrs=FLOAT),
            Node("y", "Conv2D", ("relu", "w3"), attrs=windows),
        ),
        ["x"],
        ["y"],
    )
    result = qk.quantize(graph, IMAGES, runs=0, scheme={"target": "onnx", "bias_correction": False})
    conversion = result.conversion
    unrounded = find_unrounded(conversion.graph, conversion.plan, "openvino")
    assert unrounded == {Edge("first")}
    assert not find_unrounded(conversion.graph, conversion.plan, "onnxruntime")
    path = result.save(tmp_path / "model.onnx")
    errors = {}
    for runtime in ("openvino", "onnxruntime"):
        with open_session(path, runtime) as session:
            computed = np.concatenate([session.run({"x": image[None]})["y"] for image in IMAGES])
        ranges = conversion.ranges.merge_groups(conversion.plan.groups)
        for simulated in ("openvino", "onnxruntime"):
            simulation = simulate(conversion.graph, conversion.plan, ranges, simulated)
            simulator = Simulator(simulation, Variables.of(simulation), Objective(VALUES, (1.0,)))
            (outputs,) = simulator.outputs(simulator.variables.zeros(), [IMAGES])
            errors[runtime, simulated] = float(np.mean((outputs - computed) ** 2))
    assert errors["openvino", "openvino"] < 0.1 * errors["openvino", "onnxruntime"]
    assert errors["onnxruntime", "onnxruntime"] < 0.1 * errors["onnxruntime", "openvino"]


@pytest.mark.parametrize("length", ["8", "layerwise"])
def test_fine_tuning_recovers_a_coarse_model(length: str) -> None:
    result = tune_layerwise() if length == "layerwise" else qk.quantize(network(), IMAGES, **OPTIONS, finetune=length)
    tuning = result.report.fine_tuning
    assert tuning is not None
    assert tuning.before is not None
    assert tuning.after is not None
    assert tuning.is_fine_tuned, tuning.reason
    assert tuning.after < 0.95 * tuning.before
    assert tuning.gain is not None
    assert tuning.gain.after < tuning.gain.before
    assert tuning.gain.source == "25 further images of arrays"
    assert tuning.fidelity is not None
    assert tuning.fidelity > 0.995
    assert result.conversion.ranges.provenance.graph
    assert f"s: {tuning.gain}" in str(result)
    assert result.to_json()["fine_tuning"]["is_fine_tuned"]


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (training(tmp_path / name).run() for name in "ab")
    for first_value, other in zip(first.values, second.values, strict=True):
        np.testing.assert_array_equal(first_value, other)


def test_an_interrupted_training_resumes(tmp_path: Path) -> None:
    path = tmp_path / "state"

    def interrupt(progress: Any) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training(tmp_path, path=path, key="k", on_progress=interrupt).run()
    assert path.exists()
    (tmp_path / "again").mkdir()
    resumed = training(tmp_path / "again", path=path, key="k")
    steps: list[int] = []
    resumed.on_progress = lambda progress: steps.append(progress.done)
    trained = resumed.run()
    assert min(steps) == 3, "the finished steps do not run again"
    assert not path.exists()
    (tmp_path / "whole").mkdir()
    whole = training(tmp_path / "whole").run()
    for first_value, other in zip(whole.values, trained.values, strict=True):
        np.testing.assert_allclose(first_value, other, atol=1e-6)


def test_a_state_of_another_training_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, {"key": np.array("other")})
    assert training(tmp_path, path=path, key="k").saved_state() is None
    write_state(path, {"key": np.array("k"), "step": np.array(3)})
    assert training(tmp_path, path=path, key="k").saved_state() is None, "an older version wrote fewer values"
    path.write_bytes(b"damaged")
    assert training(tmp_path, path=path, key="k").saved_state() is None


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path)
    zeros = run.simulator.variables.zeros()
    monkeypatch.setattr(run.simulator, "gradients", lambda *arguments: (float("nan"), zeros))
    trained = run.run()
    assert trained.stopped == "the loss is not finite after step 1"
    assert all((value == 0).all() for value in trained.values), "the calibrated model is kept"


def test_a_loss_that_doubles_returns_to_the_best_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path)
    state = _State.of(run.simulator.variables.zeros())
    state.best_loss = 1.0
    state.values[0] += 1
    state.means[0] += 1
    for loss, rate, value in ((1.5, 1.0, 1.0), (2.5, 0.25, 0.0), (2.5, 0.0625, 0.0)):
        monkeypatch.setattr(run, "evaluate", lambda values, loss=loss: loss)
        run._select(state, 0.1)
        assert state.rate == rate
        assert (state.values[0] == value).all()
        assert (state.means[0] == value).all()


def test_moments_restart_after_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path)
    state = _State.of(run.simulator.variables.zeros())
    gradients = [np.ones_like(value) for value in state.values]
    monkeypatch.setattr(run.simulator, "gradients", lambda *arguments: (1.0, gradients))

    def change() -> Array:
        before = state.values[0].copy()
        run._step(state, 0.5)
        return before - state.values[0]

    first = change()
    np.testing.assert_allclose(change(), first, rtol=1e-4, err_msg="Adam's steps of a constant gradient are equal")
    state.back_off()
    for _ in range(2):
        np.testing.assert_allclose(change(), BACK_OFF * first, rtol=1e-4)


def test_micro_batches_shrink_until_they_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path, micro_batch=16)
    compute, sizes = run.simulator._batch_gradients, []

    def gradients(tensors: Any, batch: MicroBatch) -> Any:
        sizes.append(len(batch.feeds[0]))
        if sizes[-1] > limit:
            raise OutOfMemoryError("a training step needs more memory than is available")
        return compute(tensors, batch)

    limit = 4
    monkeypatch.setattr(run.simulator, "_batch_gradients", gradients)
    assert not run.run().stopped
    assert sizes[:4] == [16, 8, 4, 4]
    limit = 0
    assert "more memory" in run.run().stopped


def test_micro_batches_give_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    whole, parts = training(tmp_path, micro_batch=8), training(tmp_path, micro_batch=3)
    values = whole.simulator.variables.zeros()
    (loss, gradients), (mean_loss, sums) = (run._batch_gradients(values, list(range(8))) for run in (whole, parts))
    assert mean_loss == pytest.approx(loss, rel=1e-5)
    for gradient, sum_ in zip(gradients, sums, strict=True):
        np.testing.assert_allclose(sum_, gradient, rtol=1e-4, atol=1e-6)


def test_available_memory_is_the_smallest_limit(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == inf
    files = {
        "proc/meminfo": "MemTotal:  900 kB\nMemAvailable:  500 kB\n",
        "proc/self/limits": "Max address space         614400               unlimited            bytes\n",
        "proc/self/status": "VmPeak: 9 kB\nVmSize:  200 kB\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "1024\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory(tmp_path) == 400 * 1024
    (tmp_path / "proc/self/limits").write_text("Max address space  unlimited  unlimited  bytes\n")
    assert available_memory(tmp_path) == 500 * 1024
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("5120\n")
    assert available_memory(tmp_path) == 4096
    (tmp_path / "sys/fs/cgroup/memory.stat").write_text("file 700\nactive_file 100\ninactive_file 512\n")
    assert available_memory(tmp_path) == 4096 + 512, "cached files are freed"


def test_a_training_that_does_not_fit_into_memory_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_tuning, "available_memory", lambda: 5e6)
    result = qk.quantize(network(), IMAGES[:20], **OPTIONS, finetune=2)
    assert re.search(r"fine-tuning needs \d+ MB of memory, and 5 MB are available; the calibrated model", str(result))
    assert fine_tuning._fit_memory(1000, 4_000_000, 32) == 32
    assert fine_tuning._fit_memory(300_000, 4_000_000, 32) == 3


def test_a_gradient_that_is_not_defined_is_cut(tmp_path: Path) -> None:
    simulation, _ = build_network_simulation()
    simulator = Simulator(simulation, Variables.of(simulation), Objective(VALUES, (1.0,)))
    run = training(tmp_path, simulator=simulator, budget=Budget(steps=1))
    run.simulator._freeze("No gradient defined for operation 'relu' (op type: Relu).")
    run.run()
    assert run.simulator.frozen_ops == {"Relu"}
    assert run.simulator.frozen_layers == ("bias", "bias2")
    with pytest.raises(QuantkitError, match="no gradient"):
        run.simulator._freeze("No gradient defined for operation 'z' (op type: Relu).")


def test_fine_tuning_without_tensorflow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Availability.no("TensorFlow is not installed: pip install")
    monkeypatch.setattr(options_module, "tensorflow_available", lambda: missing)
    with pytest.raises(UnavailableError, match="TensorFlow, which is not installed") as caught:
        qk.quantize(network(), IMAGES, finetune=1)
    assert caught.value.hint == install_command("training")


@pytest.mark.parametrize("length", ["0", "-3", "soon", "", 0, "1.5"])
def test_lengths_that_are_not_valid(length: Any) -> None:
    with pytest.raises(UsageError):
        qk.quantize(network(), IMAGES, finetune=length)


def test_fine_tuning_needs_data_and_activations() -> None:
    with pytest.raises(UsageError, match="weights-only"):
        qk.quantize(network(), finetune=1, weights_only=True)


def test_a_model_with_equal_metrics_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = [Loss(0, 0.01)] * 23
    losses = iter(([Loss(0, 0.01), Loss(1, 0.02), *equal], [Loss(1, 0.01), Loss(0, 0.01), *equal]))
    monkeypatch.setattr(fine_tuning, "_measure_losses", lambda *arguments: next(losses))
    result = qk.quantize(network(), IMAGES, **OPTIONS, finetune="layerwise")
    assert result.report.fine_tuning is not None
    assert not result.report.fine_tuning.is_fine_tuned
    weights = result.conversion.graph["w1/oihw"].value.array
    np.testing.assert_array_equal(weights, network()["w1"].value.array.transpose(3, 2, 0, 1))
    loss = "disagreement with the float model 4.0 % -> 4.0 %, gain 0.0 % (95 % CI -11.9 to 11.9)"
    text = f"fine-tuning brings no gain: {loss} on 25 further images of arrays; the calibrated model is kept"
    assert text in str(result)


@pytest.mark.parametrize(("limit", "sizes"), [(30, (30, 30)), (60, (60, 40)), (100, (75, 25)), (90, (75, 25))])
def test_other_samples_than_those_of_the_training_judge_it(limit: int, sizes: tuple[int, int]) -> None:
    datasets = find_datasets(qk.load(network()), Options(network(), IMAGES, finetune=1, limit=limit))
    rows = [[sample.name for sample in dataset.read()] for dataset in datasets if dataset is not None]
    assert tuple(map(len, rows)) == sizes
    assert not {*rows[0]} & {*rows[1]}


def test_samples_of_the_training_do_not_judge_it() -> None:
    result = qk.quantize(network(), lambda: iter(IMAGES[:8]), **OPTIONS, limit=8, finetune="layerwise")
    assert result.report.fine_tuning is not None
    assert result.report.fine_tuning.is_fine_tuned
    assert result.report.fine_tuning.gain is None


def test_the_gain_has_the_interval_of_the_differences() -> None:
    before, after = ([Loss(drop, 0.0, ERROR) for drop in drops] for drops in ((0.3, 0.5, 0.7), (0.1, 0.2, 0.6)))
    gain = MetricGain.of(before, after, [1, 1, 1], "3 samples")
    assert str(gain) == "error of the outputs 0.5000 -> 0.3000, gain 0.2000 (95 % CI -0.0484 to 0.4484) on 3 samples"
    assert MetricGain.of(before[:1], after[:1], [1], "").low is None
    weighted = MetricGain.of(before, after, [8, 8, 1], "17 samples")
    assert weighted.before == pytest.approx((8 * 0.3 + 8 * 0.5 + 0.7) / 17)
    assert weighted.after == pytest.approx((8 * 0.1 + 8 * 0.2 + 0.6) / 17)
    assert weighted.low is not None
    assert weighted.low < (8 * 0.2 + 8 * 0.3 + 0.1) / 17


def test_the_layerwise_fit_ends_with_the_time_budget(tmp_path: Path) -> None:
    run = training(tmp_path, clock=iter(range(0, 1000, 10)).__next__)
    trained = tune_layers(run, run.simulator.simulation, {}, seconds=35)
    assert trained.stopped == "time budget exhausted after 2 of 3 layers"
    assert trained.after < trained.before


def test_the_layerwise_fit_has_layers_of_sequences() -> None:
    random = np.random.default_rng(2)
    sizes = np.exp(random.uniform(-2, 1, 12))
    weights = [random.normal(0, 0.3, shape) * size for shape, size in (((8, 12), sizes), ((12, 6), 1))]
    helper, tensor_type = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["first"]),
            helper.make_node("Relu", ["first"], ["relu"]),
            helper.make_node("MatMul", ["relu", "w2"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", tensor_type, ["n", 10, 8])],
        [helper.make_tensor_value_info("y", tensor_type, ["n", 10, 6])],
        [
            onnx.numpy_helper.from_array(np.float32(array), name)
            for name, array in zip(("w1", "w2"), weights, strict=True)
        ],
    )
    model = decode(helper.make_model(graph).SerializeToString())
    sequences = random.normal(0, 1, (80, 10, 8)).astype(np.float32)
    result = qk.quantize(model, sequences, **OPTIONS, finetune="layerwise")
    tuning = result.report.fine_tuning
    assert tuning is not None
    assert tuning.steps == 2
    assert tuning.is_fine_tuned, tuning.reason


def test_integer_outputs_have_no_part_in_the_loss() -> None:
    axis = constant("axis", np.int32(1))
    classes = Node("classes", "ArgMax", ("y", "axis"), attrs={**FLOAT, "Tidx": DType.INT32, "output_type": DType.INT64})
    graph = Graph.of([*network().nodes.values(), axis, classes], ["x"], ["y", "classes"])
    result = qk.quantize(graph, IMAGES, **OPTIONS, finetune=2)
    assert result.report.fine_tuning is not None
    assert result.report.fine_tuning.steps == 2


def test_doubtful_samples_have_larger_weights() -> None:
    tf = import_tensorflow()
    scores = np.log(np.float32([[0.5, 0.4, 0.1], [0.9, 0.05, 0.05]]))
    np.testing.assert_allclose(compute_doubts(tf, np.exp(scores)), [0.9, 0.15], rtol=1e-5)

    def measure(sample: int) -> float:
        """Return the loss of equal probabilities for one sample, as a fraction of that without weights."""
        losses = []
        for doubt in (0.5, 1e9):
            objective = Objective(LOGITS, (1e9,), doubt=doubt)
            losses.append(objective.measure([np.zeros((1, 3), np.float32)], [scores[sample : sample + 1]]))
        return losses[0] / losses[1]

    np.testing.assert_allclose([measure(0), measure(1)], [1 + 0.9 / 0.5, 1 + 0.15 / 0.5], rtol=1e-4)


def test_augmented_images_are_parts_and_mixtures_of_images() -> None:
    random = np.random.default_rng(0)
    images, others = (random.uniform(low, low + 1, (1, 20, 30, 3)).astype(np.float32) for low in (0, 2))
    results = [augment(images, others, (1, 2), random) for _ in range(20)]
    assert {result.shape for result in results} == {images.shape}
    assert all(result.min() >= images.min() and result.max() <= others.max() for result in results)
    assert 2 < sum(result.max() <= 1 for result in results) < 18, "half of them are mixed"
    rows = np.broadcast_to(np.arange(30, dtype=np.float32)[:, None], (1, 20, 30, 3))
    slopes = np.array([np.diff(augment(rows, rows[:, :1], (1, 2), random)[0, 10, 5:25, 0]) for _ in range(20)])
    np.testing.assert_allclose(slopes, np.broadcast_to(slopes[:, :1], slopes.shape), rtol=1e-3)
    assert {*np.sign(slopes[:, 0])} == {-1, 1}, "half of them are flipped"
    assert (np.abs(slopes) >= 0.6).all()
    assert (np.abs(slopes) <= 1).all()


def test_augmented_samples_are_compared_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmentation, "LEAST_SIDE", 6)
    monkeypatch.setattr(fine_tuning, "LEAST_SHORT_STEPS", 1)
    monkeypatch.setattr(fine_tuning, "AUGMENTED", (8, 8))
    steps = []
    result = qk.quantize(network(), IMAGES, **OPTIONS, finetune=8, on_progress=lambda progress: steps.append(progress))
    assert [progress.done for progress in steps if progress.stage == "augmenting the samples"] == [*range(1, 9)]
    totals = [progress.total for progress in steps if progress.stage == "fine-tuning" and "loss" in progress.step]
    assert totals == [1, 1, *[6] * 6]
    assert result.report.fine_tuning is not None
    assert result.report.fine_tuning.steps == 8


def test_float_fallbacks_get_their_weights_back() -> None:
    conversion = tune_layerwise().conversion
    assert conversion.float_graph is not None

    def weights(graph: Graph) -> dict[str, Array]:
        return {layer: graph[name].value.array for layer, name in LAYERS.items()}

    floats, tuned = weights(conversion.float_graph), weights(conversion.graph)
    excluded = [layer for layer in LAYERS if not np.array_equal(floats[layer], tuned[layer])][:1]
    assert excluded, "a layer is fine-tuned"
    restored = weights(conversion.exclude(frozenset(excluded)).graph)
    for layer in LAYERS:
        np.testing.assert_array_equal(restored[layer], (floats if layer in excluded else tuned)[layer])


def test_max_drop_follows_fine_tuning() -> None:
    result = qk.quantize(network(), IMAGES, **OPTIONS, limit=30, finetune="layerwise", max_drop=0.02)
    assert result.report.fallback is not None
    assert result.report.fine_tuning is not None
    assert result.report.fallback.is_reached


def test_an_op_without_gradient_keeps_the_layers_before_it() -> None:
    graph = network()
    size = constant("size", np.int32([6, 6]))
    resized = Node("resized", "ResizeArea", ("relu", "size"), attrs={**FLOAT, "align_corners": False})
    depthwise = graph["depthwise"].with_input(0, Edge("resized"))
    graph = graph.with_nodes(
        [*(depthwise if node.name == "depthwise" else node for node in graph.nodes.values()), size, resized]
    )
    options = {**OPTIONS, "scheme": {**COARSE, "target": "tensorflow"}}
    result = qk.quantize(graph, IMAGES, **options, runtime="tensorflow", finetune=2)
    tuning = result.report.fine_tuning
    assert tuning is not None
    assert tuning.steps == 2
    assert tuning.frozen == ("conv",)
    assert "1 layers keep their calibrated weights, because no gradient reaches them" in str(result)


def test_an_interrupted_quantization_resumes(tmp_path: Path) -> None:
    messages: list[str] = []

    def interrupt(progress: Any) -> None:
        if progress.stage == "fine-tuning" and progress.total == 4 and progress.done == 2:
            raise KeyboardInterrupt

    def run(**options: Any) -> qk.QuantizationResult:
        path = tmp_path / "model.onnx"
        return qk.quantize(network(), IMAGES, **OPTIONS, finetune=4, output=path, on_message=messages.append, **options)

    with pytest.raises(KeyboardInterrupt):
        run(on_progress=interrupt)
    state = tmp_path / "model.onnx.finetune"
    assert messages[-1] == f"fine-tuning state saved to {state}; run the same command to resume"
    assert not (tmp_path / "model.onnx").exists()
    assert run().report.fine_tuning is not None
    assert f"resuming from the fine-tuning state in {state}" in messages
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


def test_moments_of_rows_with_large_means_have_no_negative_eigenvalues() -> None:
    random = np.random.default_rng(0)
    rows = (300 + random.normal(size=(1, 20_000, 1)) + 1e-3 * random.normal(size=(1, 20_000, 24))).astype(np.float32)
    moments = _Moments.of(1, 24)
    for part in np.split(rows, 4, axis=1):
        moments.add(part, part)
    products, crossed = moments.center()
    centered = rows[0].astype(np.float64) - rows[0].mean(0, dtype=np.float64)
    assert np.linalg.eigvalsh(products[0])[0] > 0
    np.testing.assert_allclose(products[0], centered.T @ centered, rtol=1e-5)
    np.testing.assert_allclose(crossed, products)
