"""Triton: a model repository with one model, run by the backend of its runtime.

models/NAME/config.pbtxt
models/NAME/labels.txt
models/NAME/1/model.onnx
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantkit.cores import available_cores
from quantkit.optimize.deployment.client import copy_model, write_labels
from quantkit.optimize.deployment.served_model import DATATYPES, ServedModel
from quantkit.optimize.deployment.server import Server
from quantkit.runtimes.openvino import properties
from quantkit.runtimes.session import TensorInfo

# Largest batch of requests for a model with a dynamic batch.
MAX_BATCH_SIZE = 8
LABELS = "labels.txt"
# Parameters of a backend by name, and a sentence for each setting that it has no parameter for.
Parameters = tuple[dict[str, str], tuple[str, ...]]


@dataclass(frozen=True)
class Backend:
    """Backend of Triton for one runtime.

    Attributes:
        files: name of the model file by kind.
        parameters: function that returns the parameters of the backend.
        platforms: platform by kind of file, for a backend with several.
        makes_batches: True if the backend joins requests to batches of any size up to `MAX_BATCH_SIZE`.
    """

    files: Mapping[str, str]
    parameters: Callable[[ServedModel], Parameters]
    platforms: Mapping[str, str] = field(default_factory=dict)
    makes_batches: bool = True


def write_repository(model: ServedModel, folder: Path) -> tuple[str, ...]:
    """Write the model repository; return a sentence for each setting that Triton has no parameter for."""
    parameters, notes = BACKENDS[model.deployment.runtime].parameters(model)
    repository = folder / "models" / model.name
    copy_model(model, repository / "1" / SERVER.file_name(model))
    if model.scores and model.label_names:
        write_labels(model.label_names, repository / LABELS)
    (repository / "config.pbtxt").write_text(_format_config(model, parameters))
    return notes


def _format_config(model: ServedModel, parameters: Mapping[str, str]) -> str:
    """Return the ModelConfig message of a model in protobuf's text form."""
    deployment = model.deployment
    backend = BACKENDS[deployment.runtime]
    has_batch = model.has_dynamic_batch and backend.makes_batches
    platform = backend.platforms.get(model.kind)
    tensors = [
        _format_tensor(field_name, info, array.ndim, has_batch, LABELS if info.name == labelled else "")
        for field_name, labelled, infos, arrays in (
            ("input", None, model.inputs, model.sample),
            ("output", model.scores if model.label_names else None, model.outputs, model.expected),
        )
        for info, array in zip(infos, arrays, strict=True)
    ]
    return "\n".join(
        [
            f"name: {_quote(model.name)}",
            f"platform: {_quote(platform)}" if platform else f"backend: {_quote(deployment.runtime)}",
            f"default_model_filename: {_quote(SERVER.file_name(model))}",
            f"max_batch_size: {MAX_BATCH_SIZE if has_batch else 0}",
            *tensors,
            f"instance_group {{ count: {deployment.streams or 1} kind: KIND_CPU }}",
            *(
                f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(value)} }} }}"
                for key, value in parameters.items()
            ),
            "",
        ]
    )


def _format_tensor(field_name: str, info: TensorInfo, rank: int, has_batch: bool, labels: str) -> str:
    """Return an input or output; ``dims`` is without the batch that Triton makes.

    Args:
        field_name: ``input`` or ``output``.
        info: the input or output.
        rank: number of its dimensions, if the file does not state it.
        has_batch: True if Triton makes batches.
        labels: label file; empty without labels.
    """
    sizes = [None] * rank if info.shape.dims is None else info.shape.dims
    dims = [-1 if size is None else size for size in sizes[has_batch:]]
    # A tensor without dimensions is sent as a vector of one element.
    shape = f"dims: {dims}" if dims else "dims: [ 1 ] reshape { shape: [ ] }"
    text = f"{field_name} {{ name: {_quote(info.name)} data_type: TYPE_{DATATYPES[info.dtype]} {shape}"
    return text + (f" label_filename: {_quote(labels)} }}" if labels else " }")


def _quote(text: str) -> str:
    return json.dumps(text)


def _threads(model: ServedModel) -> int | None:
    """Return the threads of each instance: instances do not share threads, as the streams of a session do."""
    deployment = model.deployment
    if (deployment.streams or 1) == 1:
        return deployment.options.intra_op
    return max((deployment.options.intra_op or available_cores()) // (deployment.streams or 1), 1)


def _onnxruntime_parameters(model: ServedModel) -> Parameters:
    options, threads = model.deployment.options, _threads(model)
    parameters = {"intra_op_thread_count": str(threads)} if threads else {}
    if (options.inter_op or 1) > 1:
        parameters |= {"inter_op_thread_count": str(options.inter_op), "execution_mode": "1"}
    note = f"the backend has no parameter for spinning={options.spinning}: it uses the default of ONNX Runtime"
    return parameters, () if options.spinning is None else (note,)


def _openvino_parameters(model: ServedModel) -> Parameters:
    stated = properties(model.deployment.session_options)
    names = ["PERFORMANCE_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS"]
    parameters = {name: stated[name] for name in names if name in stated}
    if stated["INFERENCE_PRECISION_HINT"] == "bf16":
        return {**parameters, "HINT_BF16": "YES"}, ()
    note = (
        f"the backend has no parameter for INFERENCE_PRECISION_HINT={stated['INFERENCE_PRECISION_HINT']}: on a "
        "processor with bfloat16 instructions, OpenVINO computes the float layers in bfloat16"
    )
    return parameters, (note,)


def _tensorflow_parameters(model: ServedModel) -> Parameters:
    options = model.deployment.options
    values = {
        "TF_NUM_INTRA_THREADS": _threads(model),
        "TF_NUM_INTER_THREADS": options.inter_op,
        "TF_SIGNATURE_DEF": model.signature,
    }
    note = f"the backend has no parameter for the precision {options.precision}: it computes in float32"
    parameters = {name: str(value) for name, value in values.items() if value}
    release = "25.02 is the last release of Triton with the TensorFlow backend"
    return parameters, (release,) if options.precision == "float32" else (release, note)


BACKENDS = {
    "onnxruntime": Backend({"onnx": "model.onnx"}, _onnxruntime_parameters),
    # It rejects batches that are smaller than max_batch_size; without it, it takes any batch of a dynamic model.
    "openvino": Backend({"onnx": "model.onnx"}, _openvino_parameters, makes_batches=False),
    "tensorflow": Backend(
        {"graphdef": "model.graphdef", "saved_model": "model.savedmodel"},
        _tensorflow_parameters,
        {"graphdef": "tensorflow_graphdef", "saved_model": "tensorflow_savedmodel"},
    ),
}


def _start(model: ServedModel) -> str:
    """Return the command that starts Triton."""
    variables = "".join(f" -e {name}={value}" for name, value in model.deployment.variables.items())
    return "\n".join(
        [
            "TAG is a release of Triton whose runtime is as new as the one above.",
            "",
            "```console",
            f"$ docker run --rm -p 8000:8000 -v $PWD/models:/models{variables} nvcr.io/nvidia/tritonserver:TAG-py3 \\",
            "    tritonserver --model-repository=/models",
            "```",
        ]
    )


SERVER = Server(
    name="triton",
    title="Triton",
    files={runtime: backend.files for runtime, backend in BACKENDS.items()},
    write=write_repository,
    start=_start,
    takes_scalars=False,
)
