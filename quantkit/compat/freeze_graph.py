"""TensorFlow's ``freeze_graph``: variables become constants.

Most calls need no TensorFlow. Its own tool, which is still in its package, runs only for the flags
that need it, for example nodes that run before the variables are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.arguments import expand_user
from quantkit.compat.benchmark_model import SPELLED
from quantkit.errors import InputError, UsageError
from quantkit.formats import check_target, graphdef
from quantkit.formats.files import save_graphdef
from quantkit.formats.kinds import HEAD_BYTES, is_text, open_file
from quantkit.formats.sizes import format_size
from quantkit.ir.graph import Graph
from quantkit.model import as_model
from quantkit.options import Declaration, option
from quantkit.progress import OnProgress, ignore_progress
from quantkit.recipes import rewrite
from quantkit.runtimes.tensorflow_library import (
    import_tensorflow,
    suppress_log,
    translate_error,
    translate_read_errors,
)

HINT = "run quantkit transform GRAPH --checkpoint PREFIX -o OUT.pb, which supports more variable ops"
_IGNORED = Declaration(help="ignored; kept for compatibility")


@dataclass(frozen=True)
class FreezeGraphFlags:
    """Flags of TensorFlow's tool, except the output file."""

    input_graph: str = option("", help="GraphDef file to read, binary or text")
    input_saver: str = option("", help="SaverDef file to read (default: none)")
    input_checkpoint: str = option("", help="prefix of the checkpoint files")
    checkpoint_version: int = option(2, help="version of the checkpoint format (default: 2)", choices=(1, 2))
    input_binary: bool = option(False, SPELLED, help="input is binary (default: auto-detected)")
    output_node_names: str = option("", help="comma-separated output names")
    restore_op_name: str = option("save/restore_all", _IGNORED)
    filename_tensor_name: str = option("save/Const:0", _IGNORED)
    clear_devices: bool = option(True, SPELLED, help="remove the device strings of nodes (default: true)")
    initializer_nodes: str = option("", help="comma-separated names of nodes that run before the variables are read")
    variable_names_whitelist: str = option("", help="comma-separated names of the variables to freeze (default: all)")
    variable_names_denylist: str = option("", help="comma-separated names of the variables to keep (default: none)")
    input_meta_graph: str = option("", help="MetaGraphDef file to read instead of a GraphDef")
    input_saved_model_dir: str = option("", help="SavedModel folder to read instead of a GraphDef")
    saved_model_tags: str = option("serve", help="comma-separated tags of a SavedModel graph (default: serve)")


@dataclass(frozen=True)
class FrozenFile:
    """File with a frozen graph.

    Attributes:
        path: the file.
        num_nodes: number of nodes of the graph.
        num_bytes: size of the file.
    """

    path: Path
    num_nodes: int
    num_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit freeze_graph --json``."""
        return {
            "schema": "quantkit.freeze_graph/1",
            "output": str(self.path),
            "nodes": self.num_nodes,
            "num_bytes": self.num_bytes,
        }

    def __str__(self) -> str:
        return f"{self.path}: {self.num_nodes} nodes, {format_size(self.num_bytes)}"


def write_frozen_graph(
    flags: Mapping[str, Any],
    output: str,
    *,
    offline: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> FrozenFile:
    """Replace variables by constants, and write the graph to a GraphDef file.

    Args:
        flags, offline, on_progress: see `freeze_graph`.
        output: file to write.

    Raises:
        UsageError: a required flag is missing, or the file is not writable.
        InputError, UnavailableError: see `freeze_graph`.
    """
    if not flags["output_node_names"]:
        raise UsageError("You need to supply the name of a node to --output_node_names.", hint="separate several by ,")
    if not output:
        raise UsageError("no output file is given", hint="give --output_graph=FILE.pb")
    if not (flags["input_graph"] or flags["input_meta_graph"] or flags["input_saved_model_dir"]):
        raise UsageError("no graph is given", hint="give --input_graph, --input_meta_graph or --input_saved_model_dir")
    path = expand_user(output)
    check_target(path)
    graph = freeze_graph(flags, offline=offline, on_progress=on_progress)
    save_graphdef(graph, path)
    return FrozenFile(path, len(graph), path.stat().st_size)


def freeze_graph(
    flags: Mapping[str, Any],
    *,
    offline: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Graph:
    """Replace variables by constants.

    Args:
        flags: values of `FreezeGraphFlags`. ``input_binary`` is ignored: the encoding is detected.
        offline: never download a known model.
        on_progress: receives the progress of a download.

    Raises:
        InputError: a file is missing or cannot be read, or the tool rejects the graph.
        UnavailableError: TensorFlow is needed and not installed.
    """
    if _needs_tensorflow(flags):
        return graphdef.decode(_run_tensorflow_tool(flags))
    source = flags["input_saved_model_dir"] or flags["input_graph"] or flags["input_meta_graph"]
    model = as_model(
        source,
        outputs=_split(flags["output_node_names"]),
        tags=_split(flags["saved_model_tags"]) if flags["input_saved_model_dir"] else None,
        checkpoint=(flags["input_checkpoint"] or None) if source == flags["input_graph"] else None,
        offline=offline,
        on_progress=on_progress,
    )
    return rewrite(model.graph, "remove_device") if flags["clear_devices"] else model.graph


def _needs_tensorflow(flags: Mapping[str, Any]) -> bool:
    """Return True if a flag needs TensorFlow's own tool."""
    has_own_meta = flags["input_meta_graph"] not in ("", f"{flags['input_checkpoint']}.meta")
    names = ("initializer_nodes", "variable_names_whitelist", "variable_names_denylist")
    return has_own_meta or any(flags[name] for name in (*names, "input_saver"))


def _run_tensorflow_tool(flags: Mapping[str, Any]) -> bytes:
    """Return the serialized GraphDef of TensorFlow's own tool."""
    tf = import_tensorflow()
    file_flags = ("input_graph", "input_meta_graph", "input_saver")
    files = {name: Path(flags[name]) for name in file_flags if flags.get(name)}
    for path in files.values():
        if not path.is_file():
            raise InputError(f"{path} does not exist", hint="check the path")
    source = flags["input_saved_model_dir"] or flags["input_checkpoint"] or "the graph"
    with translate_read_errors(str(source), HINT), suppress_log(), tf.Graph().as_default():
        from tensorflow.python.tools import freeze_graph as tool

        parse_functions = {
            "input_graph": tool._parse_input_graph_proto,
            "input_meta_graph": tool._parse_input_meta_graph_proto,
            "input_saver": tool._parse_input_saver_proto,
        }
        messages = {name: parse_functions[name](str(path), not _is_text(path)) for name, path in files.items()}
        parsed_flags = (*file_flags, "input_binary", "saved_model_tags")
        others = {name: value for name, value in flags.items() if name not in parsed_flags}
        try:
            frozen = tool.freeze_graph_with_def_protos(
                **others,
                output_graph="",
                saved_model_tags=_split(flags["saved_model_tags"]),
                input_graph_def=messages.get("input_graph"),
                input_saver_def=messages.get("input_saver"),
                input_meta_graph_def=messages.get("input_meta_graph"),
            )
        except tf.errors.OpError as error:
            raise translate_error(error, {}) from error
        return bytes(frozen.SerializeToString(deterministic=True))


def _is_text(path: Path) -> bool:
    with open_file(path) as file:
        return is_text(file.read(HEAD_BYTES))


def _split(text: str) -> list[str]:
    return [part for part in text.replace(" ", "").split(",") if part]
