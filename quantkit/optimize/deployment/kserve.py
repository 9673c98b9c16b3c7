"""KServe: an InferenceService whose predictor is Triton, and the model repository for its storage.

inference-service.yaml
models/NAME/...         see `quantkit.optimize.deployment.triton`
"""

import json
import re
from math import ceil
from pathlib import Path
from typing import Any

from quantkit.cores import available_cores
from quantkit.optimize.deployment import triton
from quantkit.optimize.deployment.served_model import ServedModel
from quantkit.optimize.deployment.server import Server
from quantkit.runtimes import find_runtime

FILE = "inference-service.yaml"
# Maximum length of the name of a service in Kubernetes.
MAX_NAME = 63


def _write(model: ServedModel, folder: Path) -> tuple[str, ...]:
    """Write the service and the model repository."""
    notes = triton.write_repository(model, folder)
    (folder / FILE).write_text(format_yaml(describe_service(model)))
    return notes


def describe_service(model: ServedModel) -> dict[str, Any]:
    """Return the InferenceService of a model."""
    deployment, name = model.deployment, _service_name(model)
    threads = (deployment.options.intra_op or available_cores()) * (deployment.options.inter_op or 1)
    # Requests equal limits, so that the pod keeps its CPUs.
    resources = {"cpu": str(threads), "memory": f"{_memory_gib(model)}Gi"}
    predictor: dict[str, Any] = {
        "modelFormat": {"name": "triton", "version": "2"},
        "protocolVersion": "v2",
        "runtime": "kserve-tritonserver",
        "storageUri": f"pvc://{name}/models",
        "resources": {"requests": resources, "limits": resources},
    }
    if deployment.variables:
        predictor["env"] = [{"name": key, "value": value} for key, value in deployment.variables.items()]
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"predictor": {"model": predictor}},
    }


def _service_name(model: ServedModel) -> str:
    """Return the name of a model as Kubernetes allows it: lower case letters, digits and ``-``."""
    name = re.sub(r"[^a-z0-9]+", "-", model.name.lower()).strip("-")
    return (name if name[:1].isalpha() else f"model-{name}")[:MAX_NAME].rstrip("-")


def _memory_gib(model: ServedModel) -> int:
    """Return a memory limit: the copies of the weights while the model is loaded, for each instance, and 1 GiB."""
    file = model.deployment.file
    paths = [path for path in file.rglob("*") if path.is_file()] if file.is_dir() else [file]
    copies = find_runtime(model.deployment.runtime).weight_copies * (model.deployment.streams or 1)
    return 1 + ceil(copies * sum(path.stat().st_size for path in paths) / 2**30)


def format_yaml(value: Any, indent: str = "") -> str:
    """Return a mapping of texts, mappings and lists of mappings as YAML.

    >>> print(format_yaml({"a": {"b": "2"}, "c": [{"d": "x", "e": "y"}]}), end="")
    a:
      b: "2"
    c:
      - d: "x"
        e: "y"
    """
    lines = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines.append(f"{indent}{key}:\n{format_yaml(item, indent + '  ')}")
        elif isinstance(item, list):
            parts = (f"{indent}  - {format_yaml(part, f'{indent}    ').lstrip()}" for part in item)
            lines.append(f"{indent}{key}:\n{''.join(parts)}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(item)}\n")
    return "".join(lines)


def _start(model: ServedModel) -> str:
    """Return the commands that start the service."""
    name = _service_name(model)
    return "\n".join(
        [
            f"Copy `models/` to a volume claim `{name}`, or to another store and name it in `storageUri`. Then:",
            "",
            "```console",
            f"$ kubectl apply -f {FILE}",
            f"$ kubectl wait --for=condition=Ready inferenceservice/{name}",
            f"$ kubectl get inferenceservice {name} -o jsonpath='{{.status.url}}'",
            "```",
            "",
            "Pass this address to the client with `--url`. If a gateway serves it, pass the address of the gateway",
            "with `--url`, and the host of the service with `--host`.",
        ]
    )


SERVER = Server(
    name="kserve",
    title="KServe",
    files=triton.SERVER.files,
    write=_write,
    start=_start,
    takes_scalars=False,
)
