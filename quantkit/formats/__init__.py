"""Readers and writers of model files: the only package that uses protobuf."""

from quantkit.formats.files import (
    check_folder,
    check_target,
    decode,
    external_data_files,
    infer_endpoints,
    load,
    meta_graphs,
    name_written_files,
    save,
    save_folder_metadata,
    save_graphdef,
    save_onnx,
    save_saved_model,
    whole_folder,
    write_whole,
)
from quantkit.formats.kinds import KINDS, PYTORCH_SUFFIXES, SUFFIXES, TENSORRT_SUFFIXES, kind_of, model_path
from quantkit.formats.paths import check_distinct, check_outputs

__all__ = [
    "KINDS",
    "PYTORCH_SUFFIXES",
    "SUFFIXES",
    "TENSORRT_SUFFIXES",
    "check_distinct",
    "check_folder",
    "check_outputs",
    "check_target",
    "decode",
    "external_data_files",
    "infer_endpoints",
    "kind_of",
    "load",
    "meta_graphs",
    "model_path",
    "name_written_files",
    "save",
    "save_folder_metadata",
    "save_graphdef",
    "save_onnx",
    "save_saved_model",
    "whole_folder",
    "write_whole",
]
