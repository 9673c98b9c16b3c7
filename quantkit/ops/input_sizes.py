"""Sizes for the dynamic dimensions of inputs: those that weights require, else small ones.

Each unknown size is a prime at first, which shape inference carries to the nodes with weights:

    x: ?x?x?  ->  Transpose: 16417x16411x16421  ->  MatMul with 64x32  ->  16421 stands for 64
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, count, product
from math import prod

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.onnx.shapes import RULES
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.shape_rules import Dims

# Sizes of a batch, and of the other dimensions that no weights determine, in the order in which they are tried. Many
# networks need images of a minimum size; an input of the rank of images can be weights, for which only 1 may fit.
BATCH_SIZES = (2, 1)
SIZES, IMAGE_SIZES = (8, 1, 32, 64, 128, 256, 512), (32, 64, 256, 1, 512)
IMAGE_RANK = 4
# Sizes that exporters fix although they declare them as dynamic: those of training images, and constants of the graph.
TRAINING_SIZES = (224, 640, 320, 384, 416, 299, 1024)
MAX_FIXED, MAX_CONSTANT_ELEMENTS, MAX_SIZE = 16, 8, 1 << 12
# Maximum number of elements of the inputs.
MAX_ELEMENTS = 1 << 24
# Maximum number of nodes, over all tried sizes, whose shapes are inferred to find sizes that a graph fixes: about 5 s.
MAX_NODES = 200_000
# Maximum number of axes that may be a batch although they are not the first.
MAX_SUBSET = 2
_BROADCAST = {*(op for op, rule in RULES.items() if rule is RULES["Add"]), "AddV2", "RealDiv", "Maximum", "Minimum"}
_STATES = (pair for state in (5, 6) for pair in ((0, 1, state, 1), (1, 0, state, 0), (2, 2, state, 2)))
# Input index and axis of a size, and of another one that is the same.
_SAME_SIZES: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    "ConvTranspose": ((0, 1, 1, 0),),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), ((0, 1, 1, 0),)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), ((0, -1, 1, -1),)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ((0, 2, 1, 2), *_STATES)),
    **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative"), ((0, 3, 1, 2),)),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "BiasAdd"), ((0, -1, 1, 0),)),
}

# An input and the index of one of its axes.
_Axis = tuple[Edge, int]


def choose_input_shapes(
    graph: Graph, shapes: Mapping[Edge, Shape], batch_sizes: Sequence[int] = BATCH_SIZES
) -> Iterator[Mapping[Edge, Shape]]:
    """Yield shapes of the inputs that agree with the weights of a graph, the best first.

    Args:
        graph: graph of either dialect.
        shapes: shapes of the inputs of known rank.
        batch_sizes: sizes of a batch, in the order in which they are tried.

    Raises:
        GraphError: the nodes form a cycle.
    """
    rejected = list[Mapping[Edge, Shape]]()
    for candidate, is_consistent, is_probable in _candidates(graph, shapes, batch_sizes):
        if is_consistent:
            yield candidate
        elif is_probable:
            rejected.append(candidate)
    yield from rejected


def find_fixed_sizes(
    graph: Graph, shapes: Mapping[Edge, Shape], *, of_weights: bool = False, max_nodes: int = MAX_NODES
) -> dict[Edge, Shape]:
    """Return the inputs with sizes that are dynamic by declaration, although the graph accepts only one value.

    Args:
        graph: graph of either dialect.
        shapes: shapes of the inputs of known rank.
        of_weights: return only the sizes that weights require, such as a number of channels.
        max_nodes: number of nodes whose shapes may be inferred; if more are needed, only the sizes that weights
            require are returned.

    Returns:
        Shapes with these sizes and with the declared ones.

    Raises:
        GraphError: the nodes form a cycle.
    """
    required = _required_sizes(graph, shapes, of_weights=of_weights)
    fixed = {axis: size for axis, size in required.items() if isinstance(size, int)}
    tried, accepted = list[dict[_Axis, int]](), list[dict[_Axis, int]]()
    for candidate, is_consistent, _ in () if of_weights else _candidates(graph, shapes, BATCH_SIZES):
        max_nodes -= len(graph)
        if (is_consistent and not tried) or max_nodes < 0:
            accepted.clear()
            break
        tried.append({(edge, axis): size for edge, shape in candidate.items() for axis, size in enumerate(shape.sizes)})
        accepted += tried[-1:] if is_consistent else ()
    fixed |= {
        axis: size
        for axis, size in (accepted[0].items() if accepted else ())
        if any(sizes[axis] != size for sizes in tried) and all(sizes[axis] == size for sizes in accepted)
    }
    return {edge: shape for edge, shape in _with_sizes(shapes, fixed).items() if shape != shapes[edge]}


def _required_sizes(
    graph: Graph, shapes: Mapping[Edge, Shape], *, of_weights: bool = False
) -> Mapping[_Axis, int | _Axis]:
    """Return for each axis of unknown size the size that weights require, or the first axis of equal size."""
    axes = ((edge, axis, size) for edge, shape in shapes.items() for axis, size in enumerate(shape.dims or ()))
    unknown = [(edge, axis) for edge, axis, size in axes if size is None]
    if not unknown:
        return {}
    large = _resolve(graph, shapes, dict(zip(unknown, _primes(1 << 14), strict=False)), of_weights)
    others = (prime for prime in _primes(11) if prime not in large.values())
    small = _resolve(graph, shapes, dict(zip(unknown, others, strict=False)), of_weights)
    # A size that smaller ones do not need is a maximum, for example the number of positions of a transformer.
    return {axis: axis if isinstance(size, int) and size != small[axis] else size for axis, size in large.items()}


def _candidates(
    graph: Graph, shapes: Mapping[Edge, Shape], batch_sizes: Sequence[int]
) -> Iterator[tuple[Mapping[Edge, Shape], bool, bool]]:
    """Yield shapes of the inputs, True if they agree with the weights, and True if they are usual ones."""
    required = _required_sizes(graph, shapes)
    if not required:
        yield shapes, True, True
        return
    fixed = {axis: size for axis, size in required.items() if isinstance(size, int)}
    free = {axis: root for axis, root in required.items() if not isinstance(root, int)}
    batches = {root for (_, axis), root in free.items() if axis == 0}
    # Equal axes of several inputs often have one size, for example of a sequence and its mask.
    axes: dict[int, int] = {}
    indices = {root: axes.setdefault(axis, len(axes)) for (_, axis), root in free.items() if root not in batches}
    is_image = any(axis and len(shapes[edge].dims or ()) == IMAGE_RANK for edge, axis in free)
    # Neighbouring axes of different sizes: a transposed output differs from the right one.
    factors = (2, 1) if len(axes) > 1 else (1,)
    # Axes that are the batch, too, for example of a recurrent state.
    subsets = [{*subset} for count in range(MAX_SUBSET + 1) for subset in combinations(indices, count)]
    constants = _constant_sizes(graph)
    usual = product(subsets, IMAGE_SIZES if is_image else SIZES, batch_sizes, factors)
    sizes_of_constants = (*constants, *(TRAINING_SIZES if is_image else ()))
    unusual = product([set[_Axis]()], sizes_of_constants, dict.fromkeys((*batch_sizes, *constants)), factors)
    tried = list[Mapping[Edge, Shape]]()
    for is_probable, (subset, size, batch, factor) in chain(
        ((True, choice) for choice in usual), ((False, choice) for choice in unusual)
    ):
        sizes = {root: size * factor if index % 2 else size for root, index in indices.items() if root not in subset}
        candidate = _with_sizes(shapes, fixed | {location: sizes.get(root, batch) for location, root in free.items()})
        if candidate in tried or sum(prod(shape.sizes) for shape in candidate.values()) > MAX_ELEMENTS:
            continue
        tried.append(candidate)
        yield candidate, all(first == second for first, second in _equal_sizes(graph, candidate)), is_probable


def _constant_sizes(graph: Graph) -> list[int]:
    """Return the integers of small constants, such as the shape of a Reshape, the most frequent first."""
    values = filter(None, (graph.constant_of(Edge(name)) for name in graph.nodes))
    integers = (value for value in values if value.dtype in (DType.INT32, DType.INT64))
    arrays = (value.array for value in integers if prod(value.shape) <= MAX_CONSTANT_ELEMENTS)
    sizes = Counter(size for array in arrays for size in array.reshape(-1).tolist() if 1 < size <= MAX_SIZE)
    return [size for size, _ in sizes.most_common(MAX_FIXED)]


def _primes(first: int) -> Iterator[int]:
    return (number for number in count(first) if all(number % divisor for divisor in range(2, min(number, 1 << 8))))


def _with_sizes(shapes: Mapping[Edge, Shape], sizes: Mapping[_Axis, int]) -> dict[Edge, Shape]:
    return {
        edge: Shape(tuple(sizes.get((edge, axis), size) for axis, size in enumerate(shape.dims)))
        for edge, shape in shapes.items()
        if shape.dims is not None
    }


def _resolve(
    graph: Graph, shapes: Mapping[Edge, Shape], primes: Mapping[_Axis, int], of_weights: bool
) -> Mapping[_Axis, int | _Axis]:
    """Return the size that each axis needs if the unknown sizes are primes; axes of one size share one of them."""
    required: dict[int, int] = {}
    for pair in _equal_sizes(graph, _with_sizes(shapes, primes), of_weights=of_weights):
        size, prime = sorted(
            (required.get(each, each) for each in pair), key=lambda each: (each in primes.values(), each)
        )
        if prime in primes.values() and prime != size:
            required = {key: size if other == prime else other for key, other in required.items()} | {prime: size}
    unknown = {prime: location for location, prime in primes.items()}
    sizes = {location: required.get(prime, prime) for location, prime in primes.items()}
    return {location: unknown.get(size, size) for location, size in sizes.items()}


def _equal_sizes(graph: Graph, shapes: Mapping[Edge, Shape], *, of_weights: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the pairs of sizes that the nodes of a graph, or only those of layers, require to be equal."""
    inputs = {edge.node: Node(edge.node, "Placeholder", attrs={"shape": shape}) for edge, shape in shapes.items()}
    inferred = infer_shapes(graph.with_nodes(inputs.get(node.name, node) for node in graph.nodes.values()))
    for node in graph.nodes.values():
        if of_weights and (node.op in _BROADCAST or node.op in ("Concat", "Reshape")):
            continue
        dims = [inferred.get(edge, UNKNOWN).dims or () for edge in node.inputs]
        try:
            pairs = tuple(_pairs(node, dims, inferred.get(Edge(node.name), UNKNOWN).dims or ()))
        except IndexError:  # of an unknown rank, or an invalid node
            continue
        yield from ((first, second) for first, second in pairs if first is not None and second is not None)


