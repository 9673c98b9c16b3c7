"""Compare int8 models of quantkit with those of ONNX Runtime's quantizer and of NNCF on trained ONNX networks.

    python tests/bench/onnx_networks.py BUILD [NETWORK ...] [--tools TOOL ...] [--nncf PYTHON] [--reuse] [--save FILE]
    python tests/bench/onnx_networks.py BUILD [NETWORK ...] --speed [--save FILE]

The first form quantizes each network of `support/onnx_networks.py` with all tools on the same calibration samples, and
measures the number of nodes, the int8 fraction of the MACs in each runtime, the metric of the task on other samples
with the 95 % interval of its difference from the float model, and the SQNR of the outputs: figures that do not depend
on the load of the machine. ``--reuse`` measures models in BUILD again without quantizing. The second form measures the
speed-ups of the models in BUILD over the float model in the same runtime by `benchmark`, in processes of their own:
in one process, idle threads of ONNX Runtime that spin slow the other models by up to two times.

In a mean over samples, opposite errors cancel. The deviation of a model is therefore the mean over the samples of the
absolute difference from the float model's result for the same sample. quantkit's model is nearer to the float model
than that of a peer if its deviation is smaller; the difference has a 95 % interval of a paired bootstrap.
`onnx_network_table.py` renders the table.

The model ``quantkit`` is for all runtimes; the models ``quantkit_onnxruntime`` and ``quantkit_openvino`` are for one
(``--runtime``). ``quantkit_tensorflow`` and ``quantkit_litert`` are those of the targets ``tensorflow`` and ``litert``,
with their metrics in these runtimes.
ONNX Runtime's quantizer gets its documented settings for processors with VNNI: opset 13 or later, pre-processing, QDQ,
u8 activations, s8 weights per channel; for transformers and recurrent networks its dynamic quantization, too. PYTHON is
the interpreter of an environment with NNCF. `export_sentence_encoder.py` writes one more network into BUILD, a BERT.
"""

import argparse
import json
import logging
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

from onnx_networks import NETWORKS, Feeds, OnnxNetwork, Run, bootstrap, open_onnxruntime, sentence_encoder  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit import formats  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.benchmark.results.report import NotMeasuredError  # noqa: E402
from quantkit.benchmark.results.speedup import Speedup  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402
from quantkit.quantization import Scheme  # noqa: E402
from quantkit.quantization.report.census import executed_int8_fractions  # noqa: E402
from quantkit.runtimes import find_runtime  # noqa: E402

RUNTIMES = ("onnxruntime", "openvino")
OURS = ("quantkit", "quantkit_onnxruntime", "quantkit_openvino")
# Other targets, with their suffixes; each has its own runtime of the same name.
TARGETS = {"tensorflow": ".pb", "litert": ".tflite"}
TOOLS = (*OURS, *(f"quantkit_{target}" for target in TARGETS), "quantize_static", "quantize_dynamic", "nncf")
TRANSFORMERS = frozenset({"kwt1", "minilm", "stories260k", "vittrack"})
RECURRENT = frozenset({"dtln_1", "dtln_2", "gtcrn_stream", "silero_vad_op15", "silero_vad_op18"})
LAYER_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
SOURCE_OPS = ("Constant", "Placeholder", "Absent")


def quantize_static(network: OnnxNetwork, samples: list[Feeds], output: Path) -> None:
    """Quantize with ONNX Runtime's quantizer and calibrated ranges."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
    from onnxruntime.quantization import quantize_static as quantize_file

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = iter(samples)

        def get_next(self) -> Feeds | None:
            return next(self.samples, None)

    prepared = prepare(network, output)
    quantize_file(
        str(prepared),
        str(output),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def quantize_dynamic(network: OnnxNetwork, samples: list[Feeds], output: Path) -> None:
    """Quantize with ONNX Runtime's quantizer and ranges that the model computes."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize_file

    quantize_file(str(prepare(network, output)), str(output), per_channel=True, weight_type=QuantType.QInt8)


def prepare(network: OnnxNetwork, output: Path) -> Path:
    """Return the file of the network after the pre-processing of ONNX Runtime's quantizer."""
    import onnx
    from onnxruntime.quantization import quant_pre_process

    model = onnx.load(network.path)
    if next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")) < 13:
        model = onnx.version_converter.convert_version(model, 13)
    prepared = output.with_suffix(".prepared.onnx")
    onnx.save(model, prepared)
    try:
        quant_pre_process(str(prepared), str(prepared), skip_symbolic_shape=True)
    except Exception as error:
        print(f"  pre-processing failed: {error}")
    return prepared


