"""Bytes to graphs and back: the only layer that knows protobuf."""

from quantkit.formats.files import ENDINGS, KINDS, check_target, kind_of, load, save, with_guessed_ends, write_whole

__all__ = ["ENDINGS", "KINDS", "check_target", "kind_of", "load", "save", "with_guessed_ends", "write_whole"]
