"""The command line: one short module for each command."""

from ._app import main

__all__ = ["main"]
