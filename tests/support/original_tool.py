"""Run the original Graph Transform Tool of TensorFlow 2.12 and earlier, and print its results.

Run this file with a Python that has such a TensorFlow; quantkit is not required. Each line of standard input is a JSON
list ``[graph, inputs, outputs, transforms]`` whose graph is a GraphDef in base64. Each result is a line:
``{"graph": ...}``, ``{"error": ...}``, or ``{"died": ...}`` if the tool aborts or exceeds `SECONDS`. Each graph is
transformed in a separate process.
"""

import base64
import json
import os
import select
import signal
import sys

SECONDS = 8


def main() -> None:
    # Not at import, because the search for doctests imports this file: other runtimes obey these variables.
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="4", CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0")
    import tensorflow  # noqa: F401  (the binding below needs it loaded)
    from tensorflow.python.util import _pywrap_transform_graph as binding

    for line in sys.stdin:
        graph, inputs, outputs, transforms = json.loads(line)
        arguments = inputs.encode(), outputs.encode(), transforms.encode()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writer, "w") as pipe:
                pipe.write(json.dumps(transform(binding, base64.b64decode(graph), *arguments)))
            os._exit(0)
        os.close(writer)
        print(read_result(child, reader), flush=True)


def transform(binding: object, graph: bytes, inputs: bytes, outputs: bytes, transforms: bytes) -> dict[str, str]:
    try:
        transformed = binding.TransformGraphWithStringInputs(graph, inputs, outputs, transforms)  # type: ignore[attr-defined]
    except Exception as error:  # every error is a result
        return {"error": str(error)}
    return {"graph": base64.b64encode(transformed).decode()}


def read_result(child: int, reader: int) -> str:
    """Return the output of a child process, or a line about its abnormal end."""
    text = b""
    while select.select([reader], [], [], SECONDS)[0]:
        part = os.read(reader, 1 << 20)
        if not part:
            break
        text += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        is_killed = os.WTERMSIG(status) == signal.SIGKILL
        return json.dumps({"died": "it never ends" if is_killed else "it aborts"})
    return text.decode()


if __name__ == "__main__":
    main()
