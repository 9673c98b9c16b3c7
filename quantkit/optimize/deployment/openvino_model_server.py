"""OpenVINO Model Server: a model with versions, and a configuration file.

models/config.json
models/NAME/1/model.onnx
"""

import json
from pathlib import Path

from quantkit.optimize.deployment.client import copy_model
from quantkit.optimize.deployment.served_model import ServedModel
from quantkit.optimize.deployment.server import Server
from quantkit.runtimes.openvino import properties


def _write(model: ServedModel, folder: Path) -> tuple[str, ...]:
    """Write model and configuration; the server has a parameter for each setting."""
    copy_model(model, folder / "models" / model.name / "1" / SERVER.file_name(model))
    streams = model.deployment.streams
    config = {
        "name": model.name,
        "base_path": f"/models/{model.name}",
        "target_device": "CPU",
        # One more request object for each stream: its data is copied while the stream computes.
        **({"nireq": 2 * streams} if streams else {}),
        "plugin_config": properties(model.deployment.session_options),
    }
    document = {"model_config_list": [{"config": config}]}
    (folder / "models" / "config.json").write_text(json.dumps(document, indent=2) + "\n")
    return ()


def _start(model: ServedModel) -> str:
    """Return the command that starts the server."""
    variables = "".join(f" -e {name}={value}" for name, value in model.deployment.variables.items())
    return "\n".join(
        [
            "```console",
            f"$ docker run --rm -p 8000:8000 -v $PWD/models:/models{variables} openvino/model_server:latest \\",
            "    --config_path /models/config.json --rest_port 8000",
            "```",
        ]
    )


SERVER = Server(
    name="openvino-model-server",
    title="OpenVINO Model Server",
    files={"openvino": {"onnx": "model.onnx", "tflite": "model.tflite"}},
    write=_write,
    start=_start,
)
