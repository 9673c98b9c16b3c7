"""Kernels of hash tables.

A table is an array of one element, a dictionary; the initializer changes the dictionary in place.
"""

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.tensorflow.signatures import attribute


@kernel("HashTable")
def _hash_table(_: Node) -> Array:
    table = np.empty((), object)
    table[()] = {}
    return table


@kernel("InitializeTable")
def _initialize_table(_: Node, table: Array, keys: Array, values: Array) -> tuple[Array, ...]:
    if keys.ndim != 1 or keys.shape != values.shape:
        raise ValueError("keys and values must be vectors of equal length")
    if len(set(keys.tolist())) != len(keys):
        raise ValueError("duplicate key")
    table.item().update(zip(keys.tolist(), values, strict=True))
    return ()


@kernel("LookupTableFind")
def _lookup(node: Node, table: Array, keys: Array, default: Array) -> Array:
    dtype = attribute(node, "Tout")
    values = [table.item().get(key, default[()]) for key in keys.reshape(-1).tolist()]
    result = np.empty(len(values), object if dtype is DType.STRING else dtype.numpy)
    result[:] = values
    return result.reshape(keys.shape)
