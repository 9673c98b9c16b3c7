"""Read mutated models with importers that use TensorFlow, in a separate process, which TensorFlow may crash.

    python mutated_models.py FOLDER SEED KIND FIRST COUNT [KIND FIRST COUNT ...]

Prints one line per model to stdout before the model is read, and one line per unexpected result.
"""

import io
import signal
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from mutations import BINARY, TEXT, Mutation, Random, mutate_files, overwrite

import quantkit as qk
from quantkit.errors import QuantkitError
from quantkit.formats import graphdef
from quantkit.model.importers import keras as keras_reader
from quantkit.model.importers.keras_contents import Contents, inspect_contents
from quantkit.runtimes.tensorflow_library import import_tensorflow, suppress_log

# Limit of CPU time per model, ten times the usual maximum; a model above the limit ends the process.
MAX_SECONDS = 20.0
W = np.arange(12, dtype=np.float32).reshape(4, 3)


def saved_model_v2(folder: Path) -> Path:
    tf = import_tensorflow()
    module = tf.Module()
    module.w = tf.Variable(W)
    run = tf.function(lambda x: {"y": x @ module.w}, input_signature=[tf.TensorSpec([None, 4], name="x")])
    tf.saved_model.save(module, str(folder / "second"), signatures=run.get_concrete_function())
    return folder / "second"


def saved_model_v1(folder: Path) -> Path:
    return _session(folder, "first", _saved_model)


def checkpoint(folder: Path, form: str = "V2") -> Path:
    return _session(folder, f"checkpoint{form}", partial(_checkpoint, form=form))


def _session(folder: Path, name: str, write: Callable[[Any, Any, Path, Any, Any], Path]) -> Path:
    tf = import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights = v1.get_variable("w", [4, 3], partitioner=v1.fixed_size_partitioner(2))
        y = tf.matmul(x, tf.convert_to_tensor(weights), name="y")
        session.run(v1.global_variables_initializer())
        return write(v1, session, folder / name, x, y)


def _saved_model(v1: Any, session: Any, folder: Path, x: Any, y: Any) -> Path:
    builder = v1.saved_model.Builder(str(folder))
    signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
    builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map={"serving_default": signature})
    builder.save()
    return folder


def _checkpoint(v1: Any, session: Any, folder: Path, x: Any, y: Any, form: str) -> Path:
    folder.mkdir()
    v1.train.Saver(write_version=getattr(v1.train.SaverDef, form)).save(session, str(folder / "m"))
    return folder / "m"


def saved_model_text(folder: Path) -> Path:
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_v2(folder)
    message = saved_model_pb2.SavedModel.FromString((model / "saved_model.pb").read_bytes())
    (model / "saved_model.pb").unlink()
    (model / "saved_model.pbtxt").write_text(text_format.MessageToString(message))
    return model


def keras(folder: Path, ending: str = ".keras") -> Path:
    layers = import_tensorflow().keras.layers
    model = import_tensorflow().keras.Sequential(
        [layers.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(3)]
    )
    model.save(folder / f"m{ending}")
    return folder / f"m{ending}"


def mutate_member(name: str, mutation: Mutation, data: bytes, random: Random) -> bytes:
    """Mutate one member of a valid archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(archive, "w") as new:
        for entry in old.namelist():
            content = old.read(entry)
            new.writestr(entry, mutation(content, random) if entry == name else content)
    return archive.getvalue()


def change_one_byte(data: bytes, random: Random) -> bytes:
    """Change one byte, such that most of the file is still read."""
    changed = bytearray(data)
    position = int(random.integers(0, len(changed)))
    changed[position] = (changed[position] ^ 1 << int(random.integers(0, 8)), 0, 255, 128)[int(random.integers(0, 4))]
    return bytes(changed)


@dataclass(frozen=True)
class ModelKind:
    """Kind of model with its mutations.

    Attributes:
        make: writes a valid model into a folder and returns its path.
        file: file to mutate, relative to the model; empty for the model itself.
        mutations: mutations to choose from.
        outputs: outputs to load.
    """

    make: Callable[[Path], Path]
    file: str = ""
    mutations: tuple[Mutation, ...] = (*BINARY, change_one_byte, change_one_byte, change_one_byte)
    outputs: tuple[str, ...] | None = None


CONFIG = tuple(partial(mutate_member, "config.json", mutation) for mutation in TEXT)
KINDS = {
    "SavedModel v2": ModelKind(saved_model_v2, "saved_model.pb"),
    "SavedModel v2's index": ModelKind(saved_model_v2, "variables/variables.index"),
    "SavedModel v2's values": ModelKind(saved_model_v2, "variables/variables.data-00000-of-00001"),
    "SavedModel text": ModelKind(saved_model_text, "saved_model.pbtxt", TEXT),
    "SavedModel v1": ModelKind(saved_model_v1, "saved_model.pb"),
    "checkpoint's graph": ModelKind(checkpoint, "../m.meta", outputs=("y",)),
    "checkpoint's index": ModelKind(checkpoint, "../m.index", outputs=("y",)),
    "checkpoint's values": ModelKind(checkpoint, "../m.data-00000-of-00001", outputs=("y",)),
    "old checkpoint": ModelKind(partial(checkpoint, form="V1"), outputs=("y",)),
    "keras": ModelKind(keras),
    "keras' layers": ModelKind(keras, "", CONFIG),
    "keras' weights": ModelKind(keras, "", (partial(mutate_member, "model.weights.h5", change_one_byte),)),
    "h5": ModelKind(partial(keras, ending=".h5")),
}


def mutate_model(kind: ModelKind, file: Path, count: int, seed: int) -> Iterator[None]:
    for data in mutate_files([file.read_bytes()], kind.mutations, count, seed):
        overwrite(file, data)
        yield


def find_problem(name: Path, kind: ModelKind) -> str:
    """Return a description of an unexpected error; empty if the model is read or rejected correctly."""
    try:
        graph = qk.load(name, outputs=kind.outputs).graph
        for node in graph.nodes.values():
            _ = node.value.array if node.is_constant else None
    except QuantkitError as error:
        text = f"{error.message}{error.hint}"
        return "" if text.isprintable() else f"message is not a printable line: {text!r}"
    except Exception:
        return traceback.format_exc(limit=-3).replace("\n", " | ")
    return ""


def inspect_here(path: Path, name: str) -> Contents:
    """Inspect a Keras file as `keras.inspect_file` does, but in this process, which may crash."""
    try:
        return inspect_contents(path, graphdef.MAX_BYTES)
    except Exception as error:
        return Contents(error=str(error))


def main(folder: Path, seed: int, jobs: list[tuple[str, int, int]]) -> None:
    warnings.simplefilter("ignore")
    keras_reader.inspect_file = inspect_here
    for number, (name, first, count) in enumerate(jobs):
        kind, subfolder = KINDS[name], folder / str(number)
        subfolder.mkdir(parents=True)
        with suppress_log():
            model = kind.make(subfolder)
        for index, _ in enumerate(mutate_model(kind, (model / kind.file).resolve(), count, seed)):
            if index < first:
                continue
            print(f"{name}\t{index}\t{model}", flush=True)
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
            if problem := find_problem(model, kind):
                print(f"WRONG {name} {index}: {problem}", flush=True)
            signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    arguments = sys.argv[3:]
    numbers = [map(int, arguments[start::3]) for start in (1, 2)]
    main(Path(sys.argv[1]), int(sys.argv[2]), list(zip(arguments[::3], *numbers, strict=True)))
