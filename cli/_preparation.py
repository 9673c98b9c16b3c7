"""What becomes of a model before it is quantized: its ends, and all that is exact in float."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from quantkit.classify.choices import choose_ends, choose_preprocessing, matching_card
from quantkit.dialects.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType
from quantkit.model.loading import Model, load_model
from quantkit.ops.inference import UNKNOWN, infer_shapes
from quantkit.quantization import Scheme, prepare
from quantkit.recipe import Recipe, parse
from quantkit.recipe import run as run_recipe
from quantkit.recipe.named import find_recipe
from quantkit.runtimes.session import TensorInfo
from quantkit.summary import is_eight_bit
from quantkit.transforms.registry import REGISTRY
from quantkit.transforms.registry import find as find_transform
from quantkit.zoo import list_cards

from ._arguments import flags

# What makes 8 bits fast, each exact in float, applied behind the recipe that folds. Codes need no EnsureShape.
REWRITES = "pool_after_projection fold_pads fold_clamps remove_nodes(op=EnsureShape)"
# Dense layers of sequences as those of matrices.
PRODUCTS = "flatten_products simplify_arithmetic"
FOLDING = frozenset({"fold_batch_norms", "fold_old_batch_norms"})


def float_graph(args: Namespace, scheme: Scheme) -> tuple[Model, Graph]:
    """The model, and its graph with all that is exact in float done already.

    Raises:
        UsageError, RecipeError: the flags do not suit the model.
        InputError: the model is missing or broken.
    """
    model = load_model(args.model, inputs=args.inputs, outputs=args.outputs, offline=args.offline)
    if is_eight_bit(model.rewritable):
        raise UsageError(f"{model.name} is in 8 bits already", hint="name the float model that it was made of")
    model, graph = _recognized(args, model, as_tensorflow(model.rewritable))
    graph, _ = run_recipe(_recipe(args, model, scheme), graph)
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
    known = choose_preprocessing(source, model.card, flags(args))
    mean, std = (tuple(np.ravel(one).tolist()) for one in (known.mean, known.std))
    made = find_transform("absorb_preprocessing").outcome(graph, input_name=source.name, mean=mean, std=std)
    if not made.changes:
        raise UsageError(f"--pixels: {'; '.join(map(str, made.skips))}", hint="leave it out")
    return made.graph


def _infos(graph: Graph, *edges: Edge) -> Iterator[TensorInfo]:
    shapes = infer_shapes(graph)
    return (TensorInfo(str(edge), DType.FLOAT, shapes.get(edge, UNKNOWN)) for edge in edges)
