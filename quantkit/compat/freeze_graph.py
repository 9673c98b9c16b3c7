"""TensorFlow's own ``freeze_graph``, which its package still holds, for what only it does: running nodes before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.errors import InputError
from quantkit.formats.kinds import HEAD_BYTES, is_text, open_file
from quantkit.runtimes.availability import require
from quantkit.runtimes.tensorflow_library import (
    available,
    import_tensorflow,
    suppress_log,
    translate_error,
    translate_read_errors,
)

HINT = "quantkit transform GRAPH --checkpoint PREFIX -o OUT.pb reads more kinds of variables, and says what it lacks"


def freeze_graph(flags: Mapping[str, Any]) -> bytes:
    """A serialized GraphDef with constants in the place of variables.

    Args:
        flags: what the tool's function takes, but for what is written where: names without dashes. Whether the files
            are text or binary is seen, whatever ``input_binary`` says.

    Raises:
        InputError: a file is missing or can not be read, or the tool refuses the graph.
        UnavailableError: TensorFlow is not installed.
    """
    require(available())
    tf = import_tensorflow()
    files = {name: Path(flags[name]) for name in ("input_graph", "input_meta_graph", "input_saver") if flags.get(name)}
    for path in files.values():
        if not path.is_file():
            raise InputError(f"{path} does not exist", hint="name the file that the training program wrote")
    source = flags.get("input_saved_model_dir") or flags.get("input_checkpoint") or "the graph"
    with translate_read_errors(str(source), HINT), suppress_log(), tf.Graph().as_default():
        from tensorflow.python.tools import freeze_graph as tool

        readers = {
            "input_graph": tool._parse_input_graph_proto,
            "input_meta_graph": tool._parse_input_meta_graph_proto,
            "input_saver": tool._parse_input_saver_proto,
        }
        read = {name: readers[name](str(path), not _is_text(path)) for name, path in files.items()}
        others = {name: value for name, value in flags.items() if name not in (*readers, "input_binary")}
        tags = [tag for tag in flags["saved_model_tags"].replace(" ", "").split(",") if tag]
        try:
            made = tool.freeze_graph_with_def_protos(
                **others | {"output_graph": "", "saved_model_tags": tags},
                input_graph_def=read.get("input_graph"),
                input_saver_def=read.get("input_saver"),
                input_meta_graph_def=read.get("input_meta_graph"),
            )
        except tf.errors.OpError as error:
            raise translate_error(error, {}) from error
        return bytes(made.SerializeToString(deterministic=True))


def _is_text(path: Path) -> bool:
    with open_file(path) as file:
        return is_text(file.read(HEAD_BYTES))
