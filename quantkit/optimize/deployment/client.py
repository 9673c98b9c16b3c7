"""Files of a folder that do not depend on the server: its description, the client, and a sample with its outputs."""

import ast
import inspect
import json
import shutil
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

import numpy as np

from quantkit.data import images, jpeg, preprocessing
from quantkit.data.inputs import ImageInput
from quantkit.data.preprocessing import Preprocessing
from quantkit.formats import external_data_files, load, save
from quantkit.formats.files import has_onnx_functions
from quantkit.optimize.deployment.served_model import DATATYPES, ServedModel
from quantkit.optimize.deployment.server import Server
from quantkit.runtimes.session import TensorInfo

SCHEMA = "quantkit.deployment/1"
# Functions of `quantkit classify` that images.py of a folder contains, by module.
_PREPROCESSING = ((jpeg, ("load",)), (images, ("_to_channels", "FORMATS", "MAX_PIXELS")), (preprocessing, ("prepare",)))


def write_client(model: ServedModel, server: Server, notes: Iterable[str], folder: Path) -> None:
    """Write the files of a folder next to the model and the configuration of the server.

    Args:
        model: facts about the model.
        server: server of the folder.
        notes: a sentence for each setting that the server has no parameter for.
        folder: folder of the server.
    """
    document = describe_model(model, server)
    (folder / "deployment.json").write_text(json.dumps(document, indent=2) + "\n")
    write_template("client.py", folder)
    write_preprocessing(folder)
    if labels := model.label_names:
        write_labels(labels, folder / "labels.txt")
    if model.image is None:
        np.savez(folder / "example.npz", *model.sample)
    else:
        (folder / "example.png").write_bytes(model.image)
    np.savez(folder / "expected.npz", *model.expected)
    (folder / "README.md").write_text(_readme(model, server, tuple(notes)), encoding="utf-8")


def write_template(name: str, folder: Path, template: str = "", **values: str) -> None:
    """Write a file of a folder.

    Args:
        name: name of the file.
        folder: the folder.
        template: name of the template (default: that of the file).
        values: values of the ``$`` placeholders of the template.
    """
    text = (files(__package__) / "templates" / f"{template or name}.txt").read_text()
    (folder / name).write_text(Template(text).substitute(values))


def write_labels(labels: Iterable[str], path: Path) -> None:
    """Write a label file with one class per line."""
    path.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")


def copy_model(model: ServedModel, path: Path) -> None:
    """Copy a model file, with the files of its weights, or a SavedModel folder."""
    source = model.deployment.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, path)
        return
    if model.kind == "onnx" and has_onnx_functions(source):
        save(load(source), path)  # with the functions inlined: not all runtimes inline them
        return
    shutil.copyfile(source, path)
    for location in external_data_files(source) if model.kind == "onnx" else ():
        (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / location, path.parent / location)


def describe_model(model: ServedModel, server: Server) -> dict[str, Any]:
    """Return the content of deployment.json: the facts that the client and programs of the user need."""
    options, form, preparation = model.deployment.options, model.image_input, model.preprocessing
    return {
        "schema": SCHEMA,
        "name": model.name,
        "server": server.name,
        "url": server.url,
        "runtime": {"name": model.runtime.name, "version": model.runtime.version},
        "settings": {
            "intra_op": options.intra_op,
            "inter_op": options.inter_op,
            "precision": options.precision,
            "spinning": options.spinning,
            "streams": model.deployment.streams,
        },
        "environment": model.deployment.variables,
        "inputs": [_describe_tensor(info, server) for info in model.inputs],
        "outputs": [_describe_tensor(info, server) for info in model.outputs],
        "image": form and preparation and describe_image(form, preparation),
        "scores": model.scores,
    }


def _describe_tensor(info: TensorInfo, server: Server) -> dict[str, Any]:
    """Return name, element type and sizes as in the metadata of the inference protocol version 2."""
    dims = info.shape.dims
    sizes = [-1] if dims is None else [-1 if size is None else size for size in dims]
    return {
        "name": info.name,
        "datatype": DATATYPES[info.dtype],
        "shape": sizes or ([] if server.takes_scalars else [1]),
    }


