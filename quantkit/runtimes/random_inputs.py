"""Seeded random inputs: shapes that the weights of a graph allow, and values in the domain of its ops."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import TypeVar

import numpy as np

from quantkit.errors import GraphError, UsageError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.limits import check_size
from quantkit.ops.input_sizes import BATCH_SIZES, choose_input_shapes
from quantkit.ops.table import Fact, find_ops
from quantkit.runtimes.session import TensorInfo

# Least value and end of random integers other than pixels, in the order in which they are tried. Most are ids of an
# embedding or masks, for which 0 and 1 are valid; divisors and sizes must not be 0.
INTEGERS = ((0, 2), (1, 3), (1, 2), (0, 1))
_PIXELS = (DType.UINT8, DType.QUINT8)
# Comparisons whose result may select a branch, and ops that keep the value of a single element.
COMPARISONS = find_ops(Fact.COMPARISON)
KEEPING_OPS = find_ops(Fact.MOVEMENT) - find_ops(Fact.CONCAT) | {"Cast"}

_Result = TypeVar("_Result")
Sizes = Mapping[str, tuple[int, ...]]


def random_values(
    random: np.random.Generator,
    info: TensorInfo,
    sizes: tuple[int, ...],
    bounds: tuple[float, float] = (-1, 1),
    integers: tuple[int, int] = INTEGERS[0],
) -> Array:
    """Return random values: floats in ``bounds``, uint8 values in 0..255, other integers in ``integers``.

    Args:
        random: generator of the values.
        info: input that takes the values.
        sizes: shape of the array.
        bounds: least value and end of floats.
        integers: least value and end of integers.

    Raises:
        UsageError: the input takes strings, resources or variants.
        GraphError: the values are larger than the limit of computed tensors.
    """
    if info.dtype in (DType.STRING, DType.RESOURCE, DType.VARIANT):
        raise _not_random(info, f"{info.dtype.value}s")
    check_size(f"random values of input {info.name!r} of shape {info.shape} have", 8 * prod(sizes))
    if info.dtype.is_float:
        return random.uniform(*bounds, sizes).astype(info.dtype.numpy)
    low, high = (0, 256) if info.dtype in _PIXELS else INTEGERS[0] if info.dtype is DType.BOOL else integers
    return random.integers(low, high, sizes).astype(info.dtype.numpy)


def random_arrays(
    inputs: Sequence[TensorInfo],
    seed: int = 0,
    *,
    feeds: Mapping[str, Array] | None = None,
    sizes: Sizes | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    integers: tuple[int, int] = INTEGERS[0],
) -> dict[str, Array]:
    """Return an array for each input.

    Args:
        inputs: inputs of the session.
        seed: seed of the random numbers.
        feeds: arrays of the inputs that are not random.
        sizes: shapes by input name; unknown sizes of other inputs are 1.
        bounds: range of the values of float inputs by name, in place of [-1, 1).
        integers: least value and end of integers.

    Raises:
        UsageError: an input takes no numbers, or its rank is unknown.
        GraphError: the values of an input are larger than the limit of computed tensors.
    """
    random = np.random.default_rng(seed)
    result = dict[str, Array]()
    for info in inputs:
        if feeds and info.name in feeds:
            result[info.name] = feeds[info.name]
            continue
        if info.shape.dims is None:
            raise _not_random(info, "a tensor of unknown rank")
        shape = (sizes or {}).get(info.name) or tuple(size or 1 for size in info.shape.dims)
        result[info.name] = random_values(random, info, shape, (bounds or {}).get(info.name, (-1, 1)), integers)
    return result


def find_compared_integers(graph: Graph) -> dict[Edge, tuple[int, ...]]:
    """Return the constants that a graph compares single integers of its inputs with: each may select a branch."""
    values_of: dict[Edge, dict[int, None]] = {}
    for node in graph.nodes.values():
        if node.op not in COMPARISONS or len(node.inputs) < 2:
            continue
        for edge, other in (node.inputs[:2], node.inputs[1::-1]):
            constant = graph.constant_of(other)
            if constant is None or constant.num_elements != 1 or constant.dtype.is_float:
                continue
            while edge not in graph.inputs and graph[edge.node].op in KEEPING_OPS and graph[edge.node].inputs:
                edge = graph[edge.node].inputs[0]
            if edge in graph.inputs:
                values_of.setdefault(edge, {})[int(constant.array.reshape(-1)[0])] = None
    return {edge: tuple(values) for edge, values in values_of.items()}


def find_random_inputs(
    graph: Graph,
    inputs: Sequence[TensorInfo],
    run: Callable[[Sizes, tuple[int, int]], _Result],
    feeds: Mapping[str, Array] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> _Result:
    """Call a function with shapes and a range of integers until the graph accepts them, and return its result.

    Args:
        graph: graph that is run.
        inputs: inputs of the session.
        run: function that runs the graph on such inputs.
        feeds: arrays of the inputs that are not random.
        batch_sizes: sizes of a dynamic batch, in the order in which they are tried.

    Raises:
        GraphError: the graph rejects all of them.
    """
    feed_sizes = {name: array.shape for name, array in (feeds or {}).items()}
    find = partial(onnx.edge_of, graph) if graph.dialect == onnx.DIALECT else graph.edge
    infos = {find(info.name): info for info in inputs}
    shapes = {edge: Shape(feed_sizes.get(info.name, info.shape.dims)) for edge, info in infos.items()}
    random = [info for info in inputs if info.name not in feed_sizes]
    has_integers = any(not info.dtype.is_float and info.dtype not in (*_PIXELS, DType.BOOL) for info in random)
    failure: GraphError | None = None
    candidates = choose_input_shapes(graph, shapes, batch_sizes)
    for candidate, integers in product(candidates, INTEGERS[: None if has_integers else 1]):
        sizes = {infos[edge].name: shape.sizes for edge, shape in candidate.items() if shape.is_known}
        try:
            return run(sizes, integers)
        except GraphError as error:
            failure = failure or error
    assert failure is not None
    dynamic = [info for info in random if not info.shape.is_known]
    if not random:
        raise failure
    kind = "integers" if has_integers else "values"
    subject = f"no sizes of the inputs {', '.join(info.name for info in dynamic)} fit" if dynamic else f"no {kind} fit"
    example = "".join(f" --input-shape {info.name}:{str(info.shape).replace('?', '8')}" for info in dynamic)
    choice = f", or choose the sizes: quantkit transform{example}" if dynamic else ""
    raise GraphError(f"{subject} as random inputs: {failure.message}", hint=f"give samples: --data FILE.npz{choice}")


def _not_random(info: TensorInfo, kind: str) -> UsageError:
    return UsageError(
        f"cannot generate random values for input {info.name!r}, which takes {kind}",
        hint="give arrays (--data FILE.npz), or choose other --inputs, for example after a decoder",
    )
