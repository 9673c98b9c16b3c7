"""SavedModels, Keras models and TensorFlow functions as frozen graphs: variables become constants.

TensorFlow's own loaders read them, in inference mode; nothing of a model file is executed (Keras' safe mode stays on).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.errors import InputError, UnavailableError
from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph
from quantkit.runtimes.tensorflow import RUNTIME, module, quiet


def freeze_file(path: Path, *, signature: str = "serving_default") -> Graph:
    """The frozen graph of a SavedModel folder or a Keras file.

    Args:
        path: the folder or file.
        signature: which one of a SavedModel; where it has a single one, that is taken whatever its name.

    Raises:
        InputError: TensorFlow can not read it, or it has no such signature.
        UnavailableError: TensorFlow is not installed.
    """
    tf = _tensorflow()
    try:
        with quiet():
            if not path.is_dir():
                return freeze_object(tf.keras.models.load_model(path, compile=False, safe_mode=True))
            loaded = tf.saved_model.load(str(path))  # owns the variables: a signature alone would lose them
            return _freeze(_signature(loaded.signatures, signature, path))
    except (ValueError, OSError, TypeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} can not be read by TensorFlow: {reason}") from None


def freeze_object(model: Any) -> Graph:
    """The frozen graph of a Keras model, or of a ``tf.function`` with a signature.

    Raises:
        InputError: it is neither.
        UnavailableError: TensorFlow is not installed.
    """
    tf = _tensorflow()
    if isinstance(model, tf.keras.Model):
        specs = [tf.TensorSpec(one.shape, one.dtype, name=one.name.split(":")[0]) for one in model.inputs]
        function = tf.function(
            lambda *tensors: model(list(tensors) if len(tensors) > 1 else tensors[0], training=False)
        )
        return _freeze(function.get_concrete_function(*specs))
    if hasattr(model, "get_concrete_function"):
        return _freeze(model.get_concrete_function())
    if hasattr(model, "structured_input_signature"):
        return _freeze(model)
    raise InputError(
        f"a {type(model).__name__} is no model that quantkit reads",
        hint="give a file, a GraphDef, a Keras model or a tf.function with an input signature",
    )


def _signature(signatures: Mapping[str, Any], name: str, path: Path) -> Any:
    """The signature of that name, or the only one."""
    if name in signatures:
        return signatures[name]
    if len(signatures) == 1:
        return next(iter(signatures.values()))
    others = f"no signature {name!r}, but {', '.join(sorted(signatures))}" if signatures else "no signatures"
    raise InputError(f"{path} has {others}", hint=f"export it with one signature, or with one that is called {name!r}")


def _freeze(function: Any) -> Graph:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    graph = graphdef.decode(frozen.graph.as_graph_def().SerializeToString())
    inputs = [Edge.parse(tensor.name) for tensor in frozen.inputs if tensor.dtype.name != "resource"]
    return graph.with_ends(inputs, [Edge.parse(tensor.name) for tensor in frozen.outputs])


def _tensorflow() -> Any:
    if not RUNTIME.available().ok:
        raise UnavailableError(
            "SavedModels and Keras models are read by TensorFlow, which is not installed",
            hint="pip install tensorflow, or freeze the model to a .pb elsewhere",
        )
    return module()
