"""Narrow the arguments and results of functions with a single caller.

- A constant argument becomes a constant in the function, where it can be folded.
- Unused arguments and results are removed.
- A loop's arguments are its variables: a variable that no iteration changes may become a constant, and two
  variables that are always equal become one.

TensorFlow's own loops begin with an iteration counter and its limit. Converters to other formats
identify a loop by these two variables, so they stay.
"""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from quantkit.ir.functions import Function
from quantkit.ir.graph import LOOP_MERGES, SWITCHES, Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Tensor
from quantkit.transforms._names import FreeNames
from quantkit.transforms._placement import restore_placement
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.functions._bodies import BodyGraph
from quantkit.transforms.functions._call_sites import (
    CallSite,
    as_tuple,
    count_callers,
    find_call_sites,
    reachable_functions,
)
from quantkit.transforms.functions._effects import Effects

# Maximum size in bytes of a constant that is copied into several functions.
MAX_COPIED_BYTES = 1024


def find_equal_variables(initial: Sequence[Hashable], body: BodyGraph, num_last: int) -> dict[int, int]:
    """Return the replacement of each variable that always equals another.

    For example, a loop over a list has an iteration counter, and the list another one.

    The algorithm starts with classes of equal initial values, and splits them until each iteration
    computes equal values from equal arguments.

    Args:
        initial: keys of the initial values; equal values have equal keys.
        body: loop body.
        num_last: number of leading variables that replace others only as a last choice.
    """
    order = [*range(num_last, len(initial)), *range(num_last)]
    classes = _classify(order, initial)
    while len(set(classes.values())) < len(classes):
        graph = merge_duplicate_nodes(replace_variables(body.graph, _replacements(classes)))
        results = [graph[name] for name in body.results]
        keys = [(classes[index], result.inputs, result.controls) for index, result in enumerate(results)]
        finer = _classify(order, keys)
        if finer == classes:
            break
        classes = finer
    return _replacements(classes)


def replace_variables(graph: Graph, replacements: Mapping[int, int]) -> Graph:
    """Connect the consumers of arguments to equal arguments; outputs that forward their own argument stay."""
    edges = {graph.inputs[index]: graph.inputs[other] for index, other in replacements.items()}
    names = {old.node: new.node for old, new in edges.items()}
    pairs = zip(graph.inputs, graph.outputs, strict=False)
    outputs = [output if output == argument else edges.get(output, output) for argument, output in pairs]
    connected = graph.with_(outputs=(*outputs, *graph.outputs[len(outputs) :]))
    return connected.with_nodes(
        node.with_(
            inputs=tuple(edges.get(edge, edge) for edge in node.inputs),
            controls=tuple(dict.fromkeys(names.get(name, name) for name in node.controls)),
        )
        if any(name in names for name in node.sources)
        else node
        for node in graph.nodes.values()
    )


def _classify(order: Sequence[int], keys: Sequence[Hashable]) -> dict[int, int]:
    """Return for each index the first one in order with an equal key."""
    leaders: dict[Hashable, int] = {}
    return {index: leaders.setdefault(keys[index], index) for index in order}


def _replacements(classes: Mapping[int, int]) -> dict[int, int]:
    return {index: leader for index, leader in classes.items() if index != leader}


@dataclass
class SignatureOptimizer:
    """Optimizer of function signatures, with a record of the moved constants.

    Attributes:
        excluded: ids of constants that are not moved.
        moved: function name and value of each moved constant.
    """

    excluded: Container[int] = ()
    moved: list[tuple[str, Tensor]] = field(default_factory=list)

    def optimize(self, graph: Graph, effects: Effects) -> Outcome:
        """Move constant arguments into functions, and remove unused arguments and results."""
        program = _Program(graph, self, effects)
        callers = ["", *program.functions]
        for caller in callers:  # callers before callees: constants move inward
            program.merge_variables(caller)
            program.move_constants(caller)
        for caller in reversed(callers):  # callees before callers: a callee determines which arguments are needed
            program.remove_unused(caller)
        return Outcome(program.graph(), tuple(program.changes), tuple(program.skips))