def _pairs(node: Node, dims: list[Dims], output: Dims) -> Iterator[tuple[int | None, int | None]]:
    if node.op in _BROADCAST:
        for other in dims[1:]:
            yield from (pair for pair in zip(dims[0][::-1], other[::-1], strict=False) if 1 not in pair)
    elif node.op == "Gemm" or "MatMul" in node.op:
        first, second = (
            any(node.attrs.get(name) for name in names)
            for names in (("transA", "transpose_a", "adj_x"), ("transB", "transpose_b", "adj_y"))
        )
        yield dims[0][-2 if first else -1], dims[1][-1 if second or len(dims[1]) == 1 else -2]
    elif node.op == "Conv":
        channels = dims[1][1]
        yield dims[0][1], None if channels is None else channels * node.attrs.get("group", 1)
    elif node.op == "Concat" and "axis" in node.attrs:
        for other in dims[1:]:
            pairs = enumerate(zip(dims[0], other, strict=False))
            yield from (pair for axis, pair in pairs if axis != node.attrs["axis"] % len(other))
    elif node.op == "Reshape" and output and None not in (*dims[0], *output):
        yield prod(size or 0 for size in dims[0]), prod(size or 0 for size in output)
    for slot, axis, other_slot, other_axis in _SAME_SIZES.get(node.op, ()):
        if other_slot < len(dims) and dims[slot] and dims[other_slot]:
            yield dims[slot][axis], dims[other_slot][other_axis]
