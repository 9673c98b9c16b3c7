"""Tables of benchmark_model: order of the rows and sums of the columns."""

from quantkit.compat.benchmark_tables import NodeTable
from quantkit.runtimes.tensorflow_trace import NodeRun


def node_table() -> NodeTable:
    table = NodeTable()
    for factor in (1, 3):
        table.add(
            [
                NodeRun("x", "_Arg", 0.0, 0.001 * factor, 0, ("1x3",)),
                NodeRun("conv", "Conv2D", 0.002, 0.006 * factor, 4000, ("1x3x3x8",)),
                NodeRun("relu", "Relu", 0.010, 0.001 * factor, 8000, ()),
                NodeRun("again", "Conv2D", 0.012, 0.002 * factor, 1000, ("scalar",)),
            ]
        )
    return table


def names(text: str) -> list[str]:
    return [line.split()[-1] for line in text.splitlines()[2:] if line]


def test_rows_are_in_the_order_of_each_table() -> None:
    assert names(node_table().run_order(0)) == ["x", "conv", "relu", "again"]
    assert names(node_table().by_time(2)) == ["conv", "again"]
    assert names(node_table().by_memory(0))[:2] == ["relu", "conv"]


def test_row_has_start_first_mean_percent_and_cumulative_percent() -> None:
    _, _, row, *_ = node_table().by_time(0).splitlines()
    assert row.split() == ["Conv2D", "2.000", "6.000", "12.000", "60.000%", "60.000%", "4.000", "1", "conv"]
    assert node_table().by_time(0).splitlines()[-1].split()[5] == "100.000%"


def test_op_types_are_summed() -> None:
    _, _, row, *_ = node_table().by_type().splitlines()
    assert row.split() == ["Conv2D", "2", "16.000", "80.000%", "80.000%", "5.000", "2"]


def test_summary_and_output_sizes() -> None:
    timings, memory, nodes = node_table().summary().splitlines()
    assert timings == "Timings (microseconds): count=2 first=10000 curr=30000 min=10000 max=30000 avg=20000 std=10000"
    assert memory == "Memory (bytes): count=2 curr=13000"
    assert nodes == "4 nodes observed"
    assert node_table().sizes().splitlines()[1:] == ["x: 1x3", "conv: 1x3x3x8", "again: scalar"]


def test_empty_table() -> None:
    assert NodeTable().summary() == "Timings (microseconds): count=0\nMemory (bytes): count=0\n0 nodes observed"
    assert names(NodeTable().by_type()) == []
