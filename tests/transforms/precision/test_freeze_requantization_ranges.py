"""Ranges from logs, as constants."""

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


def quantized(count: int = 1) -> Graph:
    """Codes that are requantized, several times."""
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.QINT32, "shape": Shape((4,))})]
    nodes += [constant("low", np.float32(-1)), constant("high", np.float32(1))]
    read = (Edge("x"), Edge("low"), Edge("high"))
    for number in range(count):
        attrs = {"Tinput": DType.QINT32}
        nodes.append(Node(f"range{number}", "RequantizationRange", read, attrs=attrs))
        ends = (Edge(f"range{number}"), Edge(f"range{number}", 1))
        nodes.append(Node(f"y{number}", "Requantize", read + ends, attrs={**attrs, "out_type": DType.QUINT8}))
    return Graph.of(nodes, ["x"], [f"y{number}" for number in range(count)])


def frozen(graph: Graph, log: Path, **options: float) -> tuple[float, float]:
    made = freeze_requantization_ranges(graph, min_max_log_file=str(log), **options)
    low, high = (made[f"range0/frozen_{end}"].value.array for end in ("min", "max"))
    assert made["y0"].inputs[3:] == (Edge("range0/frozen_min"), Edge("range0/frozen_max"))
    return float(low), float(high)


@pytest.mark.parametrize(
    ("percentiles", "want"),
    [((0, 0), (-20, 20)), ((5, 5), (-19, 20)), ((10, 10), (-18, 19)), ((50, 50), (-10, 11)), ((100, 100), (-1, 1))],
)
def test_percentiles(tmp_path: Path, percentiles: tuple[float, float], want: tuple[float, float]) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(LINE.format("range0", -number, number) for number in range(1, 21)))
    assert frozen(quantized(), log, min_percentile=percentiles[0], max_percentile=percentiles[1]) == want


def test_only_whole_lines_of_the_right_kind_count(tmp_path: Path) -> None:
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


def test_errors(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(LINE.format("range0", -1, 1))
    with pytest.raises(RecipeError, match="max_percentile must be between 0 and 100, not 101"):
        frozen(quantized(), log, max_percentile=101)
    with pytest.raises(InputError, match="can not be read: Is a directory"):
        read_log(str(tmp_path))


def test_the_whole_way_through_tensorflow(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    graph = quantized()
    recipe = 'insert_logging(op=RequantizationRange, show_name=true, message="__requant_min_max:")'
    logged = run(parse(recipe), graph)[0]
    (tmp_path / "logged.pb").write_bytes(graphdef.encode(logged))
    script = (
        "import sys, numpy as np, tensorflow as tf\n"
        "tf.compat.v1.disable_eager_execution()\n"
        "graph = tf.compat.v1.GraphDef.FromString(open(sys.argv[1], 'rb').read())\n"
        "tf.import_graph_def(graph, name='')\n"
        "with tf.compat.v1.Session() as session:\n"
        "    for codes in ([-1 << 30, 0, 5, 1 << 29], [-1 << 29, 0, 5, 1 << 30]):\n"
        "        fed = np.array([(code,) for code in codes], [('qint32', np.int32)])\n"
        "        session.run('y0:0', {'x:0': fed})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "logged.pb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "log.txt"
    log.write_text(done.stderr)
    assert len(re.findall("__requant_min_max", done.stderr)) == 2
    assert frozen(graph, log, min_percentile=0, max_percentile=0) == pytest.approx((-0.5, 0.5), rel=1e-6)


def test_work_grows_linearly(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(LINE.format(f"range{number}", -1, 1) for number in range(20)))
    check_linear_work(freeze_requantization_ranges, lambda count: quantized(count + 20), min_max_log_file=str(log))
