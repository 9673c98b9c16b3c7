"""Drop functions that nothing calls."""

from collections.abc import Iterable

from quantkit.errors import QuantkitError
from quantkit.ir.functions import called
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.registry import transform


@transform
def remove_unused_functions(graph: Graph) -> Outcome:
    """Keep the functions that the nodes need, and those that these need.

    Before:  y = Neg(x)      function double(sum = s): s = Add(a, a)
    After:   y = Neg(x)

    Options: none. Run it after strip_unused_nodes, inline_functions or remove_dead_branches.

    A function that is kept keeps the function that computes its gradient.

    Declines when it finds a function that can not be opened: all that the library holds might be needed there.

    Example:
        remove_unused_functions
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x)
        function double(sum = s)
        a = _Arg(T=float, index=0)
        s = Add(a, a)
        end
    """
    library = graph.library
    needed: set[str] = set()
    stack = _names(graph.nodes.values())
    while stack:
        name = stack.pop()
        if name in needed or name not in library:
            continue
        needed.add(name)
        try:
            stack.extend(_names(library[name].graph.nodes.values()))
        except QuantkitError as error:
            return Outcome(graph, (), (Skip(f"it may need any function of the library: {error.message}", name),))
        if name in library.gradients:
            stack.append(library.gradients[name])
    unused = [name for name in library if name not in needed]
    if not unused:
        return Outcome(graph)
    changes = tuple(f"function {name} is not called" for name in unused)
    return Outcome(graph.with_(library=library.without(unused)), changes)


def _names(nodes: Iterable[Node]) -> list[str]:
    """What may be names of functions: those that attributes hold, and ops."""
    return [name for node in nodes for name in (*called(node.attrs), node.op)]
