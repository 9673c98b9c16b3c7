"""Gathers from columns of weights that become lookups in tables."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_linear_work

from quantkit.compat import parse_classic, run_classic
from quantkit.errors import RecipeError
from quantkit.formats import graphdef
from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes import find_runtime
from quantkit.transforms.layout.sparsify_gather import sparsify_gather

GATHER: dict[str, Attr] = {"Tparams": DType.FLOAT, "Tindices": DType.INT64}


def column(values: list[float]) -> Array:
    return np.array(values, np.float32).reshape(-1, 1)


def ids_of(shape: tuple[int, ...] = (4,), dtype: DType = DType.INT64) -> Node:
    return Node("ids", "Placeholder", attrs={"dtype": dtype, "shape": Shape(shape)})


def run(graph: Graph, ids: Array) -> dict[str, Array]:
    with find_runtime("reference").open(graph) as session:
        return session.run({"ids": ids})


@st.composite
def linear_models(draw: st.DrawFn) -> Graph:
    """Return columns of equal length, gathers of both op types, and other consumers."""
    dtype = draw(st.sampled_from([DType.INT64, DType.INT32]))
    nodes = [ids_of((2, 3), dtype), constant("axis", np.int32(0))]
    for number in range(draw(st.integers(1, 3))):
        some = st.sampled_from([0.0, 0.0, 0.0, -0.0, 1.5, 1e-7, -3.0, np.inf])
        nodes.append(constant(f"w{number}", column(draw(st.lists(some, min_size=5, max_size=5)))))
        nodes.append(Node(f"i{number}", "Identity", (Edge(f"w{number}"),), attrs={"T": DType.FLOAT}))
    sources = [node.name for node in nodes[2:]]
    outputs = []
    for number in range(draw(st.integers(1, 4))):
        source = Edge(draw(st.sampled_from(sources)))
        attrs = {**GATHER, "Tindices": dtype}
        if draw(st.booleans()):
            nodes.append(Node(f"y{number}", "Gather", (source, Edge("ids")), attrs=attrs))
        else:
            edges = (source, Edge("ids"), Edge("axis"))
            nodes.append(Node(f"y{number}", "GatherV2", edges, attrs={**attrs, "Taxis": DType.INT32}))
        outputs.append(f"y{number}")
    outputs += draw(st.lists(st.sampled_from(sources), max_size=1))
    return Graph.of(nodes, ["ids"], outputs)


@given(linear_models(), st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_outputs_of_lookups_stay_equal(graph: Graph, ids: list[int]) -> None:
    sparse = sparsify_gather(graph)
    verify(sparse)
    assert (sparse.inputs, sparse.outputs) == (graph.inputs, graph.outputs)
    assert not {"Gather", "GatherV2"} & sparse.op_counts.keys()
    ids_array = np.array(ids, graph["ids"].attrs["dtype"].numpy).reshape(2, 3)  # type: ignore[union-attr]
    expected, actual = run(graph, ids_array), run(sparse, ids_array)
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)
    assert sparsify_gather(sparse) == sparse


def test_table_contains_nonzero_weights_only() -> None:
    graph = Graph.of(
        [
            ids_of(),
            constant("w", column([0, 1e-7, 0, 2])),
            Node("y", "Gather", (Edge("w"), Edge("ids")), attrs=GATHER),
        ],
        ["ids"],
        ["y"],
    )
    sparse = sparsify_gather(graph)
    assert sparse["w/indices"].value.array.tolist() == [1, 3]
    assert sparse["w/values"].value.array.tolist() == [np.float32(1e-7), 2]
    assert sparse["group_deps"].controls == ("w/InitializeTable",)
    assert "w" not in sparse
    np.testing.assert_array_equal(run(sparse, np.array([3, 9, 0, -1]))["y"], column([2, 0, 0, 0]))


def test_checkpoint_without_read_variable_is_rejected() -> None:
    nodes = [ids_of(), Node("w", "VariableV2", attrs={"dtype": DType.FLOAT})]
    nodes.append(Node("y", "Gather", (Edge("w"), Edge("ids")), attrs=GATHER))
    with pytest.raises(RecipeError, match="without the service read_variable"):
        sparsify_gather(Graph.of(nodes, ["ids"], ["y"]), input_checkpoint="model")


def partitioned_model(prefix: str) -> tuple[bytes, Array]:
    """Save a wide TensorFlow model with a column in two parts; return its GraphDef and the column."""
    tf = pytest.importorskip("tensorflow")
    v1 = tf.compat.v1
    values = np.where(np.arange(12) % 3 == 0, np.arange(12), 0).astype(np.float32).reshape(-1, 1)
    with tf.Graph().as_default() as tf_graph, v1.Session() as session:
        ids = v1.placeholder(tf.int64, [None], "ids")
        parts = v1.get_variable(
            "linear/weights",
            initializer=lambda shape, dtype, partition_info: values[partition_info.var_offset[0] :][: shape[0]],
            shape=values.shape,
            partitioner=v1.fixed_size_partitioner(2),
            use_resource=False,
        )
        first, second = (v1.gather(part, ids, name=f"y{number}") for number, part in enumerate(parts))
        del first, second
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, prefix, write_meta_graph=False)
        return bytes(tf_graph.as_graph_def().SerializeToString()), values


def test_each_part_of_variable_is_read_from_checkpoint(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from quantkit.model.importers.checkpoint import read_variable

    prefix = str(tmp_path / "model")
    data, values = partitioned_model(prefix)
    graph = graphdef.decode(data).with_endpoints(["ids"], ["y0", "y1"])
    outcome = sparsify_gather.outcome(graph, input_checkpoint=prefix, read_variable=read_variable)
    assert [line.rpartition(": ")[2] for line in outcome.changes] == ["1 of 6 values", "2 of 6 values"]
    definition = tf.compat.v1.GraphDef.FromString(graphdef.encode(outcome.graph))
    with tf.Graph().as_default() as tf_graph:
        tf.import_graph_def(definition, name="")
        with tf.compat.v1.Session(graph=tf_graph) as session:
            session.run("group_deps")
            for _ in range(2):
                first, second = session.run(["y0:0", "y1:0"], {"ids:0": np.arange(6)})
    np.testing.assert_array_equal(first, values[:6])
    np.testing.assert_array_equal(second, values[6:])


def test_classic_tool_reads_first_part_for_every_part(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    from quantkit.model.importers.checkpoint import read_variable

    prefix = str(tmp_path / "model")
    data, values = partitioned_model(prefix)
    sparse, _ = run_classic(
        parse_classic(f"sparsify_gather(input_checkpoint={prefix})"),
        graphdef.decode(data),
        (["ids"], ["y0", "y1"]),
        services={"read_variable": read_variable},
    )
    for part in range(2):
        assert sparse[f"linear/weights/part_{part}/indices"].value.array.tolist() == [3]
        assert sparse[f"linear/weights/part_{part}/values"].value.array.tolist() == [values[3, 0]]
    assert "linear/weights/part_0" not in sparse


def test_first_lookup_in_tensorflow_initializes_table() -> None:
    tf = pytest.importorskip("tensorflow")
    nodes = [ids_of(), constant("w", column([0, 1, 0, 2]))]
    nodes.append(Node("y", "Gather", (Edge("w"), Edge("ids")), attrs=GATHER))
    sparse = sparsify_gather(Graph.of(nodes, ["ids"], ["y"]))
    with tf.Graph().as_default() as tf_graph:
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(graphdef.encode(sparse)), name="")
        with tf.compat.v1.Session(graph=tf_graph) as session:
            for _ in range(3):
                outputs = session.run("y:0", {"ids:0": [0, 1, 2, 3]})
                np.testing.assert_array_equal(outputs, column([0, 1, 0, 2]))


def test_sparsify_gather_runs_in_linear_time() -> None:
    def model(length: int) -> Graph:
        nodes = [ids_of()]
        for number in range(length):
            nodes.append(constant(f"w{number}", column([0, number])))
            nodes.append(Node(f"i{number}", "Identity", (Edge(f"w{number}"),), attrs={"T": DType.FLOAT}))
            nodes.append(Node(f"y{number}", "Gather", (Edge(f"i{number}"), Edge("ids")), attrs=GATHER))
        return Graph.of(nodes, ["ids"], [f"y{number}" for number in range(length)])

    assert sparsify_gather(model(3)).op_counts["HashTable"] == 3
    check_linear_work(sparsify_gather, model)
