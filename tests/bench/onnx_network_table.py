"""Render `onnx_networks.json` and `networks.json` as Markdown tables.

    python tests/bench/onnx_network_table.py [ONNX_NETWORKS.json] [NETWORKS.json]

A cell with two numbers has ONNX Runtime first and OpenVINO second; "-" stands for a runtime that cannot open a model,
and for a figure that was not measured. The targets ``tensorflow`` and ``litert`` have the metric of the files for these
runtimes. The speed-ups of quantkit are those of the file for all runtimes and, after a
comma, of the file for this runtime (`--runtime`). The deviation is the mean over the samples of the absolute difference
from the float model's result for the same sample; each runtime has the figure of quantkit and that of the peer with the
smallest one. "nearer" and "farther" mean that the 95 % interval of the paired difference excludes 0.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUNTIMES = ("onnxruntime", "openvino")
TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
TARGETS = ("tensorflow", "litert")
PEERS = ("quantize_static", "quantize_dynamic", "nncf")
# Peer of the speed in each runtime.
RIVALS = {"onnxruntime": "quantize_static", "openvino": "nncf"}


def figure(row: Mapping[str, Any], tool: str, runtime: str, name: str) -> Any:
    """Return a figure of a tool's model in a runtime; None if it was not measured."""
    return row.get(tool, {}).get(runtime, {}).get(name)


def pair(values: Iterable[Any], form: str) -> str:
    """Return the figures of both runtimes as text."""
    texts = ["-" if value is None else format(value, form) for value in values]
    return texts[0] if texts[0] == texts[1] else " / ".join(texts)


def nearness(row: Mapping[str, Any], runtime: str) -> str:
    """Return the deviation of quantkit's model next to that of the nearest peer in one runtime, and the verdict."""
    deviation = figure(row, "quantkit", runtime, "deviation")
    differences = figure(row, "quantkit", runtime, "nearer") or {}
    if deviation is None or not differences:
        return "-" if deviation is None else f"{deviation:.4f}"
    peer = max(differences, key=lambda name: differences[name][0])
    mean, low, high = differences[peer]
    verdict = "nearer" if high < 0 else "farther" if low > 0 else "equal" if mean == 0 else "no significant difference"
    return f"{deviation:.4f} vs {deviation - mean:.4f} ({peer}): {verdict}"


def quality_rows(networks: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, row in networks.items():
        metrics = [
            pair((figure(row, tool, runtime, "metric") for runtime in RUNTIMES), ".4g") for tool in ("quantkit", *PEERS)
        ]
        targets = pair((figure(row, f"quantkit_{target}", target, "metric") for target in TARGETS), ".4g")
        verdicts = [nearness(row, runtime) for runtime in RUNTIMES]
        yield [f"{name}: {row['metric']}", format(row["float"], ".4g"), metrics[0], targets, *metrics[1:], *verdicts]


def speed_rows(networks: Mapping[str, Any]) -> Iterator[list[str]]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for name, row in networks.items():
        ours = row.get("quantkit", {})
        cells = []
        for runtime, rival in RIVALS.items():
            tools = files_for(networks, runtime)
            speed_ups = [figure(row, tool, runtime, "speed_up") for tool in (*tools, rival)]
            for tool, value in zip(tools, speed_ups, strict=False):
                if value is not None and speed_ups[-1] is not None:
                    ratios.setdefault((runtime, tool), []).append(value / speed_ups[-1])
            texts = ["-" if value is None else f"{value:.2f}" for value in speed_ups]
            cells.append(f"{', '.join(texts[:-1])} vs {texts[-1]}")
        executed = pair((ours.get("executed", {}).get(runtime) for runtime in RUNTIMES), ".0%")
        yield [name, f"{row['nodes']} → {ours.get('nodes', '-')}", executed, *cells]
    medians = {key: f"{statistics.median(values):.2f}" for key, values in ratios.items()}
    cells = [
        ", ".join(medians.get((runtime, tool), "-") for tool in files_for(networks, runtime)) for runtime in RIVALS
    ]
    yield ["median of the ratios", "", "", *cells]


def files_for(networks: Mapping[str, Any], runtime: str) -> list[str]:
    """Return the names of quantkit's files for all runtimes and for one."""
    name = f"quantkit_{runtime}"
    return ["quantkit", *([name] if any(name in row for row in networks.values()) else [])]


def other_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    for row in rows:
        nodes, cell = row["transform"], row["targets"]["onnx"]
        executed = pair((cell.get("executed", {}).get(runtime) for runtime in RUNTIMES), ".0%")
        speeds = [row.get("speed", {}).get(runtime, {}) for runtime in RUNTIMES]
        intervals = [
            "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**each) if "ratio" in each else "-" for each in speeds
        ]
        yield [
            row["name"],
            f"{nodes['nodes_before']} → {nodes['nodes_after']}",
            executed,
            f"{cell['sqnr']}",
            *intervals,
        ]


def table(head: Iterable[str], rows: Iterable[list[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    defaults = [HERE / "onnx_networks.json", HERE / "networks.json"]
    arguments = [Path(argument) for argument in sys.argv[1:]]
    paths = [*arguments, *defaults[len(arguments) :]]
    networks = json.loads(paths[0].read_text())["networks"]
    rows = json.loads(paths[1].read_text())["rows"]
    deviations = [f"deviation in {TITLES[runtime]}" for runtime in RUNTIMES]
    print(
        table(
            ["network: metric", "float", "quantkit", "tensorflow / litert", *PEERS, *deviations], quality_rows(networks)
        ),
        end="\n\n",
    )
    speeds = [
        f"speed-up in {TITLES[runtime]}, {', '.join(files_for(networks, runtime))} vs {rival}"
        for runtime, rival in RIVALS.items()
    ]
    print(table(["network", "nodes", "int8 MACs", *speeds], speed_rows(networks)), end="\n\n")
    speeds = [f"speed-up in {TITLES[runtime]}" for runtime in RUNTIMES]
    print(table(["network", "nodes", "int8 MACs", "SQNR in dB", *speeds], other_rows(rows)))


if __name__ == "__main__":
    main()
