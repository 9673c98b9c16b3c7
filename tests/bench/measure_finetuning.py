"""Measure the accuracy that fine-tuning recovers after calibration, and its time and memory.

    python tests/bench/measure_finetuning.py BUILD [CASE ...] [--steps 300]

Quantizes each case of `CASES` three times, each in its own process: calibrated, with the layer-wise fit, and with
``--finetune STEPS``. BUILD holds the trained network, and the file of the Inception v3 stand-in. For each model:
top-1 (with labels), agreement and KL divergence with the float model on held-out images, seconds and peak memory of the
process, the recovered fraction of the loss, and the agreement of the file with its simulation in each runtime. `FORMS`
are all targets, calibrated and after ``--finetune STEPS``. Writes `finetuning.json` after each model; models in the
file are not measured again. The labels of `sediment_unet` and `super_resolution` are values: their rows have the
correlations with the float model and with the labels, and those of `super_resolution` the PSNR in dB. The case
`inception_v3` takes 18 minutes on two cores. ``machine`` is that of the first models, ``cpu`` the processor of each.
"""

import argparse
import json
import logging
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from finetuning_networks import PROBLEMS, Problem  # noqa: E402
from onnx_networks import OnnxNetwork, bootstrap, ratio, with_count  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402
from quantkit.quantization.finetuning.simulation import simulate  # noqa: E402
from quantkit.quantization.finetuning.simulator import VALUES, Objective, Simulator  # noqa: E402
from quantkit.quantization.finetuning.variables import Variables  # noqa: E402
from quantkit.quantization.targets import find_target  # noqa: E402
from quantkit.quantization.workflow.conversion import Conversion  # noqa: E402
from quantkit.quantization.workflow.fine_tuning import correct  # noqa: E402
from quantkit.runtimes import open_session  # noqa: E402
from quantkit.runtimes.session import Session  # noqa: E402

OUTPUT = HERE / "finetuning.json"
CALIBRATED, LAYERWISE = "calibrated", "layerwise"
LEAST_PROBABILITY = 1e-7
# Loss of each metric that is above chance: smaller ones have no recovered fraction.
LEAST_LOSS = {
    "agreement": 0.005,
    "top1": 0.005,
    "kl_divergence": 0.001,
    "correlation": 0.0005,
    "target_correlation": 0.001,
    "psnr": 0.1,
    "task": 0.002,
}
# Held-out samples that compare a file with its simulation.
NUM_SIMULATED = 500


@dataclass(frozen=True)
class Case:
    """Network with the options of its quantization.

    Attributes:
        problem: name in `PROBLEMS`.
        target: target format.
        scheme: fields of the scheme that differ from the target's.
        reduce_range: True for 7-bit weights.
    """

    problem: str
    target: str = "onnx"
    scheme: Mapping[str, Any] | None = None
    reduce_range: bool = False


CASES = {
    "mobilenet_7_bits_per_tensor": Case("mobilenet", scheme={"weights": "qint8 symmetric reduce_range"}),
    "mobilenet_7_bits": Case("mobilenet", reduce_range=True),
    "mobilenet_eightbit": Case("mobilenet", "eightbit"),
    "separable_tensorflow_7_bits_per_tensor": Case(
        "separable", "tensorflow", scheme={"weights": "qint8 symmetric reduce_range"}
    ),
    "separable_eightbit": Case("separable", "eightbit"),
    "separable_7_bits_per_tensor": Case("separable", scheme={"weights": "qint8 symmetric reduce_range"}),
    "pplcnet_orientation": Case("pplcnet_orientation"),
    "pplcnet_orientation_7_bits_per_tensor": Case(
        "pplcnet_orientation", scheme={"weights": "qint8 symmetric reduce_range"}
    ),
    "sediment_unet_7_bits_per_tensor": Case("sediment_unet", scheme={"weights": "qint8 symmetric reduce_range"}),
    "super_resolution_eightbit": Case("super_resolution", "eightbit"),
    "super_resolution_7_bits_per_tensor": Case("super_resolution", scheme={"weights": "qint8 symmetric reduce_range"}),
    "xfeat_7_bits_per_tensor": Case("xfeat", scheme={"weights": "qint8 symmetric reduce_range"}),
    "ultraface_7_bits_per_tensor": Case("ultraface", scheme={"weights": "qint8 symmetric reduce_range"}),
    "fastestdet_7_bits_per_tensor": Case("fastestdet", scheme={"weights": "qint8 symmetric reduce_range"}),
    "stories260k_7_bits_per_tensor": Case("stories260k", scheme={"weights": "qint8 symmetric reduce_range"}),
    "kwt1_7_bits_per_tensor": Case("kwt1", scheme={"weights": "qint8 symmetric reduce_range"}),
    "inception_v3": Case("inception_v3"),
}
FORMS = {
    f"{problem}_{target}": Case(problem, target)
    for problem in ("mobilenet", "digits")
    for target in ("onnx", "tensorflow", "eightbit", "litert")
}


