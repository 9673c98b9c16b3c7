"""Bytes to graphs and back: the only layer that knows protobuf."""

from quantkit.formats.files import (
    ENDINGS,
    KINDS,
    check_folder,
    check_target,
    decode,
    kind_of,
    load,
    meta_graphs,
    save,
    save_graphdef,
    save_onnx,
    save_saved_model,
    with_guessed_ends,
    write_whole,
)

__all__ = [
    "ENDINGS",
    "KINDS",
    "check_folder",
    "check_target",
    "decode",
    "kind_of",
    "load",
    "meta_graphs",
    "save",
    "save_graphdef",
    "save_onnx",
    "save_saved_model",
    "with_guessed_ends",
    "write_whole",
]
