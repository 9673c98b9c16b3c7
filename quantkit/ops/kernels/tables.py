"""Hash tables: a table is an array of one element, a dictionary, which what fills it changes."""

from collections.abc import Sequence

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.tensorflow.signatures import attribute


@kernel("HashTable")
def _hash_table(_: Node, inputs: Sequence[Array]) -> Array:
    table = np.empty((), object)
    table[()] = {}
    return table


@kernel("InitializeTable")
def _initialize_table(_: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    table, keys, values = inputs
    if keys.ndim != 1 or keys.shape != values.shape:
        raise ValueError("keys and values must be lists of one length")
    if len(set(keys.tolist())) != len(keys):
        raise ValueError("a key is given twice")
    table.item().update(zip(keys.tolist(), values, strict=True))
    return ()


@kernel("LookupTableFind")
def _lookup(node: Node, inputs: Sequence[Array]) -> Array:
    table, keys, default = inputs
    dtype = attribute(node, "Tout")
    found = [table.item().get(key, default[()]) for key in keys.reshape(-1).tolist()]
    made = np.empty(len(found), object if dtype is DType.STRING else dtype.numpy)
    made[:] = found
    return made.reshape(keys.shape)