def measure(name: str, method: str, build: Path) -> dict[str, Any]:
    """Return the figures of one model; the process must be new."""
    case = (CASES | FORMS)[name]
    problem = PROBLEMS[case.problem](build)
    output = output_file(build, name, method, case)
    scheme = {"target": case.target, **(case.scheme or {})}
    start = perf_counter()
    result = qk.quantize(
        problem.model,
        problem.calibration,
        scheme=scheme,
        reduce_range=case.reduce_range,
        limit=len(problem.calibration),
        finetune=None if method == CALIBRATED else method,
        time_budget="1h",  # other load on the machine ends no fit of layers
        runs=0,
        output=output,
        **problem.options,
    )
    seconds = perf_counter() - start
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    row = {"seconds": round(seconds, 1), "peak_bytes": peak_bytes, **compare(result, problem, output)}
    if result.report.fine_tuning is not None:
        row["report"] = result.report.fine_tuning.to_json()
    return row


def output_file(build: Path, name: str, method: str, case: Case) -> Path:
    """Return the file of a model. An interrupted training continues from the state next to it."""
    return build / f"{name}.{method}{find_target(case.target).suffixes[0]}"


def compare(result: qk.QuantizationResult, problem: Problem, path: Path) -> dict[str, Any]:
    """Return the accuracy on the held-out samples, and the agreement of the file with its simulation."""
    conversion = result.conversion
    with open_session(qk.load(problem.model, **problem.options).graph, "auto") as session:
        floats = compute_scores(session, problem.held_out)
    figures: dict[str, Any] = {"float": describe(floats, floats, problem), "accuracy": {}, "simulation": {}}
    all_sums: dict[str, Array] = {}
    network, score = problem.network, find_score(problem)
    if network is not None:
        with open_session(problem.model, "onnxruntime") as session:
            figures["float"]["task"] = round(score(measure_task(network, session).sum(0)), 5)
    for runtime in conversion.runtimes:
        with open_session(path, runtime) as session:
            scores = compute_scores(session, problem.held_out)
            sums = count_agreement(floats, scores) if network is None else measure_task(network, session)
        simulated = simulate_scores(conversion, runtime, problem.held_out[:NUM_SIMULATED])
        figures["accuracy"][runtime] = describe(floats, scores, problem)
        compared = agreement if problem.has_classes else correlation
        figures["simulation"][runtime] = round(compared(simulated, scores[:NUM_SIMULATED]), 4)
        if network is not None:
            figures["accuracy"][runtime]["task"] = round(score(sums.sum(0)), 5)
        all_sums[runtime] = sums
    np.savez(sums_file(path), **all_sums)  # type: ignore[arg-type]
    return figures


def sums_file(path: Path) -> Path:
    """Return the file of the sums of each held-out sample of a model, by runtime."""
    return path.with_suffix(".sums.npz")


def measure_task(network: OnnxNetwork, session: Session) -> Array:
    """Return the sums of the task's metric of each held-out sample, (n, k)."""
    names = [info.name for info in session.outputs]

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(feeds).values(), strict=True))

    return network.evaluate(run)


def count_agreement(floats: Array, scores: Array) -> Array:
    """Return the sums of the agreement with the float model, (n, 2)."""
    return with_count(floats.argmax(1) == scores.argmax(1))


def compute_scores(session: Session, samples: Array) -> Array:
    """Return the class scores of the first output, (n, k)."""
    name = session.inputs[0].name
    runs = (session.run({name: sample[None]}) for sample in samples)
    return np.stack([next(iter(outputs.values())).reshape(-1) for outputs in runs])


def simulate_scores(conversion: Conversion, runtime: str, samples: Array) -> Array:
    """Return the class scores that the simulation of a runtime computes."""
    corrected = correct(conversion)
    simulation = simulate(corrected.graph, corrected.plan, corrected.ranges, runtime)
    variables = Variables.of(simulation)
    simulator = Simulator(simulation, variables, Objective(VALUES, (1.0,)))
    zeros = variables.zeros()
    return np.stack([simulator.outputs(zeros, [sample[None]])[0].reshape(-1) for sample in samples])


def agreement(first: Array, second: Array) -> float:
    return float(np.mean(first.argmax(1) == second.argmax(1)))


def correlation(first: Array, second: Array) -> float:
    return float(np.corrcoef(first.ravel().astype(np.float64), second.ravel())[0, 1])


def psnr(labels: Array, scores: Array) -> float:
    """Return the mean PSNR of images with values from 0 to 1 in dB, where the labels are known."""
    errors = np.nanmean((np.clip(scores, 0, 1) - labels) ** 2, 1, dtype=np.float64)
    return float(np.mean(-10 * np.log10(errors)))