class _Program:
    """A graph and its functions while their signatures change.

    Functions are addressed by name, the graph itself by an empty name.

    Attributes:
        functions: functions by name, callers before callees.
        changes: one line per change.
        skips: constants that stay, with reasons.
    """

    def __init__(self, graph: Graph, optimizer: SignatureOptimizer, effects: Effects) -> None:
        self._graph = graph
        self._optimizer = optimizer
        self._effects = effects
        self._num_callers = count_callers(graph)
        self.functions = reachable_functions(graph)
        self.changes: list[str] = []
        self.skips: list[Skip] = []

    def graph(self) -> Graph:
        """Return the graph with the current functions."""
        library = self._graph.library
        changed = [function for name, function in self.functions.items() if function is not library[name]]
        return self._graph.with_(library=library.with_(*changed)) if changed else self._graph

    def _body(self, caller: str) -> Graph:
        return self.functions[caller].graph if caller else self._graph

    def _call_sites(self, caller: str) -> list[CallSite]:
        """Return the calls that may change; graph inputs and outputs keep their signatures."""
        graph = self._body(caller)
        fixed = frozenset() if caller else graph.endpoint_names
        sites = find_call_sites(graph, self.functions, self._num_callers)
        return [site for site in sites if site.node.name not in fixed]

    def move_constants(self, caller: str) -> None:
        """Move the constant arguments of calls into the called functions."""
        graph = self._body(caller)
        for site in self._call_sites(caller):
            moved: dict[int, Node] = {}
            for index, edge in enumerate(site.arguments):
                node = graph[edge.node]
                if node.op != "Const" or node.controls or node.name in graph.input_names:
                    continue
                reason = self._skip_reason(graph, site, index, node)
                if reason:
                    self.skips.append(Skip(reason, node.name))
                elif reason is not None:
                    moved[index] = node
            if moved:
                names = ", ".join(dict.fromkeys(node.name for node in moved.values()))
                self.changes.append(f"{names} moved into the functions of {site.node.name} ({site.node.op})")
            for callee in site.callees if moved else ():
                function = callee.function
                self._optimizer.moved.extend((function.name, node.value) for node in moved.values())
                self.functions[function.name] = _with_constants(function, moved, callee.feeds_back)

    def _skip_reason(self, graph: Graph, site: CallSite, index: int, node: Node) -> str | None:
        """Return the reason not to move a constant, empty to move it, None if the functions do not use it."""
        users = [callee for callee in site.callees if callee.uses_argument(index)]
        if not users or not all(callee.is_invariant(index) for callee in site.callees):
            return None
        if site.kind.is_loop and _is_used(graph, Edge(site.node.name, index)):
            return f"the constant variable of loop {site.node.name} is used after the loop"
        if id(node.value) in self._optimizer.excluded:
            return f"no op in the functions of {site.node.name} can be folded with the constant"
        if len(users) + graph.is_shared(node) > 1 and node.value.num_bytes > MAX_COPIED_BYTES:
            return f"the constant has more than {MAX_COPIED_BYTES} bytes, and {site.node.name} is not its only consumer"
        return ""

    def merge_variables(self, caller: str) -> None:
        """Replace the uses of each loop variable that always equals another."""
        graph = self._body(caller)
        redirected: dict[Edge, Edge] = {}
        for site in self._call_sites(caller):
            if not site.kind.is_loop:
                continue
            initial = [_value_key(graph, edge) for edge in site.arguments]
            body = BodyGraph.of(site.callees[-1].function, graph.library, self._effects)
            name = site.node.name
            replacements = {
                index: other
                for index, other in find_equal_variables(initial, body, 2 * site.has_iteration_counter).items()
                if _is_used(graph, Edge(name, index)) or any(callee.uses_argument(index) for callee in site.callees)
            }
            redirected.update({Edge(name, index): Edge(name, other) for index, other in replacements.items()})
            for callee in site.callees if replacements else ():
                function = callee.function
                new_body = replace_variables(function.graph, replacements)
                self.functions[function.name] = replace(function, graph=new_body)
            self.changes.extend(
                f"{name} ({site.node.op}): variable {index} equals {other}" for index, other in replacements.items()
            )
        if redirected:
            self._set_body(caller, _reconnect(graph, {}, redirected))

    def remove_unused(self, caller: str) -> None:
        """Remove the arguments and results of calls that are not needed."""
        graph = self._body(caller)
        calls: dict[str, Node] = {}
        redirected: dict[Edge, Edge] = {}
        is_removable = _Removable(graph, self._effects)
        for site in self._call_sites(caller):
            arguments, results = self._find_needed(graph, site, is_removable)
            if len(arguments) == len(site.arguments) and len(results) == site.num_results:
                continue
            name = site.node.name
            calls[name] = _narrow_call(site, arguments, results)
            redirected.update({Edge(name, index): Edge(name, number) for number, index in enumerate(results)})
            self.changes.append(f"{name} ({site.node.op}) has {len(arguments)} arguments and {len(results)} results")
            for callee in site.callees:
                function = callee.function
                needed = results if callee.returns_results else range(len(function.results))
                self.functions[function.name] = _narrow_function(function, arguments, needed, self._effects)
        if calls:
            self._set_body(caller, _reconnect(graph, calls, redirected))

    def _set_body(self, caller: str, graph: Graph) -> None:
        if caller:
            self.functions[caller] = replace(self.functions[caller], graph=graph)
        else:
            self._graph = graph

    def _find_needed(self, graph: Graph, site: CallSite, is_removable: "_Removable") -> tuple[list[int], list[int]]:
        """Return the indexes of the arguments and results that a call needs."""
        dependencies = [_Dependencies.of(callee.function, self._effects) for callee in site.callees]
        results = [index for index in range(site.num_results) if _is_used(graph, Edge(site.node.name, index))]
        mask = sum(1 << index for index, edge in enumerate(site.arguments) if not is_removable(edge))
        for needs, callee in zip(dependencies, site.callees, strict=True):
            mask |= needs.always
            if not callee.returns_results:  # the result of a loop condition
                mask |= _union(needs.results)
            elif not callee.feeds_back:
                mask |= _union(needs.results[index] for index in results)
        if site.has_iteration_counter:
            mask |= 0b11
        if site.kind.is_loop:
            mask = _close_over_iterations(mask | sum(1 << index for index in results) or 1, dependencies[-1].results)
        arguments = [index for index in range(len(site.arguments)) if mask >> index & 1]
        return arguments, arguments if site.kind.is_loop else results


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _value_key(graph: Graph, edge: Edge) -> Hashable:
    """Return a key that is equal for edges with equal values."""
    value = graph.constant_of(edge) if edge.node not in graph.input_names else None
    return edge if value is None or not value.num_bytes else (value.dtype, value.shape, value.digest)


