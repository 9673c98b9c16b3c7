"""Drop functions that nothing calls."""

from quantkit.errors import QuantkitError
from quantkit.formats.graphdef.function_library import names_in
from quantkit.ir.functions import function_names
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.registry import transform


@transform
def remove_unused_functions(graph: Graph) -> Outcome:
    """Keep the functions that the nodes need, and those that these need.

    Before:  y = Neg(x)      function double(sum = s): s = Add(a, a)
    After:   y = Neg(x)

    Options: none. Run it after strip_unused_nodes, inline_functions or remove_dead_branches.

    A function that is kept keeps the function that computes its gradient.

    Skips when it finds a function that is damaged: all that the library holds might be needed there.

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
    stack = [name for node in graph.nodes.values() for name in (node.op, *function_names(node.attrs))]
    while stack:
        name = stack.pop()
        if name in needed or name not in library:
            continue
        needed.add(name)
        try:
            stack.extend(names_in(library, name))
        except QuantkitError as error:
            return Outcome(graph, (), (Skip(f"it may need any function of the library: {error.message}", name),))
        if name in library.gradients:
            stack.append(library.gradients[name])
    unused = [name for name in library if name not in needed]
    if not unused:
        return Outcome(graph)
    changes = tuple(f"function {name} is not called" for name in unused)
    return Outcome(graph.with_(library=library.without(unused)), changes)
