"""Prepare the float graph: choose inputs and outputs, and apply the rewrites that are exact in float."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.data import Dataset
from quantkit.data.inference import find_origin, infer_preprocessing
from quantkit.data.inputs import ImageInput, takes_images
from quantkit.data.pipeline import has_batch_axis, with_pixel_size
from quantkit.errors import UnavailableError, UsageError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.model import Model, as_model
from quantkit.model.endpoints import choose_endpoints
from quantkit.model.options import LoadingOptions
from quantkit.ops.semantics import is_quantized
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.options import values_of
from quantkit.quantization import Scheme, prepare
from quantkit.quantization.annotation import TargetGraph
from quantkit.quantization.calibration.trained_ranges import extract_ranges
from quantkit.quantization.ranges import Range, graph_digest
from quantkit.quantization.targets import Target, find_target
from quantkit.quantization.targets.base import keeps_float16, splits_patterns
from quantkit.quantization.workflow.options import FLOAT16, FLOAT32, ORIGINAL, Options, read_recipe
from quantkit.recipes import Recipe, parse
from quantkit.recipes import run as run_recipe
from quantkit.recipes.named import find_recipe
from quantkit.recipes.trace import Trace
from quantkit.recipes.verify import make_verifier
from quantkit.runtimes.session import TensorInfo
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.precision.convert_precision import OTHER_FLOATS, convert_precision, find_types
from quantkit.transforms.registry import names_for
from quantkit.zoo.cards import list_cards

Item = TypeVar("Item")
# Dimensions of a batch of images.
IMAGE_RANK = 4
# Range of the images of a uint8 input.
UINT8 = Range(0.0, 255.0)
FOLDING = frozenset({"fold_batch_norms", "fold_old_batch_norms"})
# Transforms before folding, which turn composite layers into one op; those of dilated layers, then the others.
DILATED_RECIPE, LAYER_RECIPE = "flatten_atrous_conv", "flatten_products simplify_arithmetic"
# Transforms after folding: exact in float, they make int8 faster.
REWRITE_RECIPE = (
    "pool_after_projection fold_pads fold_clamps fuse_space_to_depth_and_conv remove_nodes(op=EnsureShape) "
    "fold_constants(copies=true)"
)


def load_float_model(options: Options) -> Model:
    """Return the float model of the options.

    Raises:
        UsageError: the model is already quantized, or an input or output is not in the graph.
        InputError: the model is missing or broken.
    """
    shapes, values = options.input_shapes, values_of(LoadingOptions, options)
    float_model = as_model(options.model, **values, input_shapes=shapes, on_progress=options.on_progress)
    if is_quantized(float_model.graph):
        raise UsageError(f"{float_model.name} is already quantized", hint="name the float model that it was made from")
    return float_model


class FloatModel(NamedTuple):
    """Float model in the form that is quantized.

    Attributes:
        model: the model with its card.
        graph: its graph in the dialect of the target, after all rewrites that are exact in float.
        scheme: scheme of the quantization, whose ``keep_float`` names nodes of ``graph``.
        trained: trained ranges by edge of ``graph``; empty without quantization-aware training.
        trace: record of the recipes that prepared the graph; None if no recipe was applied.
    """

    model: Model
    graph: Graph
    scheme: Scheme
    trained: Mapping[Edge, Range]
    trace: Trace | None = None


def prepare_float_graph(model: Model, options: Options, scheme: Scheme, data: Dataset | None) -> FloatModel:
    """Return a model in the form that is quantized.

    Args:
        model: float model.
        options: options of the quantization.
        scheme: scheme of the quantization.
        data: dataset of the model; None if no data is given.

    Raises:
        UsageError, RecipeError: the options do not fit the model.
        UnavailableError: an op has no equivalent in the dialect of the target.
    """
    target = find_target(scheme.target)
    # Before constants are folded, the weights of mixed precision are float32.
    graph, trained, traces = convert_precision(model.graph, to="float32"), dict[Edge, Range](), list[Trace]()
    if graph is not model.graph:
        _report_types(model, options, scheme)
    # Only TensorFlow graphs can absorb the preprocessing.
    if graph.dialect == onnx.DIALECT and (target.dialect != onnx.DIALECT or options.uint8_input):
        # The sizes come first: which branch of an If computes can depend on them.
        graph = convert_precision(as_tensorflow(_fix_sizes(model, graph, options, data)), to="float32")
    is_converted = graph.dialect != target.dialect
    if graph.dialect != onnx.DIALECT:
        model, graph = _recognize(model, graph, options)
        graph = _fix_sizes(model, graph, options, data)
        graph = _apply_recipe(model, graph, options, scheme, traces)
        graph, ranges = extract_ranges(graph)
        if ranges and scheme.equalize:
            raise UsageError("equalize = true changes the trained ranges of this model", hint="leave equalize out")
        if options.uint8_input:
            ranges = {**ranges, **dict.fromkeys(graph.inputs, UINT8)} if ranges else {}
            graph = _fold_preprocessing(model, graph, options)
        graph, scheme, edges = TargetGraph.of(graph, scheme)
        trained = {other: limits for edge, limits in ranges.items() for other in edges.get(edge, (edge,))}
    # A recipe of the caller was applied before the conversion. Rewrites would remove edges with trained ranges.
    if graph.dialect == onnx.DIALECT and not (is_converted and (options.recipe or trained)):
        model = _find_card(model, graph)
        graph = _apply_recipe(model, graph, options, scheme, traces)
        names = tuple(name for name in scheme.keep_float if name in graph or not is_converted)
        scheme = scheme.with_(keep_float=names)
    return FloatModel(model, _suit_runtime(graph, options, scheme), scheme, trained, _join(model, traces))


def _apply_recipe(model: Model, graph: Graph, options: Options, scheme: Scheme, traces: list[Trace]) -> Graph:
    """Return the graph after its recipe, and add the record of the steps.

    Raises:
        CheckError: the outputs differ after a step, with ``verify``.
    """
    check = make_verifier(model, graph, seed=options.seed) if options.verify else None
    graph, trace = run_recipe(_choose_recipe(model, graph, options, scheme), graph, check=check)
    if check is not None:
        trace = replace(trace, verification=check.to_json(), terms=check.terms)
        if check.warning:
            options.on_message(f"warning: {check.warning}")
    traces.append(trace)
    return graph


def _join(model: Model, traces: list[Trace]) -> Trace | None:
    """Return one record of the recipes before and after the conversion to the dialect of the target."""
    if not traces:
        return None
    steps = tuple(step for trace in traces for step in trace.recipe.steps)
    return replace(
        traces[0],
        records=tuple(record for trace in traces for record in trace.records),
        recipe=replace(traces[0].recipe, steps=steps),
        after=traces[-1].after,
        model=model.name,
        has_random_weights=model.has_random_weights,
    )


def find_float_parts(model: Model, options: Options, scheme: Scheme) -> str:
    """Return the type of the ops that are not quantized: float32 if a file cannot keep the original one."""
    target = find_target(scheme.target)
    keeps_types = keeps_float16(target) and target.dialect == model.graph.dialect
    return options.float_parts if keeps_types or options.float_parts != ORIGINAL else FLOAT32


def _report_types(model: Model, options: Options, scheme: Scheme) -> None:
    """Report the float types of a model that is quantized from its float32 values.

    Raises:
        UnavailableError: an input or output is bfloat16.
    """
    types = find_types(model.graph)
    for edge in (*model.graph.inputs, *model.graph.outputs):
        if types.get(edge) is DType.BFLOAT16:
            raise UnavailableError(
                f"{str(edge)!r} is bfloat16, which runtimes do not exchange as NumPy arrays",
                hint="export the model with float32 inputs and outputs; its bfloat16 ops then become float32",
            )
    names = [dtype.numpy.name for dtype in OTHER_FLOATS if dtype in types.values()]
    parts = find_float_parts(model, options, scheme)
    has_half = parts == FLOAT16 or (parts == ORIGINAL and "float16" in names)
    rest = "float16 (--float-parts)" if has_half else "float32"
    options.on_message(f"quantized from the float32 values of {' and '.join(names)} ops; the float parts are {rest}")


def _suit_runtime(graph: Graph, options: Options, scheme: Scheme) -> Graph:
    """Return the graph to annotate, with ops of the runtime unless the scheme or the plan names nodes of the model."""
    prepared = prepare(graph, scheme)
    if scheme.weights_only or scheme.keep_float:
        return prepared
    graph = prepare(graph, scheme, runtime=options.runtime)
    plan = options.stated_plan
    return graph if plan is None or plan.graph == graph_digest(graph) else prepared


def _recognize(model: Model, graph: Graph, options: Options) -> tuple[Model, Graph]:
    """Return the model with the card that its graph matches, and the graph with the inputs that data must fill."""
    if not options.inputs and not options.outputs:
        graph = choose_endpoints(graph, model.card, list_cards())
    return _find_card(model, graph), graph


def _find_card(model: Model, graph: Graph) -> Model:
    """Return the model with the card that its graph matches."""
    if model.card is not None or len(graph.inputs) != 1 or not graph.outputs:
        return model
    source, result = _tensor_infos(graph, graph.inputs[0], graph.outputs[0])
    return replace(model, card=find_origin(source, result, list_cards()))


def _fix_sizes(model: Model, graph: Graph, options: Options, data: Dataset | None) -> Graph:
    """Return the graph with the data's sizes in place of unknown input sizes: padding depends on them.

    A size that differs between the samples stays unknown, for example the length of a sequence.
    """
    nodes = dict(graph.nodes)
    has_batch = has_batch_axis(tuple(_tensor_infos(graph, *graph.inputs)))
    for edge in graph.inputs:
        shape = graph[edge.node].attrs.get("shape")
        if not isinstance(shape, Shape) or (shape.dims is not None and None not in shape.dims[has_batch:]):
            continue
        if shape.dims is None:
            shape = Shape((None,) * _find_rank(str(edge), data))
        info = TensorInfo(str(edge), DType.FLOAT, shape)
        sizes = _sample_sizes(model, info, options, data, has_batch=has_batch)
        batch, rest = (shape.dims or (None,))[:has_batch], (shape.dims or ())[has_batch:]
        fixed = Shape((*batch, *(dim or size for dim, size in zip(rest, sizes, strict=False))))
        if shape.dims and len(sizes) == len(rest) and fixed != graph[edge.node].attrs["shape"]:
            nodes[edge.node] = graph[edge.node].with_attrs(shape=fixed)
            options.on_message(
                f"input {str(edge)!r} has no fixed size: it is quantized for {fixed} (--input-width, --input-height)"
            )
    return graph.with_nodes(nodes.values())


def _find_rank(name: str, data: Dataset | None) -> int:
    """Return the number of dimensions of the samples for an input of unknown rank, batch included; 0 if unknown."""
    if data is None:
        return 0
    row = _find_row(data.example(), name)
    return IMAGE_RANK if data.holds_images else 0 if row is None else row.ndim + 1


def _find_row(rows: Mapping[str, Item], name: str) -> Item | None:
    """Return the array of an input in a sample, or its shape; a single array may have any name."""
    return rows.get(name, next(iter(rows.values())) if len(rows) == 1 else None)


def _sample_sizes(
    model: Model, info: TensorInfo, options: Options, data: Dataset | None, *, has_batch: bool
) -> tuple[int | None, ...]:
    """Return the dimensions of the samples of an input; empty if they cannot be determined."""
    dims, stated = info.shape.dims or (), options.preprocessing
    rank = len(dims) if has_batch else 0
    row = _find_row({} if data is None else data.example(rank), info.name)
    if data is not None and row is not None and (row.dtype != np.uint8 or not takes_images(info)):
        shape = _find_row(data.shapes(rank), info.name)
        is_accepted = Shape(dims[has_batch:]).accepts(row.shape)
        return shape.dims or () if shape is not None and is_accepted else ()
    if not takes_images(info) or len(dims) != 4 or (data is None and stated.height is None):
        return ()
    basis = model.card or model.find_scaling(info.name)
    if row is not None:
        stated = with_pixel_size(stated, row, info, basis)
    preprocessing = infer_preprocessing(info, basis, stated)
    is_channels_first = ImageInput.of(info).channels_first
    sizes, channels = (preprocessing.height, preprocessing.width), preprocessing.channels
    return (channels, *sizes) if is_channels_first else (*sizes, channels)


def _choose_recipe(model: Model, graph: Graph, options: Options, scheme: Scheme) -> Recipe:
    """Return the given recipe, else the card's or ``inference`` with the rewrites for int8 that the dialect has."""
    if options.recipe:
        return read_recipe(options.recipe)
    # The recipes of cards are for TensorFlow graphs.
    has_own = model.card is not None and graph.dialect != onnx.DIALECT
    base = parse(model.card.recipe) if model.card is not None and has_own else find_recipe("inference")
    target = find_target(scheme.target)
    # Flatten each layer into one op before batch norms and biases are folded into it.
    index = next((index for index, step in enumerate(base.steps) if step.name in FOLDING), len(base.steps))
    is_channels_first = any(node.attrs.get("data_format") == b"NCHW" for node in graph.nodes.values())
    layout = parse("convert_layout(to=NHWC)").steps if is_channels_first else ()
    steps = (*base.steps[:index], *layout, *layer_recipe(target).steps, *base.steps[index:])
    supported = names_for(graph.dialect)
    steps = (*steps, *parse(REWRITE_RECIPE).steps)
    return replace(base, steps=tuple(step for step in steps if step.name in supported))


