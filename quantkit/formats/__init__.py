"""Bytes to graphs and back: the only layer that knows protobuf."""

from quantkit.formats.files import (
    check_folder,
    check_target,
    decode,
    load,
    meta_graphs,
    save,
    save_graphdef,
    save_onnx,
    save_saved_model,
    with_guessed_ends,
    write_whole,
)
from quantkit.formats.kinds import ENDINGS, KINDS, kind_of, whole_of

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
    "whole_of",
    "with_guessed_ends",
    "write_whole",
]
