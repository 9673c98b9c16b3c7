"""Tests of backport_tensor_array_v3."""

from rewritten_graphs import check_linear_work

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.ops.tensorflow.signatures import find_op
from quantkit.transforms.metadata.backport_tensor_array_v3 import CONSUMERS, backport_tensor_array_v3


def arrays(count: int) -> Graph:
    nodes = [Node("size", "Placeholder")]
    for number in range(count):
        nodes.append(Node(f"t{number}", "TensorArrayV3", (Edge("size"),), attrs={"dtype": DType.FLOAT}))
        nodes.append(Node(f"s{number}", "TensorArraySizeV3", (Edge(f"t{number}"), Edge(f"t{number}", 1))))
    return Graph.of(nodes, ["size"], [node.name for node in nodes[2::2]])


def test_every_op_is_replaced_by_its_version_2() -> None:
    graph = Graph.of([Node("t", "TensorArrayV3"), *(Node(op, op, (Edge("t"),)) for op in CONSUMERS)], [], CONSUMERS)
    after = backport_tensor_array_v3(graph)
    for op in CONSUMERS:
        assert after[op].op == op.replace("V3", "V2")
        assert find_op(after[op].op) is not None


def test_transform_is_idempotent_and_keeps_its_argument() -> None:
    graph = arrays(3)
    once = backport_tensor_array_v3(graph)
    assert graph == arrays(3)
    assert backport_tensor_array_v3.outcome(once) == (once, (), ())


def test_flow_constants_have_unused_names() -> None:
    nodes = [constant("t0/replacement_flow_node", 2.0), *arrays(1).nodes.values()]
    after = backport_tensor_array_v3(Graph.of(nodes, ["size"], ["s0", "t0:1"]))
    flow = after["t0/replacement_flow_node_1"]
    assert (flow.value.array.item(), flow.value.shape) == (1.0, ())
    assert after["s0"].inputs[1] == Edge(flow.name)
    assert after.outputs[1] == Edge(flow.name)


def test_handles_in_loop_are_strings() -> None:
    after = backport_tensor_array_v3(
        from_text("""
            outputs: read
            size = Placeholder[int32]()
            go = Placeholder[bool]()
            t = TensorArrayV3(size, dtype=float)
            enter = Enter(t, T=resource, frame_name=loop)
            merge = Merge(enter, next, N=2, T=resource)
            switch = Switch(merge, go, T=resource)
            next = NextIteration(switch:1, T=resource)
            exit = Exit(switch, T=resource)
            read = TensorArraySizeV3(exit, t:1)
        """)
    )
    assert {after[name].attrs["T"] for name in ("enter", "merge", "switch", "next", "exit")} == {DType.STRING}


def test_transform_runs_in_linear_time() -> None:
    check_linear_work(backport_tensor_array_v3, arrays)
