"""Prepare the float graph: choose inputs and outputs, and apply the rewrites that are exact in float."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from quantkit.convert import tensorflow_to_onnx
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
from quantkit.ops.roles import find_roles
from quantkit.ops.semantics import is_quantized
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.quantization import Plan, Scheme, annotate, prepare
from quantkit.quantization.calibration.trained_ranges import extract_ranges
from quantkit.quantization.ranges import Range, graph_digest
from quantkit.quantization.targets import find_target
from quantkit.quantization.workflow.options import ORIGINAL, Options
from quantkit.quantization.workflow.planning import load_plan
from quantkit.recipes import Recipe, parse
from quantkit.recipes import run as run_recipe
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import AUTO, find_runtime, runtimes
from quantkit.runtimes.session import TensorInfo
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.precision.convert_precision import OTHER_FLOATS, convert_precision, find_types
from quantkit.transforms.registry import REGISTRY, names_for
from quantkit.zoo.cards import list_cards

Item = TypeVar("Item")
# Dimensions of a batch of images.
IMAGE_RANK = 4
# Range of the images of a uint8 input.
UINT8 = Range(0.0, 255.0)
CONVOLUTIONS = frozenset({"Conv2D", "DepthwiseConv2dNative"})
BATCHED_PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"})
FOLDING = frozenset({"fold_batch_norms", "fold_old_batch_norms"})


def load_float_model(model: Any, options: Options) -> Model:
    """Return the float model of a model, graph, path or card name.

    Raises:
        UsageError: the model is already quantized, or an input or output is not in the graph.
        InputError: the model is missing or broken.
    """
    float_model = as_model(
        model,
        inputs=options.inputs,
        outputs=options.outputs,
        signature=options.signature,
        tags=options.tags,
        checkpoint=options.checkpoint,
        input_shapes=options.input_shapes,
        random_weights=options.random_weights,
        offline=options.offline,
        on_progress=options.on_progress,
    )
    if is_quantized(float_model.graph):
        raise UsageError(f"{float_model.name} is already quantized", hint="name the float model that it was made from")
    return float_model


def prepare_float_graph(
    model: Model, options: Options, scheme: Scheme, data: Dataset | None
) -> tuple[Model, Graph, Mapping[Edge, Range]]:
    """Return the model with its card, its float graph after all rewrites that are exact in float, and trained ranges.

    Args:
        model: float model.
        options: options of the quantization.
        scheme: scheme of the quantization.
        data: dataset of the model; None if no data is given.

    Raises:
        UsageError, RecipeError: the options do not fit the model.
    """
    # Before constants are folded, the weights of mixed precision are float32.
    source = convert_precision(model.graph, to="float32")
    if source is not model.graph:
        _report_types(model, options, scheme)
    if _is_quantized_natively(model, options, scheme):
        model = _find_card(model, source)
        graph, _ = run_recipe(_choose_native_recipe(options), source)
        return model, _prepare_natively(graph, options, scheme), {}
    # An ONNX graph gets its sizes first: which branch of an If computes can depend on them.
    sized = _fix_sizes(model, source, options, data)
    model, graph = _recognize(model, convert_precision(as_tensorflow(sized), to="float32"), options)
    graph = _fix_sizes(model, graph, options, data)
    graph, _ = run_recipe(_choose_recipe(model, graph, options, scheme), graph)
    graph, trained = extract_ranges(graph)
    if trained and scheme.equalize:
        raise UsageError("equalize = true changes the trained ranges of this model", hint="leave equalize out")
    if options.uint8_input:
        trained = {**trained, **dict.fromkeys(graph.inputs, UINT8)} if trained else {}
        graph = _fold_preprocessing(model, graph, options)
    graph = prepare(graph, scheme)
    return model, graph if trained else _choose_dialect(graph, options, scheme), trained


def keeps_float16(model: Model, options: Options, scheme: Scheme) -> bool:
    """Return True if float16 ops that are not quantized stay float16."""
    target = find_target(scheme.target)
    return options.float_parts == ORIGINAL and target.runs_float16 and target.dialect == model.graph.dialect


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
    rest = "float16 (--float-parts)" if "float16" in names and keeps_float16(model, options, scheme) else "float32"
    options.on_message(f"quantized from the float32 values of {' and '.join(names)} ops; the float parts are {rest}")


def _choose_dialect(graph: Graph, options: Options, scheme: Scheme) -> Graph:
    """Return the graph as an ONNX graph if it has attention, or float nodes such as SiLU between its convolutions.

    In ONNX graphs, the products of attention stay float, and sums have parameters of their own for each input.
    ONNX Runtime's int8 convolution has an int8 output. In ONNX graphs, the ops of gated activations are int8 as well.
    A runtime that fuses such float nodes with the convolution is faster with them, but the convolutions before them
    would be float in others. A scheme that names TensorFlow nodes, or a plan of their graph, needs that graph.
    """
    if scheme.keep_float or scheme.equalize or scheme.weights_only or not _can_quantize_onnx(options, scheme):
        return graph
    is_fused = options.runtime != AUTO and find_runtime(options.runtime).fuses_float_ops
    if not _has_attention(graph) and (is_fused or not _has_gates(graph, annotate(graph, scheme))):
        return graph
    with suppress(UnavailableError):
        converted, _ = run_recipe(_choose_native_recipe(Options()), tensorflow_to_onnx.convert(graph))
        return _choose_planned(_prepare_natively(converted, options, scheme), graph, options)
    return graph


def _choose_planned(converted: Graph, graph: Graph, options: Options) -> Graph:
    """Return the converted graph unless a plan is given that was not made for it."""
    plan = load_plan(options)
    return converted if plan is None or plan.graph == graph_digest(converted) else graph


def _prepare_natively(graph: Graph, options: Options, scheme: Scheme) -> Graph:
    """Return the graph to annotate, with ops of the runtime unless the scheme or the plan names nodes of the model."""
    prepared = prepare(graph, scheme)
    if scheme.weights_only or scheme.keep_float:
        return prepared
    graph = prepare(graph, scheme, runtime=options.runtime)
    return _choose_planned(find_target(scheme.target).fuse_for(graph, options.runtime), prepared, options)


def _has_attention(graph: Graph) -> bool:
    """Return True if a graph has a batched matrix product of two activations."""
    return any(
        node.op in BATCHED_PRODUCTS and all(graph.constant_of(edge) is None for edge in node.inputs)
        for node in graph.nodes.values()
    )


def _has_gates(graph: Graph, plan: Plan) -> bool:
    """Return True if most layers are convolutions, and one has a float output for a float node before int8 layers."""
    layers = {pattern.layer for pattern in plan.patterns}
    if 2 * sum(graph[name].op in CONVOLUTIONS for name in layers) <= len(layers):
        return False
    before_layers: set[str] = set()
    gated: set[str] = set()  # nodes whose output reaches such a float node through views and pools
    roles = find_roles(graph)
    for name in reversed(graph.order):
        consumers = [use.node for use in graph.node_uses.get(name, ())]
        if any(node.name in layers or node.name in before_layers for node in consumers):
            before_layers.add(name)
        for node in consumers:
            is_gate = node.name in before_layers and node.op not in roles.pass_through_ops | roles.layer_ops
            if node.name in plan.float_fallbacks and (is_gate or node.name in gated):
                gated.add(name)
    return any(
        graph[pattern.layer].op in CONVOLUTIONS
        and pattern.output not in plan.activations
        and pattern.output.node in gated
        for pattern in plan.patterns
    )


def _is_quantized_natively(model: Model, options: Options, scheme: Scheme) -> bool:
    """Return True if an ONNX graph stays an ONNX graph."""
    return model.graph.dialect == onnx.DIALECT and _can_quantize_onnx(options, scheme)


def _can_quantize_onnx(options: Options, scheme: Scheme) -> bool:
    """Return True if the target quantizes ONNX graphs.

    Only TensorFlow graphs can absorb the preprocessing, and only they can be calibrated without an installed runtime.
    """
    if onnx.DIALECT not in find_target(scheme.target).graph_dialects or options.uint8_input:
        return False
    native = (runtime for runtime in runtimes().values() if runtime.native_dialect == onnx.DIALECT)
    return options.calibration is None or any(runtime.available().ok for runtime in native)


def _choose_native_recipe(options: Options) -> Recipe:
    """Return the given recipe, else the transforms of ``inference`` for ONNX graphs."""
    if options.recipe:
        return _read_recipe(options.recipe)
    supported = names_for(onnx.DIALECT)
    return Recipe(tuple(step for step in find_recipe("inference").steps if step.name in supported))


def _read_recipe(recipe: str) -> Recipe:
    is_text = {" ", "("} & set(recipe) or recipe in REGISTRY
    return parse(recipe) if is_text else find_recipe(recipe)


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
    """Return the given recipe, else the card's or ``inference`` with the rewrites for int8."""
    if options.recipe:
        return _read_recipe(options.recipe)
    base = parse(model.card.recipe) if model.card is not None else find_recipe("inference")
    target = find_target(scheme.target)
    # Flatten each layer into one op before batch norms and biases are folded into it.
    index = next((index for index, step in enumerate(base.steps) if step.name in FOLDING), len(base.steps))
    is_channels_first = any(node.attrs.get("data_format") == b"NCHW" for node in graph.nodes.values())
    layout = parse("convert_layout(to=NHWC)").steps if is_channels_first else ()
    steps = (*base.steps[:index], *layout, *parse(target.layer_recipe).steps, *base.steps[index:])
    return replace(base, steps=(*steps, *parse(target.rewrite_recipe).steps))


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