def describe_image(form: ImageInput, preparation: Preprocessing) -> dict[str, Any]:
    """Return the preparation of an image for an input, as images.py reads it."""
    return {
        "is_resized": form.form == "resized",
        "is_normalized": form.is_normalized,
        "datatype": np.dtype(form.dtype.numpy).name,
        "batch_size": (form.batch_size or 1) if form.has_batch_axis else None,
        "channels_first": form.channels_first,
        "preprocessing": preparation.to_json(),
    }


def write_preprocessing(folder: Path) -> None:
    """Write images.py: the functions that `quantkit classify` prepares images with."""
    functions = "\n\n\n".join(_source_of(module, names) for module, names in _PREPROCESSING)
    write_template("images.py", folder, functions=functions)


def _source_of(module: ModuleType, names: Iterable[str]) -> str:
    """Return the source of functions and constants of a module, with all of its own that they use.

    Annotations and imports are not followed: the file that receives the source does not evaluate annotations, and
    imports the packages of the functions.
    """
    text = inspect.getsource(module)
    nodes: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign):
            targets = [name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            nodes |= {target.id: node for target in targets}
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in needed or name not in nodes:
            continue
        needed.add(name)
        node = nodes[name]
        parts = node.body if isinstance(node, ast.FunctionDef) else [node]
        pending += [child.id for part in parts for child in ast.walk(part) if isinstance(child, ast.Name)]
    lines = text.splitlines()
    ranges = sorted({(_first_line(nodes[name]), nodes[name].end_lineno) for name in needed})
    return "\n\n\n".join("\n".join(lines[first - 1 : last]) for first, last in ranges)


def _first_line(node: ast.stmt) -> int:
    """Return the line of a statement, or of its first decorator."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _readme(model: ServedModel, server: Server, notes: tuple[str, ...]) -> str:
    """Return the text of README.md of a folder."""
    deployment, options = model.deployment, model.deployment.options
    threads = f"{options.intra_op} threads" if options.intra_op else "the default number of threads"
    calls = f"{deployment.streams} calls at the same time" if deployment.streams else "one call at a time"
    tensors = [
        f"| {kind} | `{info.name}` | {DATATYPES[info.dtype]} | {info.shape} |"
        for kind, infos in (("input", model.inputs), ("output", model.outputs))
        for info in infos
    ]
    environment = [f"- environment: `{name}={value}`" for name, value in deployment.variables.items()]
    return "\n".join(
        [
            f"# {model.name} in {server.title}",
            "",
            f"The model runs in {model.runtime.name} with {threads}, {options.precision}, {calls}.",
            "",
            "## Start",
            "",
            server.start(model),
            "",
            "## Call",
            "",
            "```console",
            "$ pip install numpy pillow",
            "$ python client.py --check",
            f"$ python client.py {'IMAGE' if model.image else 'ARRAYS.npz'} --top 5",
            "```",
            "",
            "`--check` sends the sample of this folder and compares the outputs with `expected.npz`, which",
            f"{model.runtime} computed when the folder was written. The exit code is 1 if they differ.",
            "",
            "## Model",
            "",
            "| | name | type | shape |",
            "|---|---|---|---|",
            *tensors,
            "",
            _image_text(model),
            *(["", "Settings:", *environment, *(f"- {note}" for note in notes)] if environment or notes else []),
            "",
        ]
    )


def _image_text(model: ServedModel) -> str:
    """Return the paragraph about the preparation of images."""
    form, preparation = model.image_input, model.preprocessing
    if form is None or preparation is None:
        return "The inputs take arrays: `client.py` sends the arrays of an .npz file in the order of the inputs."
    steps = f"`{preparation.description}`"
    if form.form != "resized":
        return "The model resizes and normalizes: `client.py` sends the decoded pixels."
    if not form.is_normalized:
        size = f"{preparation.height} x {preparation.width}"
        return f"The model normalizes: `client.py` sends resized uint8 pixels ({size})."
    return (
        f"`client.py` prepares images as `quantkit classify` does: {steps}. `deployment.json` states it for programs."
    )
