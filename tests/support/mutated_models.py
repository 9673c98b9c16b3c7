"""Read broken models that TensorFlow has a part in reading; a process of its own, as it may end that.

    python mutated_models.py FOLDER SEED KIND FIRST COUNT [KIND FIRST COUNT ...]

Says on stdout, one line each, what is being read, and what was not refused as it should be.
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
from mutations import BINARY, TEXT, Mutation, Random, mutated

import quantkit as qk
from quantkit.errors import QuantkitError
from quantkit.formats import graphdef
from quantkit.model.importers import keras as keras_reader
from quantkit.model.importers.keras_contents import Contents, inspect_contents
from quantkit.runtimes.tensorflow_library import import_tensorflow, suppress_log

# CPU time; none takes a tenth of it, and one that takes longer ends the process.
MOST_SECONDS = 20.0
W = np.arange(12, dtype=np.float32).reshape(4, 3)


def second_kind(folder: Path) -> Path:
    tf = import_tensorflow()
    made = tf.Module()
    made.w = tf.Variable(W)
    run = tf.function(lambda x: {"y": x @ made.w}, input_signature=[tf.TensorSpec([None, 4], name="x")])
    tf.saved_model.save(made, str(folder / "second"), signatures=run.get_concrete_function())
    return folder / "second"


def first_kind(folder: Path) -> Path:
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


def text_form(folder: Path) -> Path:
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    made = second_kind(folder)
    message = saved_model_pb2.SavedModel.FromString((made / "saved_model.pb").read_bytes())
    (made / "saved_model.pb").unlink()
    (made / "saved_model.pbtxt").write_text(text_format.MessageToString(message))
    return made


def keras(folder: Path, ending: str = ".keras") -> Path:
    layers = import_tensorflow().keras.layers
    model = import_tensorflow().keras.Sequential(
        [layers.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(3)]
    )
    model.save(folder / f"m{ending}")
    return folder / f"m{ending}"


def member(name: str, mutation: Mutation, data: bytes, random: Random) -> bytes:
    """An archive that is whole, with a broken member."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for one in old.namelist():
            content = old.read(one)
            new.writestr(one, mutation(content, random) if one == name else content)
    return made.getvalue()


def pointed(data: bytes, random: Random) -> bytes:
    """One byte otherwise: what is left is nearly whole, and is read far."""
    made = bytearray(data)
    place = int(random.integers(0, len(made)))
    made[place] = (made[place] ^ 1 << int(random.integers(0, 8)), 0, 255, 128)[int(random.integers(0, 4))]
    return bytes(made)


@dataclass(frozen=True)
class Kind:
    """A kind of model: how it is made, which of its files is broken, and how.

    Attributes:
        make: writes a good one into a folder, and says what names it.
        file: to be broken, beside or in what names it; nothing: that itself.
        mutations: ways to break it.
        outputs: to ask for.
    """

    make: Callable[[Path], Path]
    file: str = ""
    mutations: tuple[Mutation, ...] = (*BINARY, pointed, pointed, pointed)
    outputs: tuple[str, ...] | None = None


CONFIG = tuple(partial(member, "config.json", mutation) for mutation in TEXT)
KINDS = {
    "second kind": Kind(second_kind, "saved_model.pb"),
    "second kind's index": Kind(second_kind, "variables/variables.index"),
    "second kind's values": Kind(second_kind, "variables/variables.data-00000-of-00001"),
    "text form": Kind(text_form, "saved_model.pbtxt", TEXT),
    "first kind": Kind(first_kind, "saved_model.pb"),
    "checkpoint's graph": Kind(checkpoint, "../m.meta", outputs=("y",)),
    "checkpoint's index": Kind(checkpoint, "../m.index", outputs=("y",)),
    "checkpoint's values": Kind(checkpoint, "../m.data-00000-of-00001", outputs=("y",)),
    "old checkpoint": Kind(partial(checkpoint, form="V1"), outputs=("y",)),
    "keras": Kind(keras),
    "keras' layers": Kind(keras, "", CONFIG),
    "keras' weights": Kind(keras, "", (partial(member, "model.weights.h5", pointed),)),
    "h5": Kind(partial(keras, ending=".h5")),
}


def broken(kind: Kind, file: Path, count: int, seed: int) -> Iterator[None]:
    for data in mutated([file.read_bytes()], kind.mutations, count, seed):
        file.write_bytes(data)
        yield


def complaint(name: Path, kind: Kind) -> str:
    """What is wrong with the way in which a model was read or refused; nothing where nothing is."""
    try:
        graph = qk.load(name, outputs=kind.outputs).graph
        for node in graph.nodes.values():
            _ = node.value.array if node.is_constant else None
    except QuantkitError as error:
        text = f"{error.message}{error.hint}"
        return "" if text.isprintable() else f"not one line that can be printed: {text!r}"
    except Exception:
        return traceback.format_exc(limit=-3).replace("\n", " | ")
    return ""


def inspect_here(path: Path, name: str) -> Contents:
    """Inspect a Keras file as `keras.inspect_file` does, but in this process, which may crash."""
    try:
        return inspect_contents(path, graphdef.MAX_BYTES)
    except Exception as error:
        return Contents(error=str(error))


def main(folder: Path, seed: int, asked: list[tuple[str, int, int]]) -> None:
    warnings.simplefilter("ignore")
    keras_reader.inspect_file = inspect_here
    for number, (name, first, count) in enumerate(asked):
        kind, place = KINDS[name], folder / str(number)
        place.mkdir(parents=True)
        with suppress_log():
            model = kind.make(place)
        for which, _ in enumerate(broken(kind, (model / kind.file).resolve(), count, seed)):
            if which < first:
                continue
            print(f"{name}\t{which}\t{model}", flush=True)
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
            if found := complaint(model, kind):
                print(f"WRONG {name} {which}: {found}", flush=True)
            signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    words = sys.argv[3:]
    numbers = [map(int, words[place::3]) for place in (1, 2)]
    main(Path(sys.argv[1]), int(sys.argv[2]), list(zip(words[::3], *numbers, strict=True)))
