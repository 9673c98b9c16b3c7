"""Remove functions without callers."""

from quantkit.errors import QuantkitError
from quantkit.formats.graphdef.function_library import names_in
from quantkit.ir.functions import function_names
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.registry import transform


@transform
def remove_unused_functions(graph: Graph) -> Outcome:
    """Remove the functions of the library that no node of the graph calls, directly or indirectly.

    Before:  y = Neg(x)      function double(sum = s): s = Add(a, a)
    After:   y = Neg(x)

    Options: none. Run it after strip_unused_nodes, inline_functions or remove_dead_branches.

    The gradient function of a used function stays.

    Skips the library if a used function is damaged: it may call any function.

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
    used: set[str] = set()
    stack = [name for node in graph.nodes.values() for name in (node.op, *function_names(node.attrs))]
    while stack:
        name = stack.pop()
        if name in used or name not in library:
            continue
        used.add(name)
        try:
            stack.extend(names_in(library, name))
        except QuantkitError as error:
            reason = f"the function is damaged and may call any other: {error.message}"
            return Outcome(graph, (), (Skip(reason, name),))
        if name in library.gradients:
            stack.append(library.gradients[name])
    unused = [name for name in library if name not in used]
    if not unused:
        return Outcome(graph)
    changes = tuple(f"function {name} has no caller" for name in unused)
    return Outcome(graph.with_(library=library.without(unused)), changes)
