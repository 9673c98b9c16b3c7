"""Division of a random map, so that the results of its fixed part can be cached.

map(decode and flip)   ==   map(decode) -> map(flip)
"""

from dataclasses import replace

from quantkit.errors import QuantkitError
from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.names import unused_name
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.pipelines.bridge import infer_specs
from quantkit.pipelines.python_lines import function_name
from quantkit.pipelines.stages import (
    MAPS,
    argument_shapes,
    captured_inputs,
    function_of,
    stages_of,
)
from quantkit.pipelines.state import depends_on_calls, is_pure


def split_random_map(graph: Graph) -> Outcome:
    """Divide the random map that is nearest to the source.

    Before:  map(f)
    After:   map(fixed part of f) -> map(random part of f)

    The random part has the random ops, those with state, and the ops after them. Skips functions with no other op
    on the components of an element.
    """
    stages = [stage for stage in stages_of(graph) if stage.op in MAPS and function_of(graph, stage) is not None]
    for stage in reversed(stages):
        function = function_of(graph, stage)
        if function is None or is_pure(graph, function):
            continue
        late = _late_nodes(graph, function)
        first = function.graph[next(name for name in function.graph.order if name in late)]
        try:
            divided = _divide(graph, stage, function, late)
        except QuantkitError as error:
            return Outcome(graph, (), (Skip(error.message, stage.name),))
        if divided is None:
            return Outcome(graph, (), (Skip(f"no op before {first.name} ({first.op})", stage.name),))
        location = first.name.partition("/")[0]
        return Outcome(divided, (f"{function_name(function.name)} divided before {location} ({first.op})",))
    return Outcome(graph, ())


def _late_nodes(graph: Graph, function: Function[Graph]) -> set[str]:
    """Return the nodes that are random or have state, and those after them."""
    late: set[str] = set()
    for name in function.graph.order:
        node = function.graph[name]
        if depends_on_calls(graph, node) or not late.isdisjoint(node.sources):
            late.add(name)
    return late


def _independent_nodes(body: Graph, late: set[str]) -> set[str]:
    """Return the nodes whose values are the same for all elements: both parts compute them."""
    independent: set[str] = set()
    for name in body.order:
        if name not in late and body[name].op != "_Arg" and independent.issuperset(body[name].sources):
            independent.add(name)
    return independent


def _divide(graph: Graph, stage: Node, function: Function[Graph], late: set[str]) -> Graph | None:
    """Return the pipeline with two maps; None if the fixed part has no ops."""
    body = function.graph
    captures = captured_inputs(stage)
    arguments = [edge.node for edge in body.inputs]
    captured = set(arguments[len(arguments) - len(captures) :])
    random_nodes = late | captured | _independent_nodes(body, late)
    used = [edge for name in body.order if name in late for edge in body[name].inputs]
    crossing = tuple(dict.fromkeys(edge for edge in (*used, *body.outputs) if edge.node not in random_nodes))
    fixed_ops = {node.op for name, node in body.nodes.items() if name not in random_nodes}
    if not crossing or fixed_ops <= {"_Arg", "Identity", "NoOp"}:
        return None
    specs = infer_specs(function, graph, argument_shapes(graph, stage, function))
    shapes, types = zip(*(specs[edge] for edge in crossing), strict=True)
    if {DType.VARIANT, DType.RESOURCE} & set(types):
        return None
    passed = dict(zip(crossing, types, strict=True))
    fixed = _fixed_part(function, late, passed)
    random = _random_part(function, late, random_nodes, passed, [name for name in arguments if name in captured])
    name = unused_name(graph, f"{stage.name}/fixed")
    first = stage.with_(name=name).with_attrs(f=FunctionName(fixed.name), output_types=types, output_shapes=shapes)
    second = stage.with_(inputs=(Edge(name), *stage.inputs[1:])).with_attrs(f=FunctionName(random.name))
    draft = Draft(graph)
    draft.append(first)
    draft.replace(stage.name, second)
    after = draft.graph()
    return after.with_(library=after.library.with_(fixed, random))


def _fixed_part(function: Function[Graph], late: set[str], crossing: dict[Edge, DType]) -> Function[Graph]:
    nodes = [node.with_attrs(_class=None) for name, node in function.graph.nodes.items() if name not in late]
    results: dict[str, DType | None] = {f"fixed_{index}": dtype for index, dtype in enumerate(crossing.values())}
    controls = {key: name for key, name in function.controls.items() if name not in late}
    graph = Graph.of(nodes, function.graph.inputs, tuple(crossing))
    return Function(f"{function.name}__fixed", graph, results, controls, function.attrs)


def _random_part(
    function: Function[Graph], late: set[str], random_nodes: set[str], crossing: dict[Edge, DType], captured: list[str]
) -> Function[Graph]:
    body = function.graph
    names = [unused_name(body, f"fixed_{index}") for index in range(len(crossing))]
    nodes = [Node(name, "_Arg", attrs={"T": dtype}) for name, dtype in zip(names, crossing.values(), strict=True)]
    nodes += [body[name] for name in captured]
    nodes = [node.with_attrs(index=index) for index, node in enumerate(nodes)]
    inputs = [Edge(node.name) for node in nodes]
    replaced = dict(zip(crossing, inputs, strict=False))
    for name, node in body.nodes.items():
        if name in random_nodes and name not in captured:
            edges = tuple(replaced.get(edge, edge) for edge in node.inputs)
            before = tuple(each for each in node.controls if each in random_nodes)
            nodes.append(node.with_(inputs=edges, controls=before).with_attrs(_class=None))
    graph = Graph.of(nodes, inputs, tuple(replaced.get(edge, edge) for edge in body.outputs))
    controls = {key: name for key, name in function.controls.items() if name in late}
    return replace(function, name=f"{function.name}__random", graph=graph, controls=controls, extra=b"")
