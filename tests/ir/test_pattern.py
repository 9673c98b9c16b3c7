from quantkit.ir.graph import Graph
from quantkit.ir.pattern import Match, any_, commutative, const, match, op
from quantkit.ir.text import from_text

GRAPH = from_text("""
    inputs: x, fed
    x = Placeholder()
    w = Const[2x2]()
    s = Const([1.0, 2.0])
    fed = Const(1.0)
    split = Split(s, x, num_split=2)
    conv = Conv2D(x, w)
    scaled = Mul(conv, s)
    turned = Mul(s, conv)
    squared = Mul(conv, conv)
    gated = Mul(conv, fed)
    halves = Mul(split:1, s)
""")


def names(result: Match | None) -> dict[str, str]:
    return {} if result is None else {key: node.name for key, node in result.names.items()}


def test_names_are_bound_and_the_head_is_the_root() -> None:
    pattern = op("Mul")(op("Conv2D|MatMul", "layer")(any_("x"), const("weights")), const("scale"))
    bound = {"layer": "conv", "x": "x", "weights": "w", "scale": "s", "root": "scaled"}
    assert names(match(pattern, GRAPH, GRAPH["scaled"])) == bound


def test_inputs_match_in_order_unless_commutative() -> None:
    inputs = (op("Conv2D", "layer"), const("scale"))
    assert match(op("Mul")(*inputs), GRAPH, GRAPH["turned"]) is None
    assert names(match(commutative("Mul")(*inputs), GRAPH, GRAPH["turned"])) == {
        "layer": "conv",
        "scale": "s",
        "root": "turned",
    }


def test_failed_order_binds_no_names() -> None:
    pattern = commutative("Mul")(any_("first"), op("Conv2D", "layer"))
    assert names(match(pattern, GRAPH, GRAPH["turned"])) == {"first": "s", "layer": "conv", "root": "turned"}
    assert names(match(pattern, GRAPH, GRAPH["scaled"])) == {"first": "s", "layer": "conv", "root": "scaled"}


def test_one_name_means_one_node() -> None:
    pattern = op("Mul")(any_("y"), any_("y"))
    assert match(pattern, GRAPH, GRAPH["squared"])
    assert not match(pattern, GRAPH, GRAPH["scaled"])


def test_constant_that_is_a_graph_input_does_not_match() -> None:
    assert not match(op("Mul")(any_(), const()), GRAPH, GRAPH["gated"])


def test_only_any_follows_other_ports_than_the_first() -> None:
    assert match(op("Mul")(any_(), const()), GRAPH, GRAPH["halves"])
    assert not match(op("Mul")(op("Split"), const()), GRAPH, GRAPH["halves"])


def test_the_number_of_inputs_counts_only_where_inputs_are_given() -> None:
    assert match(op("Mul"), GRAPH, GRAPH["scaled"])
    assert not match(op("Mul")(any_()), GRAPH, GRAPH["scaled"])


def test_an_input_that_does_not_exist_does_not_match() -> None:
    broken = from_text("a = Relu(nowhere)")
    assert isinstance(broken, Graph)
    assert not match(op("Relu")(any_()), broken, broken["a"])