def quantize_with_nncf(python: str, network: OnnxNetwork, samples: list[Feeds], output: Path) -> None:
    """Quantize with NNCF in its own environment."""
    arrays = output.with_suffix(".npz")
    np.savez(
        arrays, **{f"{number}/{name}": array for number, feeds in enumerate(samples) for name, array in feeds.items()}
    )  # type: ignore[arg-type]
    script = HERE / "quantize_with_nncf.py"
    options = ["--transformer"] if network.name in TRANSFORMERS else []
    command = [python, str(script), str(network.path), str(arrays), str(output), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    arrays.unlink()
    if result.returncode:
        raise RuntimeError(result.stderr.strip().splitlines()[-1])


def open_openvino(path: Path) -> Run:
    session = find_runtime("openvino").open(path)
    return lambda feeds: dict(session.run(feeds))


def open_target(runtime: str, path: Path) -> Run:
    """Return a function that runs a file of another target; the float ONNX model runs in ONNX Runtime."""
    if path.suffix == ".onnx":
        return open_onnxruntime(path)
    session = qk.open_session(path, runtime)
    return lambda feeds: dict(session.run(feeds))


OPENERS: Mapping[str, Callable[[Path], Run]] = {
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    **{target: partial(open_target, target) for target in TARGETS},
}


def sqnr(expected: list[Mapping[str, Array]], actual: list[Mapping[str, Array]]) -> float:
    """Return the lowest SQNR of an output in dB."""
    values = []
    for name in expected[0]:
        signal = sum(float((out[name] ** 2).sum()) for out in expected)
        pairs = zip(expected, actual, strict=True)
        noise = sum(float(((out[name] - other[name]) ** 2).sum()) for out, other in pairs)
        values.append(10 * np.log10(signal / max(noise, 1e-30)) if signal else 99.0)
    return round(float(min(min(values), 99)), 1)


def quality(network: OnnxNetwork, path: Path, samples: list[Feeds], sums: Array) -> dict[str, Any]:
    """Return the figures of one int8 model that do not depend on the load of the machine.

    Args:
        network: network of the model.
        path: file of the model.
        samples: calibration samples.
        sums: sums of the evaluation samples of the float model, see `OnnxNetwork.evaluate`.
    """
    last_samples = samples[-8:]
    row: dict[str, Any] = {}
    for name in runtimes_of(path):
        try:
            reference, run = OPENERS[name](network.path), OPENERS[name](path)
            expected, actual = ([each(feeds) for feeds in last_samples] for each in (reference, run))
            actual_sums = network.evaluate(run)
            np.save(path.with_suffix(f".{name}.npy"), actual_sums)
            row[name] = {
                "metric": round(network.score(actual_sums.sum(0)), 4),
                "interval": [round(value, 4) for value in network.interval(sums, actual_sums)],
                "deviation": round(float(network.deviations(sums, actual_sums).mean()), 5),
                "sqnr": sqnr(expected, actual),
            }
        except Exception as error:
            row[name] = {"error": str(error).splitlines()[0][:200]}
    if path.suffix == ".onnx":
        graph = formats.load(path)
        shapes = {name: array.shape for name, array in samples[0].items()}
        fractions = executed_int8_fractions(graph, RUNTIMES, shapes)
        row["nodes"] = count_nodes(path)
        row["executed"] = {name: round(value, 4) for name, value in fractions.items()}
    return row


def suffix_of(tool: str) -> str:
    """Return the suffix of the models of a tool."""
    return ".xml" if tool == "nncf" else TARGETS.get(tool.removeprefix("quantkit_"), ".onnx")


def runtimes_of(path: Path) -> tuple[str, ...]:
    """Return the runtimes that read a file, and that its tool made it for."""
    if path.suffix != ".onnx":
        return tuple(target for target, suffix in TARGETS.items() if path.suffix == suffix) or ("openvino",)
    own = tuple(runtime for runtime in RUNTIMES if f".quantkit_{runtime}." in path.name)
    return own or RUNTIMES


def count_nodes(path: Path) -> int:
    """Return the number of nodes that compute."""
    return sum(node.op not in SOURCE_OPS for node in formats.load(path).nodes.values())


def quantize_with_quantkit(
    network: OnnxNetwork, samples: list[Feeds], output: Path, *, target: str = "onnx", runtime: str = "auto"
) -> dict[str, Any]:
    """Quantize with quantkit, in the form for all runtimes or for one; return the facts of its report."""
    # A scheme would also state the observer, which is chosen by fidelity by default.
    scheme = Scheme.for_target(target, keep_float=network.keep_float) if network.keep_float else None
    result = qk.quantize(
        network.path,
        samples,
        target=target,
        scheme=scheme,
        runs=0,
        limit=len(samples),
        output=output,
        runtime=runtime,
    )
    census = result.report.census
    return {
        "layers": census.num_patterns,
        "int8_fraction": None if census.int8_fraction is None else round(census.int8_fraction, 4),
        "float_layers": [fallback.name for fallback in census.float_fallbacks if fallback.op in LAYER_OPS],
        "observer": result.plan.scheme.observer,
    }


@dataclass(frozen=True)
class Tool:
    """Quantizer of this comparison.

    Attributes:
        quantize: writes the int8 model, and may return facts about it.
        is_dynamic: True for ranges that the model computes, for transformers and recurrent networks.
    """

    quantize: Callable[[OnnxNetwork, list[Feeds], Path], dict[str, Any] | None]
    is_dynamic: bool = False

    def suits(self, network: OnnxNetwork) -> bool:
        return not self.is_dynamic or network.name in TRANSFORMERS | RECURRENT


def find_tools(nncf: str | None) -> dict[str, Tool]:
    """Return the tools by name.

    Args:
        nncf: interpreter of an environment with NNCF; None if the comparison has only its saved figures and files.
    """
    return {
        "quantkit": Tool(quantize_with_quantkit),
        **{f"quantkit_{name}": Tool(partial(quantize_with_quantkit, runtime=name)) for name in RUNTIMES},
        **{f"quantkit_{name}": Tool(partial(quantize_with_quantkit, target=name)) for name in TARGETS},
        "quantize_static": Tool(quantize_static),
        "quantize_dynamic": Tool(quantize_dynamic, is_dynamic=True),
        **({"nncf": Tool(partial(quantize_with_nncf, nncf))} if nncf else {}),
    }


def measure(network: OnnxNetwork, build: Path, tools: Mapping[str, Tool], row: dict[str, Any], *, reuse: bool) -> None:
    """Quantize a network, and update its row of the table with the quality of each tool's model.

    Args:
        network: network to quantize.
        build: folder of the models.
        tools: tools by name.
        row: row of the network.
        reuse: measure the models in the folder without quantizing.
    """
    reference = open_onnxruntime(network.path)
    samples = network.calibration(reference)
    sums = network.evaluate(reference)
    row.update(
        metric=network.metric,
        samples=len(samples),
        evaluated=len(sums),
        nodes=count_nodes(network.path),
        float=round(network.score(sums.sum(0)), 4),
    )
    for name, tool in tools.items():
        if tool.suits(network):
            path = build / f"{network.name}.{name}{suffix_of(name)}"
            try:
                facts = row.get(name, {}) if reuse and path.exists() else quantize(tool, network, samples, path)
                row[name] = {**facts, **quality(network, path, samples, sums)}
            except Exception as error:
                row[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
    for name in set(OURS) & tools.keys():
        for runtime in RUNTIMES:
            if "deviation" in row.get(name, {}).get(runtime, {}):
                row[name][runtime]["nearer"] = compare(network, build, name, runtime, sums)


def quantize(tool: Tool, network: OnnxNetwork, samples: list[Feeds], path: Path) -> dict[str, Any]:
    """Quantize a network with a tool; return the run time and the facts that the tool reports."""
    start = perf_counter()
    facts = tool.quantize(network, samples, path) or {}
    return {"seconds": round(perf_counter() - start, 1), **facts}


def compare(network: OnnxNetwork, build: Path, ours: str, runtime: str, sums: Array) -> dict[str, Any]:
    """Return the deviation of a model minus that of each peer in the same runtime, with its 95 % interval."""

    def deviations(tool: str) -> Array | None:
        path = build / f"{network.name}.{tool}.{runtime}.npy"
        return network.deviations(sums, np.load(path)) if path.exists() else None

    differences: dict[str, Any] = {}
    for peer in (name for name in TOOLS if name not in OURS):
        pair = deviations(ours), deviations(peer)
        if pair[0] is not None and pair[1] is not None:
            differences[peer] = [round(value, 5) for value in mean_with_interval(pair[0] - pair[1])]
    return differences


def mean_with_interval(differences: Array) -> tuple[float, float, float]:
    """Return the mean of the differences of the samples (n,), and its 95 % interval."""
    low, high = bootstrap(len(differences), lambda rows: float(differences[rows].mean()))
    return float(differences.mean()), low, high


def measure_speed(network: OnnxNetwork, build: Path, row: dict[str, Any]) -> None:
    """Update the row of a network with the speed-ups of the int8 models in a folder, and their 95 % intervals.

    `benchmark` reads no sample whose inputs have different first sizes: such networks run on random inputs, and are not
    measured if their sizes are dynamic.
    """
    feeds = network.calibration(open_onnxruntime(network.path))[-1]
    has_rows = len({array.shape[:1] for array in feeds.values()}) == 1
    for runtime in RUNTIMES:
        names = [name for name in TOOLS if "metric" in row.get(name, {}).get(runtime, {})]
        paths = {name: build / f"{network.name}.{name}{suffix_of(name)}" for name in names}
        for name in names:
            row[name][runtime].pop("speed_up", None)
        try:
            models = [network.path, *paths.values()]
            benchmark = qk.benchmark(models, runtime=runtime, data=[feeds] if has_rows else None, processes=3)
        except NotMeasuredError:
            continue
        speedups = {each.label: speedup for each, speedup in zip(benchmark.rows, benchmark.speedups, strict=True)}
        for name, path in paths.items():
            speedup = speedups[path.name]
            assert isinstance(speedup, Speedup), "all models are measured in the same rounds"
            row[name][runtime]["speed_up"] = round(speedup.ratio, 2)
            row[name][runtime]["interval_of_speed_up"] = [round(speedup.low, 2), round(speedup.high, 2)]


def describe(name: str, row: Mapping[str, Any]) -> str:
    """Return the lines of a network in the table."""
    lines = [f"{name}: float {row.get('float')} ({row.get('metric')})"]
    for tool in TOOLS:
        if tool in row:
            runtimes = [runtime for runtime in OPENERS if runtime in row[tool]]
            cells = [f"{runtime} {_describe_cell(row[tool][runtime])}" for runtime in runtimes]
            lines.append(f"  {tool:<22}{'  '.join(cells) or row[tool]['error']}")
    return "\n".join(lines)


def _describe_cell(cell: Mapping[str, Any]) -> str:
    if "error" in cell:
        return str(cell["error"])
    interval = " .. ".join(f"{limit:+}" for limit in cell.get("interval", ())) or "-"
    peers = "; ".join(
        f"{peer} {mean:+} ({low:+} .. {high:+})" for peer, (mean, low, high) in cell.get("nearer", {}).items()
    )
    text = f"{cell['metric']} ({interval}) deviation {cell.get('deviation', '-')} {cell['sqnr']} dB"
    return f"{text} {cell.get('speed_up', '-')} x {f'[{peers}]' if peers else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the int8 models")
    parser.add_argument("networks", nargs="*", help="names of networks (default: all)")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS, help="tools that quantize (default: all)")
    parser.add_argument("--reuse", action="store_true", help="measure models in BUILD again without quantizing")
    parser.add_argument("--speed", action="store_true", help="measure only the speed-ups of the models in BUILD")
    parser.add_argument("--nncf", metavar="PYTHON", help="interpreter of an environment with NNCF")
    parser.add_argument("--save", type=Path, help="JSON file with the figures, which is updated")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    arguments.build.mkdir(parents=True, exist_ok=True)
    tools = {name: tool for name, tool in find_tools(arguments.nncf).items() if name in arguments.tools}
    is_update = arguments.save is not None and arguments.save.exists()
    rows: dict[str, Any] = json.loads(arguments.save.read_text())["networks"] if is_update else {}
    networks = dict(NETWORKS)
    if (arguments.build / "minilm.npz").exists():
        networks["minilm"] = sentence_encoder(arguments.build)
    for name in arguments.networks or networks:
        row = rows.setdefault(name, {})
        if arguments.speed:
            measure_speed(networks[name], arguments.build, row)
        else:
            measure(networks[name], arguments.build, tools, row, reuse=arguments.reuse)
        print(describe(name, row), flush=True)
        if arguments.save is not None:
            document = {"schema": "quantkit.onnx_networks/1", "machine": this_machine().to_json(), "networks": rows}
            arguments.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
