"""What becomes of a model before it is quantized: its ends, and all that is exact in float."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.data import Data
from quantkit.data.choices import choose_ends, choose_preprocessing, matching_card, takes_pictures
from quantkit.data.feeding import Feeding
from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.model import Model, load
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.quantization import Scheme, prepare
from quantkit.recipes import Recipe, parse
from quantkit.recipes import run as run_recipe
from quantkit.recipes.named import find_recipe
from quantkit.runtimes.session import TensorInfo
from quantkit.summary import is_eight_bit
from quantkit.transforms.registry import REGISTRY, find_transform
from quantkit.zoo import list_cards

from ._arguments import preprocessing_flags
from ._render import log

# What makes 8 bits fast, each exact in float, applied behind the recipe that folds. Codes need no EnsureShape.
REWRITES = "pool_after_projection fold_pads fold_clamps remove_nodes(op=EnsureShape)"
# Dense layers of sequences as those of matrices.
PRODUCTS = "flatten_products simplify_arithmetic"
FOLDING = frozenset({"fold_batch_norms", "fold_old_batch_norms"})


def float_graph(args: Namespace, scheme: Scheme, data: Data | None) -> tuple[Model, Graph]:
    """The model, and its graph with all that is exact in float done already.

    Args:
        args: of the command.
        scheme: what is to be quantized.
        data: that it will be fed; None: none.

    Raises:
        UsageError, RecipeError: the flags do not suit the model.
        InputError: the model is missing or broken.
    """
    model = load(args.model, inputs=args.inputs, outputs=args.outputs, offline=args.offline)
    if is_eight_bit(model.graph):
        raise UsageError(f"{model.name} is in 8 bits already", hint="name the float model that it was made of")
    model, graph = _recognized(args, model, as_tensorflow(model.graph))
    graph, _ = run_recipe(_recipe(args, model, scheme), _sized(args, model, graph, data))
    return model, prepare(_on_pixels(args, model, graph) if args.pixels else graph, scheme)


def _recognized(args: Namespace, model: Model, graph: Graph) -> tuple[Model, Graph]:
    """The model with the card whose file or transformed form it is, and the graph between what pictures go through."""
    if not args.inputs and not args.outputs:
        with suppress(UsageError):  # it takes no pictures: its own ends are right
            graph = choose_ends(graph, model.card, list_cards())
    if model.card is not None or len(graph.inputs) != 1 or not graph.outputs:
        return model, graph
    source, result = _infos(graph, graph.inputs[0], graph.outputs[0])
    return replace(model, card=matching_card(source, result, list_cards())), graph


def _sized(args: Namespace, model: Model, graph: Graph, data: Data | None) -> Graph:
    """The graph with the sizes that it will be fed where its inputs leave them open: padding follows from them."""
    made = dict(graph.nodes)
    for edge in graph.inputs:
        shape = graph[edge.node].attrs.get("shape")
        if not isinstance(shape, Shape) or shape.dims is None or None not in shape.dims[1:]:
            continue
        fed = _fed_sizes(args, model, TensorInfo(str(edge), DType.FLOAT, shape), data)
        dims = [size or given for size, given in zip(shape.dims[1:], fed, strict=False)]
        if len(dims) == len(shape.dims) - 1 and None not in dims:
            sizes = Shape((shape.dims[0], *dims))
            made[edge.node] = graph[edge.node].with_attrs(shape=sizes)
            log(args, f"{edge} leaves its size open: it is quantized for {sizes} (--input-width, --input-height)")
    return graph.with_nodes(made.values())


def _fed_sizes(args: Namespace, model: Model, info: TensorInfo, data: Data | None) -> tuple[int | None, ...]:
    """The sizes of one example of an input; empty: nothing tells them."""
    dims, said = info.shape.dims or (), preprocessing_flags(args)
    arrays = {} if data is None else data.arrays
    array = arrays.get(info.name, next(iter(arrays.values())) if len(arrays) == 1 else None)
    if array is not None and (array.dtype != np.uint8 or said.height is None):
        return array.shape[1:] if array.ndim == len(dims) else ()
    if not takes_pictures(info) or len(dims) != 4 or (data is None and said.height is None):
        return ()
    known = choose_preprocessing(info, model.card, said)
    is_first = Feeding.of(info).channels_first
    return (known.channels, known.height, known.width) if is_first else (known.height, known.width, known.channels)


def _recipe(args: Namespace, model: Model, scheme: Scheme) -> Recipe:
    if args.recipe:
        is_written = {" ", "("} & set(args.recipe) or args.recipe in REGISTRY
        return parse(args.recipe) if is_written else find_recipe(args.recipe)
    before = parse(model.card.recipe) if model.card is not None else find_recipe("inference")
    # The classic 8-bit ops know no dilations: there, pixels that were moved to the batch stay there.
    flatten = PRODUCTS if scheme.target == "eightbit" else f"flatten_atrous_conv {PRODUCTS}"
    # Layers are one op each before batch norms and biases are folded into them.
    place = next((place for place, step in enumerate(before.steps) if step.name in FOLDING), len(before.steps))
    steps = (*before.steps[:place], *parse(flatten).steps, *before.steps[place:])
    return Recipe((*steps, *parse(REWRITES).steps))


def _on_pixels(args: Namespace, model: Model, graph: Graph) -> Graph:
    """The graph with its preparation of pixels absorbed.

    Raises:
        UsageError: its inputs take no pictures, or nothing can absorb it.
    """
    if len(graph.inputs) != 1:
        raise UsageError(
            f"--pixels is for one input of pictures, and there are {len(graph.inputs)}", hint="leave it out"
        )
    (source,) = _infos(graph, *graph.inputs)
    known = choose_preprocessing(source, model.card, preprocessing_flags(args))
    mean, std = (tuple(np.ravel(one).tolist()) for one in (known.mean, known.std))
    made = find_transform("absorb_preprocessing").outcome(graph, input_name=source.name, mean=mean, std=std)
    if not made.changes:
        raise UsageError(f"--pixels: {'; '.join(map(str, made.skips))}", hint="leave it out")
    return made.graph


def _infos(graph: Graph, *edges: Edge) -> Iterator[TensorInfo]:
    shapes = infer_shapes(graph)
    return (TensorInfo(str(edge), DType.FLOAT, shapes.get(edge, UNKNOWN)) for edge in edges)