def describe(floats: Array, scores: Array, problem: Problem) -> dict[str, float]:
    """Return agreement, mean KL divergence, and top-1 with labels; for values the correlations."""
    labels = problem.labels
    if not problem.has_classes:
        figures = {"correlation": round(correlation(floats, scores), 5)}
        if labels is None:
            return figures
        has_label = ~np.isnan(labels)
        figures["target_correlation"] = round(correlation(labels[has_label], scores[has_label]), 5)
        return figures if has_label.all() else figures | {"psnr": round(psnr(labels, scores), 3)}
    logarithms = [log_probabilities(array) for array in (floats, scores)]
    divergence = np.mean(np.sum(np.exp(logarithms[0]) * (logarithms[0] - logarithms[1]), 1))
    figures = {"agreement": round(agreement(floats, scores), 4), "kl_divergence": round(float(divergence), 5)}
    if labels is not None:
        figures["top1"] = round(float(np.mean(scores.argmax(1) == labels)), 4)
    return figures


def log_probabilities(scores: Array) -> Array:
    scores = scores.astype(np.float64)
    if (scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=0.02):
        logarithms: Array = np.log(np.maximum(scores, LEAST_PROBABILITY))
        return logarithms
    centered = scores - scores.max(1, keepdims=True)
    normalized: Array = centered - np.log(np.exp(centered).sum(1, keepdims=True))
    return normalized


def compute_recovery(rows: Mapping[str, Mapping[str, Any]], method: str) -> dict[str, dict[str, float]]:
    """Return the fraction of the loss of the calibrated model that a method recovers, by runtime and metric."""
    floats = rows[CALIBRATED]["float"]
    recovered: dict[str, dict[str, float]] = {}
    for runtime, calibrated in rows[CALIBRATED]["accuracy"].items():
        tuned = rows[method]["accuracy"][runtime]
        recovered[runtime] = {
            name: round((tuned[name] - calibrated[name]) / (value - calibrated[name]), 3)
            for name, value in floats.items()
            if abs(value - calibrated[name]) > LEAST_LOSS[name]
        }
    return recovered


def run(name: str, method: str, build: Path) -> dict[str, Any]:
    """Return `measure` in its own process."""
    command = [sys.executable, __file__, str(build), name, "--method", method]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the trained network and of classify_image_graph_def.pb")
    parser.add_argument("cases", nargs="*", help="names of cases (default: all)")
    parser.add_argument("--steps", default="300", help="number of steps (default: 300)")
    parser.add_argument("--method", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.method:
        logging.disable(logging.WARNING)
        print(json.dumps(measure(options.cases[0], options.method, options.build)))
        return
    options.build.mkdir(parents=True, exist_ok=True)
    names = options.cases or list(CASES | FORMS)
    for method in (CALIBRATED, options.steps, LAYERWISE):
        for name in names:
            if (name in CASES or method != LAYERWISE) and method not in rows_of(read(), name):
                row = run(name, method, options.build)
                print(name, method, json.dumps(row), flush=True)
                save(name, method, row, options.build)


def read() -> dict[str, Any]:
    """Return the document of earlier calls; another process may measure other cases."""
    document: dict[str, Any] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    return document


def rows_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    rows: dict[str, Any] = document.setdefault("cases" if name in CASES else "forms", {}).setdefault(name, {})
    return rows


def compute_gains(name: str, method: str, build: Path) -> dict[str, dict[str, float]]:
    """Return the gain over the calibrated model in the task's metric, or in agreement, on the held-out samples.

    The intervals of 95 % are those of a bootstrap over the samples; by runtime.
    """
    case = (CASES | FORMS)[name]
    score = find_score(PROBLEMS[case.problem](build))
    before, after = (dict(np.load(sums_file(output_file(build, name, each, case)))) for each in (CALIBRATED, method))
    gains = {}
    for runtime, sums in before.items():
        difference = partial(difference_of_rows, score, sums, after[runtime])
        low, high = bootstrap(len(sums), difference)
        gains[runtime] = {"value": difference(np.arange(len(sums))), "low": low, "high": high}
    return gains


def find_score(problem: Problem) -> Callable[[Array], float]:
    return ratio if problem.network is None else problem.network.score


def difference_of_rows(score: Callable[[Array], float], before: Array, after: Array, rows: Array) -> float:
    return score(after[rows].sum(0)) - score(before[rows].sum(0))


def save(name: str, method: str, row: dict[str, Any], build: Path) -> None:
    machine = this_machine().to_json()
    document = {"schema": "quantkit.finetuning/1", "machine": machine} | read()
    rows = rows_of(document, name)
    rows[method] = row
    row["cpu"] = machine["cpu"]
    if name in CASES and method != CALIBRATED:
        row["recovered"] = compute_recovery(rows, method)
        row["gain"] = compute_gains(name, method, build)
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
