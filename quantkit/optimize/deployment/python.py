"""Python: a FastAPI server that opens the file in the API of its runtime.

server.py           routes of the inference protocol version 2, and POST /classify for images
model.py            the open model, with the settings of the deployment
requirements.txt
models/model.onnx
"""

from pathlib import Path
from textwrap import indent

from quantkit.optimize.deployment.client import copy_model, write_template
from quantkit.optimize.deployment.served_model import ServedModel
from quantkit.optimize.deployment.server import Server
from quantkit.runtimes import find_runtime

# Name of the template of model.py by runtime and kind of file.
TEMPLATES = {
    "onnxruntime": {"onnx": "onnxruntime"},
    "openvino": {"onnx": "openvino", "tflite": "openvino"},
    "tensorflow": {"graphdef": "tensorflow_graphdef", "saved_model": "tensorflow_saved_model"},
    "litert": {"tflite": "litert"},
}
FILE_NAMES = {"onnx": "model.onnx", "tflite": "model.tflite", "graphdef": "model.pb", "saved_model": "model"}
# Packages of server.py and images.py.
REQUIREMENTS = ("fastapi>=0.115,<1", "uvicorn>=0.30,<1", "numpy>=1.26", "pillow>=10.3")


def _write(model: ServedModel, folder: Path) -> tuple[str, ...]:
    """Write server, model and requirements; the runtime has an option for each setting."""
    runtime = find_runtime(model.deployment.runtime)
    assert runtime.native_options is not None
    file = SERVER.file_name(model)
    copy_model(model, folder / "models" / file)
    options = runtime.native_options(model.deployment.session_options, "FILE")
    # The options as code may end with those without a session.
    code = "\n".join(line for line in options.splitlines() if not line.startswith("tf.config.threading."))
    write_template(
        "model.py",
        folder,
        template=f"model_{TEMPLATES[runtime.name][model.kind]}.py",
        file=file,
        options=code,
        indented_options=indent(code, "    "),
        signature=repr(model.signature),
    )
    write_template("server.py", folder)
    release = model.runtime.version.split(".")
    bounds = f"{runtime.package}>={'.'.join(release[:2])},<{int(release[0]) + 1}"
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in (*REQUIREMENTS, bounds)))
    return ()


def _start(model: ServedModel) -> str:
    """Return the commands that start the server."""
    return "\n".join(
        [
            "```console",
            "$ python -m venv .venv && .venv/bin/pip install -r requirements.txt",
            "$ .venv/bin/python server.py --port 8000",
            "```",
            "",
            "`POST /classify` takes the bytes of an image and returns the best classes. The routes `/v2` are those of",
            "the inference protocol version 2: health, metadata and `POST /v2/models/NAME/infer`.",
        ]
    )


SERVER = Server(
    name="python",
    title="the Python server",
    files={runtime: {kind: FILE_NAMES[kind] for kind in templates} for runtime, templates in TEMPLATES.items()},
    write=_write,
    start=_start,
)