def _is_used(graph: Graph, edge: Edge) -> bool:
    return edge in graph.uses or edge in graph.outputs


def _close_over_iterations(mask: int, results: Sequence[int]) -> int:
    """Add the variables on which the next values of needed variables depend, transitively."""
    done = 0
    while rest := mask & ~done:
        lowest = rest & -rest
        done |= lowest
        mask |= results[lowest.bit_length() - 1]
    return mask


class _Removable:
    """Predicate of edges whose use as an argument may be removed: no upstream node has side effects.

    Args:
        graph: graph of the edges.
        effects: side effects of functions.
    """

    def __init__(self, graph: Graph, effects: Effects) -> None:
        self._graph = graph
        self._effects = effects

    def __call__(self, edge: Edge) -> bool:
        node = self._graph[edge.node]
        return (node.is_constant and not node.controls) or edge.node not in self._required

    @cached_property
    def _required(self) -> Container[str]:
        # A dead input keeps a call from running, so in graphs with Switches every argument stays.
        if not SWITCHES.isdisjoint(self._graph.op_counts):
            return self._graph.nodes
        return self._effects.find_effects(self._graph)


@dataclass(frozen=True)
class _Dependencies:
    """Arguments that a function needs, as bit masks.

    Attributes:
        results: arguments that each result depends on.
        always: arguments that nodes with side effects and control outputs depend on.
    """

    results: tuple[int, ...]
    always: int

    @classmethod
    def of(cls, function: Function[Graph], effects: Effects) -> "_Dependencies":
        graph = function.graph
        masks = {edge.node: 1 << index for index, edge in enumerate(graph.inputs)}
        if not LOOP_MERGES.isdisjoint(graph.op_counts):  # a value of a loop may depend on every argument
            masks = dict.fromkeys(graph.nodes, (1 << len(graph.inputs)) - 1)
        for name in graph.order:
            if name not in masks:
                masks[name] = _union(masks[source] for source in graph[name].sources)
        always = _union(masks[name] for name in _always_run(function, effects))
        return cls(tuple(masks[edge.node] for edge in graph.outputs), always)


def _always_run(function: Function[Graph], effects: Effects) -> list[str]:
    """Return the nodes that run with every call."""
    with_effect = [name for name, node in function.graph.nodes.items() if effects.has_effect(node)]
    return [*function.controls.values(), *with_effect]


