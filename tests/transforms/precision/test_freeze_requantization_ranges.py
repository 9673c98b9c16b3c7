"""Ranges from logs that become constants."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rewritten_graphs import check_linear_work

from quantkit.errors import InputError, RecipeError
from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.recipes import parse, run
from quantkit.transforms.precision.freeze_requantization_ranges import freeze_requantization_ranges, read_log

LINE = ";{}__print__;__requant_min_max:[{}][{}]\n"


def requantized_graph(count: int = 1) -> Graph:
    """Return a graph with several Requantize nodes of one input."""
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.QINT32, "shape": Shape((4,))})]
    nodes += [constant("low", np.float32(-1)), constant("high", np.float32(1))]
    tensor = (Edge("x"), Edge("low"), Edge("high"))
    for number in range(count):
        attrs = {"Tinput": DType.QINT32}
        nodes.append(Node(f"range{number}", "RequantizationRange", tensor, attrs=attrs))
        bounds = (Edge(f"range{number}"), Edge(f"range{number}", 1))
        nodes.append(Node(f"y{number}", "Requantize", tensor + bounds, attrs={**attrs, "out_type": DType.QUINT8}))
    return Graph.of(nodes, ["x"], [f"y{number}" for number in range(count)])


def frozen_range(graph: Graph, log: Path, **options: float) -> tuple[float, float]:
    frozen = freeze_requantization_ranges(graph, min_max_log_file=str(log), **options)
    low, high = (frozen[f"range0/frozen_{end}"].value.array for end in ("min", "max"))
    assert frozen["y0"].inputs[3:] == (Edge("range0/frozen_min"), Edge("range0/frozen_max"))
    return float(low), float(high)


@pytest.mark.parametrize(
    ("percentiles", "expected"),
    [((0, 0), (-20, 20)), ((5, 5), (-19, 20)), ((10, 10), (-18, 19)), ((50, 50), (-10, 11)), ((100, 100), (-1, 1))],
)
def test_percentiles_drop_outliers(
    tmp_path: Path, percentiles: tuple[float, float], expected: tuple[float, float]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(LINE.format("range0", -number, number) for number in range(1, 21)))
    low, high = percentiles
    assert frozen_range(requantized_graph(), log, min_percentile=low, max_percentile=high) == expected


def test_incomplete_and_other_lines_are_ignored(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        "noise\n"
        "prefix ;other part;a/b__print__;__requant_min_max:[-1][2]\n"
        ";a/b__print__;__requant_min_max:[-1][2][3]\n"
        ";a/b__print__;__requant_min_max:[x][2]\n"
        ";a/b__print__;__requant_min_max:[-inf][2]\n"
        "__print__;__requant_min_max:[-5][5]\n"
        ";a/b__print__;__requant_min_max:[-1];b__print__;__requant_min_max:[-3][4]\n",
        newline="\r\n",
    )
    assert read_log(str(log)) == {"a/b": [(-1, 2)], "b": [(-3, 4)], "": [(-5, 5)]}


def test_invalid_percentile_and_unreadable_log_are_rejected(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(LINE.format("range0", -1, 1))
    with pytest.raises(RecipeError, match="max_percentile must be between 0 and 100, not 101"):
        frozen_range(requantized_graph(), log, max_percentile=101)
    with pytest.raises(InputError, match="cannot read .*: Is a directory"):
        read_log(str(tmp_path))


def test_log_of_tensorflow_run_is_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    graph = requantized_graph()
    recipe = 'insert_logging(op=RequantizationRange, show_name=true, message="__requant_min_max:")'
    logged = run(parse(recipe), graph)[0]
    (tmp_path / "logged.pb").write_bytes(graphdef.encode(logged))
    script = (
        "import sys, numpy as np, tensorflow as tf\n"
        "tf.compat.v1.disable_eager_execution()\n"
        "graph = tf.compat.v1.GraphDef.FromString(open(sys.argv[1], 'rb').read())\n"
        "tf.import_graph_def(graph, name='')\n"
        "with tf.compat.v1.Session() as session:\n"
        "    for values in ([-1 << 30, 0, 5, 1 << 29], [-1 << 29, 0, 5, 1 << 30]):\n"
        "        x = np.array([(value,) for value in values], [('qint32', np.int32)])\n"
        "        session.run('y0:0', {'x:0': x})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "logged.pb")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    log = tmp_path / "log.txt"
    log.write_text(process.stderr)
    assert len(re.findall("__requant_min_max", process.stderr)) == 2
    assert frozen_range(graph, log, min_percentile=0, max_percentile=0) == pytest.approx((-0.5, 0.5), rel=1e-6)


def test_freeze_requantization_ranges_runs_in_linear_time(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(LINE.format(f"range{number}", -1, 1) for number in range(20)))
    check_linear_work(
        freeze_requantization_ranges, lambda count: requantized_graph(count + 20), min_max_log_file=str(log)
    )
