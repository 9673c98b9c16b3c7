"""Marks and interventions at a named function of the job that returns its input pipeline; runs inside the job.

The function gets a decorator when its file is compiled, so the job's files do not change. Like `agent`, this module has
no imports from quantkit.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

NAME = "quantkit_pipeline"
# Runs a script as ``python SCRIPT`` does, but with the loader that adds the decorator.
LAUNCHER = """
import os, sys
from importlib.machinery import SourceFileLoader
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
__file__ = sys.argv[0]
exec(SourceFileLoader("__main__", __file__).get_code("__main__"))
"""


def install(markers: ModuleType, target: str) -> None:
    """Add the decorator to a function when its file is loaded.

    Args:
        markers: module `markers`.
        target: ``FILE.py:FUNCTION``.
    """
    file, _, function = target.rpartition(":")
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> Any:
        path = loader.get_filename(fullname)
        if not os.path.exists(path) or not os.path.samefile(path, file):
            return original(loader, fullname)
        tree = ast.parse(loader.get_data(path), path)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                decorator = ast.parse(f"__import__({NAME!r}).decorate", mode="eval").body
                node.decorator_list.insert(0, ast.copy_location(decorator, node))
        return compile(ast.fix_missing_locations(tree), path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    sys.modules[NAME] = sys.modules[__name__]
    Pipeline.markers = markers


def decorate(function: Any) -> Any:
    """Return a function that marks the batches of the pipeline that the given function returns."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        pipeline = function(*arguments, **keywords)
        is_dataset = all(hasattr(pipeline, name) for name in ("element_spec", "take", "cache", "repeat"))
        return _mark_dataset(pipeline) if is_dataset else Pipeline(pipeline)

    return call


class Pipeline:
    """Iterable of marked batches, with the other attributes of the original pipeline.

    Args:
        pipeline: iterable of batches.
    """

    markers: ModuleType

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._batches: Any = None

    def __iter__(self) -> Any:
        return self.markers.batches(self._pipeline)

    def __next__(self) -> Any:
        self._batches = self._batches or iter(self)
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._pipeline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


def _mark_dataset(dataset: Any) -> Any:
    """Return a ``tf.data.Dataset`` that marks each batch, after the intervention."""
    tensorflow = sys.modules["tensorflow"]
    markers = Pipeline.markers
    mode, _, count = os.environ.get(markers.MODE_VARIABLE, "").partition(":")
    if mode == "drain":
        for _ in markers.batches(dataset):  # raises SystemExit at the end
            pass
    if mode == "repeat":
        dataset = dataset.take(1).cache().repeat(int(count))

    def add_mark() -> Any:
        markers.step()
        return 0

    def mark(*element: Any) -> Any:
        done = tensorflow.py_function(add_mark, [], tensorflow.int64)
        with tensorflow.control_dependencies([done]):
            marked = tensorflow.nest.map_structure(tensorflow.identity, element)
        return marked if len(marked) > 1 else marked[0]

    return dataset.map(mark)