def _with_constants(function: Function[Graph], moved: Mapping[int, Node], feeds_back: bool) -> Function[Graph]:
    """Replace arguments by constants in the body of a function; a loop body still returns the arguments."""
    graph = function.graph
    names = FreeNames(graph)
    constants: dict[str, Node] = {}
    for index, node in moved.items():
        argument = graph.inputs[index].node
        constants[argument] = constant(names.free(node.name), node.value).with_(device=node.device)

    def replace_edge(edge: Edge) -> Edge:
        return Edge(constants[edge.node].name) if edge.node in constants else edge

    def replace_inputs(node: Node) -> Node:
        if not any(name in constants for name in node.sources):
            return node
        controls = tuple(name for name in node.controls if name not in constants)
        return node.with_(inputs=tuple(map(replace_edge, node.inputs)), controls=controls)

    outputs = tuple(
        edge if feeds_back and index in moved else replace_edge(edge) for index, edge in enumerate(graph.outputs)
    )
    nodes = [*map(replace_inputs, graph.nodes.values()), *constants.values()]
    used = {edge.node for node in nodes for edge in node.inputs} | {edge.node for edge in outputs}
    unused = {node.name for node in constants.values()} - used
    body = graph.with_nodes(node for node in nodes if node.name not in unused).with_(outputs=outputs)
    return replace(function, graph=restore_placement(graph, body))


def _narrow_function(
    function: Function[Graph], arguments: Sequence[int], results: Sequence[int], effects: Effects
) -> Function[Graph]:
    """Return a function with fewer arguments and results, without the nodes that it no longer needs."""
    graph = function.graph
    all_results = list(function.results.items())
    inputs = tuple(graph.inputs[index] for index in arguments)
    body = graph.with_(inputs=inputs, outputs=tuple(graph.outputs[index] for index in results))
    always_run = (Edge(name) for name in _always_run(function, effects))
    needed = body.with_(outputs=(*body.outputs, *always_run, *inputs)).reachable(stop_at_inputs=False)
    indexes = {edge.node: number for number, edge in enumerate(inputs)}
    nodes = (
        node.with_attrs(index=indexes[name]) if name in indexes else node
        for name, node in body.nodes.items()
        if name in needed
    )
    attrs = dict(function.attrs)
    shapes = attrs.get("_input_shapes")
    if isinstance(shapes, tuple) and len(shapes) == len(graph.inputs):
        attrs["_input_shapes"] = tuple(shapes[index] for index in arguments)
    return replace(
        function,
        graph=restore_placement(graph, body.with_nodes(nodes)),
        results=dict(all_results[index] for index in results),
        attrs=attrs,
    )


def _narrow_call(site: CallSite, arguments: Sequence[int], results: Sequence[int]) -> Node:
    """Return the calling node with fewer arguments and results."""
    node, kind = site.node, site.kind
    inputs = [*range(kind.first_argument), *(kind.first_argument + index for index in arguments)]
    attrs: dict[str, Attr] = dict(node.attrs)
    attrs[kind.argument_types] = tuple(as_tuple(attrs[kind.argument_types])[index] for index in arguments)
    if kind.result_types != kind.argument_types:
        attrs[kind.result_types] = tuple(as_tuple(attrs[kind.result_types])[index] for index in results)
    for key in ("output_shapes", "_output_shapes"):
        shapes = as_tuple(attrs.get(key))
        if shapes and len(shapes) == site.num_results:
            attrs[key] = tuple(shapes[index] for index in results)
    if attrs.get("_num_original_outputs") == site.num_results:
        attrs["_num_original_outputs"] = len(results)
    if "_read_only_resource_inputs" in attrs:
        read_only = as_tuple(attrs["_read_only_resource_inputs"])
        attrs["_read_only_resource_inputs"] = tuple(inputs.index(index) for index in read_only if index in inputs)
    return node.with_(inputs=tuple(node.inputs[index] for index in inputs), attrs=attrs)


def _reconnect(graph: Graph, calls: Mapping[str, Node], redirected: Mapping[Edge, Edge]) -> Graph:
    """Replace calls, and connect the consumers of their results to the new indexes."""

    def reconnect_node(old: Node) -> Node:
        node = calls.get(old.name, old)
        if not any(edge in redirected for edge in node.inputs):
            return node
        return node.with_(inputs=tuple(redirected.get(edge, edge) for edge in node.inputs))

    outputs = tuple(redirected.get(edge, edge) for edge in graph.outputs)
    return graph.with_nodes(map(reconnect_node, graph.nodes.values())).with_(outputs=outputs)
