"""Asks the original Graph Transform Tool, as TensorFlow 2.12 and before held it, and prints its answers.

Run by a Python that has it; nothing of quantkit is needed there. Each line of standard input is a JSON list
``[graph, inputs, outputs, transforms]`` whose graph is a GraphDef in base64; each answer is a line, ``{"graph": ...}``,
``{"error": ...}``, or ``{"died": ...}`` where the tool aborted or did not end within `SECONDS`. Every question has a
process of its own.
"""

import base64
import json
import os
import select
import signal
import sys

SECONDS = 8


def main() -> None:
    # Not when it is only imported, as the search for doctests does: the engines of the other tests heed these.
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="4", CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0")
    import tensorflow  # noqa: F401  (the binding below needs it loaded)
    from tensorflow.python.util import _pywrap_transform_graph as binding

    for line in sys.stdin:
        graph, inputs, outputs, transforms = json.loads(line)
        ends = inputs.encode(), outputs.encode(), transforms.encode()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writer, "w") as pipe:
                pipe.write(json.dumps(answer(binding, base64.b64decode(graph), *ends)))
            os._exit(0)
        os.close(writer)
        print(wait(child, reader), flush=True)


def answer(binding: object, graph: bytes, inputs: bytes, outputs: bytes, transforms: bytes) -> dict[str, str]:
    try:
        made = binding.TransformGraphWithStringInputs(graph, inputs, outputs, transforms)  # type: ignore[attr-defined]
    except Exception as error:  # whatever it raises is the answer
        return {"error": str(error)}
    return {"graph": base64.b64encode(made).decode()}


def wait(child: int, reader: int) -> str:
    """What a child writes until it ends, or how it died."""
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
        ended = os.WTERMSIG(status) == signal.SIGKILL
        return json.dumps({"died": "it never ends" if ended else "it aborts"})
    return text.decode()


if __name__ == "__main__":
    main()
