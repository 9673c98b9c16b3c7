"""Classic mode from the command line, and from Python."""

from pathlib import Path

import pytest
from classic_nodes import const, node, placeholder
from command_line import main

from quantkit.compat import parse_classic, run_classic
from quantkit.compat.transforms import CLASSIC, classic_transform, find_classic
from quantkit.errors import GraphError, RecipeError
from quantkit.formats import load, save
from quantkit.ir.graph import Graph, Versions
from quantkit.transforms import registry

# All names in the registry of the last release of the original.
NAMES = """
    add_default_attributes backport_concatv2 backport_tensor_array_v3 flatten_atrous_conv fold_batch_norms
    fold_constants fold_old_batch_norms freeze_requantization_ranges fuse_pad_and_conv fuse_resize_and_conv
    fuse_resize_pad_and_conv inline_partitionedcall
    insert_logging merge_duplicate_nodes obfuscate_names quantize_nodes quantize_weights
    remove_attribute remove_control_dependencies remove_device remove_nodes rename_attribute rename_node rename_op
    round_weights set_device sort_by_execution_order sparsify_gather strip_unused_nodes
"""
NODES = (placeholder("x", 2), const("k", [1, 2]), node("a", "Identity", "x", "^k"), node("y", "Add", "a:0", "k"))


@pytest.fixture
def graph() -> Graph:
    return Graph.of(NODES, ["x"], ["y"], versions=Versions(producer=21))


def run_text(transforms: str, graph: Graph) -> Graph:
    return run_classic(parse_classic(transforms), graph)[0]


def run_command(folder: Path, graph: Graph, *arguments: str) -> tuple[int, Path]:
    save(graph, folder / "in.pb")
    target = folder / "out.pb"
    return main(
        ["transform", f"--in_graph={folder / 'in.pb'}", f"--out_graph={target}", "--classic", *arguments]
    ), target


def test_all_names_of_the_original_are_registered() -> None:
    names = set(NAMES.split())
    assert {find_classic(name).name for name in names} == names
    assert names - set(CLASSIC) == {"remove_attribute", "remove_device", "rename_op"}
    assert names >= set(CLASSIC)
    assert names <= set(registry.REGISTRY)


def test_endpoint_names_are_not_resolved(graph: Graph, tmp_path: Path) -> None:
    arguments = ("--inputs=x:0,nope", "--outputs=y", "--transforms=remove_nodes(op=Identity) strip_unused_nodes")
    status, target = run_command(tmp_path, graph, *arguments)
    assert status == 0
    after = load(target)
    assert list(after.nodes) == ["k", "x", "y"]
    assert after["y"].written_inputs == ("x", "k")
    assert after.versions == Versions()


def test_error_messages_equal_the_original(graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for transforms, message in (
        ("remove_device,", "Failed to parse --transform argument, error was Looking for transform name, but found ,"),
        (" ", "You must specify at least one transform."),
        ("nope", "Transform 'nope' not recognized."),
        ("remove_nodes", "remove_nodes expects at least one 'op'argument, e.g. remove_nodes(op=Identity)"),
    ):
        status, target = run_command(tmp_path, graph, f"--transforms={transforms}", "--inputs=x", "--outputs=y")
        assert status != 0
        assert message in capsys.readouterr().err
        assert not target.exists()


def test_ignored_errors_are_printed(graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (
        ("remove_nodes", "remove_nodes expects at least one 'op'"),
        ("rename_op", "rename_op expects exactly one 'old_op_name'"),
        ("remove_attribute", "remove_attribute expects exactly one 'attribute_name'"),
    ):
        arguments = (f"--transforms={name}(ignore_errors=true)", "--inputs=x", "--outputs=y")
        assert run_command(tmp_path, graph, *arguments)[0] == 0
        assert f"{name}: Ignoring error {message}" in capsys.readouterr().err


def test_verify_checks_classic_steps(graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--inputs=x", "--outputs=y", "--verify", "--runtime=reference")
    assert run_command(tmp_path, graph, *arguments, "--transforms=remove_nodes(op=Identity) fold_constants")[0] == 0
    assert run_command(tmp_path, graph, *arguments, "--transforms=rename_op(old_op_name=Add,new_op_name=Sub)")[0] == 1
    assert "rename_op changes output 'y'" in capsys.readouterr().err


def test_python_interface_equals_the_command(graph: Graph) -> None:
    after = run_text("remove_nodes(op=Identity) merge_duplicate_nodes", graph)
    assert after.versions == Versions()
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    assert graph.versions == Versions(producer=21)


def test_quantkit_transforms_run_between_classic_transforms(graph: Graph) -> None:
    after = run_text("remove_nodes(op=Identity) simplify_arithmetic(unknown=1) sort_by_execution_order", graph)
    assert "Identity" not in [node.op for node in after.nodes.values()]


def test_recipe_may_be_empty() -> None:
    graph = Graph.of(NODES)
    assert run_text("  ", graph) == graph


def test_name_is_searched_in_both_registries() -> None:
    assert find_classic("fold_pads").name == "fold_pads"
    assert find_classic("fold_batch_norms") is CLASSIC["fold_batch_norms"]
    with pytest.raises(RecipeError, match="Transform 'fold_batch_norm' not recognized") as error:
        find_classic("fold_batch_norm")
    assert "fold_batch_norms" in error.value.hint


def test_duplicate_classic_name_is_an_error() -> None:
    with pytest.raises(RecipeError, match="two classic transforms are named 'set_device'"):
        classic_transform()(CLASSIC["set_device"].function)


def test_graph_with_duplicate_names_is_not_written() -> None:
    twice = (placeholder("x", 1, 4, 4, 2), node("a", "Relu", "x"))
    graph = Graph.of(twice, ["x"], ["a"])

    @classic_transform()
    def double(nodes, context):  # type: ignore[no-untyped-def]
        return [*nodes, *nodes]

    try:
        with pytest.raises(GraphError, match="two nodes are named 'x'"):
            run_text("double", graph)
    finally:
        del CLASSIC["double"]


def test_onnx_graphs_are_rejected() -> None:
    graph = Graph.of([node("a", "Relu")], dialect="onnx")
    with pytest.raises(GraphError, match="classic mode supports TensorFlow graphs only, not onnx graphs"):
        run_text("remove_device", graph)


def test_input_spellings_are_kept() -> None:
    nodes = (placeholder("x", 2), node("a", "Add", "^x", "x:0", "x"))
    after = run_text("remove_device", Graph.of(nodes, ["x"], ["a"]))
    assert after["a"].written_inputs == ("^x", "x:0", "x")
    assert after["a"].with_input(0, "y").written_inputs == ("y", "x", "^x")