def layer_recipe(target: Target) -> Recipe:
    """Return the transforms before folding; the classic ops have no dilations, so that their layers stay composite."""
    return parse(LAYER_RECIPE if splits_patterns(target) else f"{DILATED_RECIPE} {LAYER_RECIPE}")


def _fold_preprocessing(model: Model, graph: Graph, options: Options) -> Graph:
    """Return the graph with a uint8 input and the normalization folded into its first layers.

    Raises:
        UsageError: the input takes no images, or no layer can absorb the normalization.
    """
    if len(graph.inputs) != 1:
        raise UsageError(f"--uint8-input requires one image input; the model has {len(graph.inputs)}", hint="omit it")
    (source,) = _tensor_infos(graph, *graph.inputs)
    basis = model.card or model.find_scaling(source.name)
    preprocessing = infer_preprocessing(source, basis, options.preprocessing)
    mean, std = (tuple(np.ravel(values).tolist()) for values in (preprocessing.mean, preprocessing.std))
    outcome = find_transform("absorb_preprocessing").outcome(graph, input_name=source.name, mean=mean, std=std)
    if not outcome.changes:
        raise UsageError(f"--uint8-input: {'; '.join(map(str, outcome.skips))}", hint="omit it")
    return outcome.graph


def _tensor_infos(graph: Graph, *edges: Edge) -> Iterator[TensorInfo]:
    shapes = infer_shapes(graph)
    return (TensorInfo(str(edge), DType.FLOAT, shapes.get(edge, UNKNOWN)) for edge in edges)
