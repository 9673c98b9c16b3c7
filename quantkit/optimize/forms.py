"""Forms of a search: the files of a model in each precision, format and kind of sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.benchmark.sampling.candidate import Settings
from quantkit.formats import onnx
from quantkit.formats.content_digest import seal_receipt
from quantkit.formats.files import write_whole
from quantkit.formats.kinds import kind_of
from quantkit.formats.metadata import KEY, decode, encode, read_text, seal, with_metadata
from quantkit.formats.tflite import with_metadata as with_tflite_metadata
from quantkit.ir.graph import Graph
from quantkit.model import Model, load
from quantkit.model.model import tensor_info
from quantkit.optimize.state import Form
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.base import names_endpoints
from quantkit.quantization.workflow import QuantizationResult
from quantkit.quantization.workflow.float_files import ConvertedFiles, float_candidates
from quantkit.runtimes import AUTO, REFERENCE, find_runtime

# Targets of the search. Graphs with classic 8-bit ops run in TensorFlow alone, which has faster kernels for fused ones.
TARGETS = ("onnx", "tensorflow", "litert")
# End of the name of a form with fixed sizes.
FIXED = ", fixed sizes"
Sizes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Int8Form:
    """An int8 file that may be built.

    Attributes:
        target: name of the target.
        runtime: runtime that the form suits, or ``auto`` for all runtimes of the target.
        runtimes: runtimes that are to run it.
    """

    target: str
    runtime: str
    runtimes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Text in the report."""
        if self.runtime != AUTO:
            return f"int8 for {find_runtime(self.runtime).title}"
        if len(find_target(self.target).runtimes) > 1:
            return "int8 for all runtimes"
        return f"int8 for {find_runtime(self.runtimes[0]).title}"


def int8_forms(runtimes: Sequence[str], suffix: str) -> list[Int8Form]:
    """Return the int8 files that may be built, those for the first runtimes first.

    Args:
        runtimes: runtimes of the search, the fastest for the float model first.
        suffix: suffix of the output, which limits the formats; empty for any.
    """
    forms = []
    for name in TARGETS:
        target = find_target(name)
        own = tuple(each for each in runtimes if each in target.runtimes)
        if not own or (suffix and suffix not in target.suffixes):
            continue
        forms.append(Int8Form(name, AUTO if len(own) > 1 or len(target.runtimes) == 1 else own[0], own))
        if len(own) > 1:
            forms += [Int8Form(name, each, (each,)) for each in own]
    return sorted(forms, key=lambda form: min(map(runtimes.index, form.runtimes)))


def float_forms(graph: Graph, folder: Path, runtimes: Sequence[str], suffix: str) -> list[Form]:
    """Write the float model in the formats of the runtimes, and return the files.

    Args:
        graph: float graph.
        folder: for the files.
        runtimes: runtimes of the search.
        suffix: suffix of the output, which limits the formats; empty for any.
    """
    converted = ConvertedFiles(graph, folder, runtimes)
    candidates = [converted.replace(each) for each in float_candidates(graph, folder, ())]
    forms: dict[Path, Form] = {}
    for candidate in candidates:
        name, path = candidate.settings.runtime, candidate.path
        if name == REFERENCE or name not in runtimes or (suffix and path.suffix != suffix):
            continue
        earlier = forms.get(path)
        text = "float32" if path.suffix == ".onnx" or graph.dialect != onnx.DIALECT else f"float32, {path.suffix}"
        settings = replace(candidate.settings, runtime=AUTO)
        forms[path] = Form(text, "float32", path, (*(earlier.runtimes if earlier else ()), name), settings)
    return list(forms.values())


def int8_form(form: Int8Form, result: QuantizationResult, path: Path, name: str) -> Form:
    """Return the file that a quantization wrote.

    Args:
        form: target and runtimes of the file.
        result: the quantization.
        path: its file.
        name: text in the report.
    """
    conversion = result.conversion
    settings = Settings(options=conversion.session_options)
    if not names_endpoints(conversion.target):
        graph = conversion.graph
        inputs, outputs = tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs))
        settings = replace(settings, inputs=inputs, outputs=outputs)
    return Form(name, "int8", path, form.runtimes, settings)


def has_dynamic_sizes(graph: Graph) -> bool:
    """Return True if a size of an input is not fixed."""
    shapes = (tensor_info(graph, edge).shape for edge in graph.inputs)
    return any(shape.dims is None or None in shape.dims for shape in shapes)


def fix_sizes(form: Form, sizes: Sizes, folder: Path) -> Form | None:
    """Write the form with fixed sizes of its inputs; None if all are fixed already, or the format is that of a runtime.

    Args:
        form: file with dynamic sizes.
        sizes: sizes by name of the input.
        folder: for the file.
    """
    if kind_of(form.path) not in ("onnx", "graphdef"):
        return None
    graph = load(form.path, inputs=form.settings.inputs, outputs=form.settings.outputs).graph
    if not has_dynamic_sizes(graph):
        return None
    names = {tensor_info(graph, edge).name for edge in graph.inputs}
    shapes = {name: shape for name, shape in sizes.items() if name in names}
    fixed = load(form.path, inputs=form.settings.inputs, outputs=form.settings.outputs, input_shapes=shapes).graph
    path = folder / f"{form.path.stem}.fixed{form.path.suffix}"
    formats.save(fixed, path)
    return replace(form, name=f"{form.name}{FIXED}", path=path)


def write_form(form: Form, metadata: Mapping[str, Any], output: Path) -> None:
    """Write a file of the search with other metadata; it appears complete or not at all.

    A quantized LiteRT file keeps its metadata: they cannot be replaced by longer ones.

    Args:
        form: file of the search.
        metadata: its metadata with a receipt.
        output: file to write.
    """
    metadata = seal(metadata)
    if kind_of(form.path) == "tflite":
        content = form.path.read_bytes()
        if read_text(form.path) is not None:
            write_whole(output, lambda file: file.write(content))
            return
        content = with_tflite_metadata(content, KEY, encode(metadata))
        write_whole(output, lambda file: file.write(content))
    else:
        graph = load(form.path, inputs=form.settings.inputs, outputs=form.settings.outputs).graph
        formats.save(with_metadata(graph, metadata), output)
    seal_receipt(output)


def metadata_of_file(path: Path) -> dict[str, Any]:
    """Return the metadata of a file, with its receipt; empty without metadata."""
    return decode(read_text(path))


def sample_sizes(model: Model, shapes: Iterator[Mapping[str, tuple[int, ...]]], rows: int) -> Sizes | None:
    """Return the sizes of one sample for the inputs with dynamic sizes; None if the samples differ.

    Args:
        model: float model.
        shapes: shapes of the arrays of each run, by input name.
        rows: number of samples in a run.
    """
    first = next(shapes, {})
    if any(other != first for other in shapes):
        return None
    infos = (tensor_info(model.graph, edge) for edge in model.graph.inputs)
    dims = {info.name: (None,) if info.shape.dims is None else info.shape.dims for info in infos}
    return {
        name: (shape[0] // rows, *shape[1:]) if dims[name][0] is None else shape
        for name, shape in first.items()
        if name in dims and None in dims[name]
    }
