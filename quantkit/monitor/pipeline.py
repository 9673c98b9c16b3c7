"""Marks and interventions at the input pipeline of a job; runs inside the job.

The pipeline is that of a named function, or the dataset of a Keras `fit`. The function gets a decorator when its file
is compiled, so the job's files do not change. Like `agent`, this module has no imports from quantkit.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

NAME = "quantkit_pipeline"
# Target of `install` that stands for the ``fit`` of every Keras model.
KERAS_FIT = "keras:fit"
_KERAS_FILES = re.compile(r"/(keras/src/backend/\w+/trainer|tf_keras/src/engine/training)\.py$")
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
        target: ``FILE.py:FUNCTION``, or `KERAS_FIT`.
    """
    file, _, function = target.rpartition(":")
    is_keras = target == KERAS_FIT
    original = SourceFileLoader.get_code

    def is_target(path: str) -> bool:
        if is_keras:
            return bool(_KERAS_FILES.search(path))
        return os.path.exists(path) and os.path.samefile(path, file)

    def get_code(loader: SourceFileLoader, fullname: str) -> Any:
        path = loader.get_filename(fullname)
        if not is_target(path):
            return original(loader, fullname)
        tree = ast.parse(loader.get_data(path), path)
        for node in ast.walk(tree) if is_keras else tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                name = "decorate_fit" if is_keras else "decorate"
                decorator = ast.parse(f"__import__({NAME!r}).{name}", mode="eval").body
                node.decorator_list.insert(0, ast.copy_location(decorator, node))
        return compile(ast.fix_missing_locations(tree), path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    sys.modules[NAME] = sys.modules[__name__]
    Pipeline.markers = markers


def decorate(function: Any) -> Any:
    """Return a function that marks the batches of the pipeline that the given function returns."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        pipeline = function(*arguments, **keywords)
        return _mark_dataset(pipeline) if _is_dataset(pipeline) else Pipeline(pipeline)

    return call


def decorate_fit(fit: Any) -> Any:
    """Return the ``fit`` of a Keras model that marks the batches of a dataset."""

    def call(model: Any, x: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if _is_dataset(x):
            Pipeline.markers.mark_hook()
            x = _mark_dataset(x)
        return fit(model, x, *arguments, **keywords)

    return call


def _is_dataset(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("element_spec", "take", "cache", "repeat"))


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
