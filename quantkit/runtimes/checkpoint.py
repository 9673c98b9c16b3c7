"""Variables of checkpoints, one at a time."""

from pathlib import Path

import numpy as np

from quantkit.errors import InputError
from quantkit.ir.tensor import Array
from quantkit.runtimes.session import require
from quantkit.runtimes.tensorflow import RUNTIME, module, quiet


def read_variable(prefix: str, name: str, part: str = "") -> Array:
    """The values of a variable, or of a part of one.

    Args:
        prefix: what the checkpoint's files begin with.
        name: of the variable.
        part: which part of it, as RestoreV2 takes it: sizes of the whole, then begin and length along each dimension
            or ``-`` for all of it: ``100 1 50,25:-``; nothing: the whole.

    Raises:
        InputError: there is no such checkpoint or variable, or the part is not in it.
        UnavailableError: TensorFlow is not installed.
    """
    require(RUNTIME.available())
    tf = module()
    place = str(Path(prefix).expanduser())
    try:
        with quiet():
            whole = np.asarray(tf.train.load_checkpoint(place).get_tensor(name))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{name!r} can not be read from the checkpoint {prefix}: {reason}",
            hint="give what the checkpoint's files begin with, without .index or .data-00000-of-00001",
        ) from None
    try:
        return whole[tuple(_range(text) for text in part.split()[-1].split(":"))] if part.strip() else whole
    except (ValueError, IndexError):
        raise InputError(f"{part!r} is no part of {name!r}, which has sizes {list(whole.shape)}") from None


def _range(text: str) -> slice:
    if text == "-":
        return slice(None)
    begin, length = text.split(",")
    return slice(int(begin), int(begin) + int(length))
