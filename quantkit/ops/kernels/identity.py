"""Kernels of constants, identities and checks."""

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.tensorflow.signatures import attribute

kernel("Const", "HostConst")(lambda node: node.value.array)
kernel("Identity", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault", "DeepCopy")(lambda _, x: x)
# The message of a Print is not printed, because the library does not write to the terminal.
kernel("Print")(lambda _, x, *__: x)
kernel("IdentityN")(lambda _, *inputs: inputs)
kernel("NoOp")(lambda _: ())


@kernel("CheckNumerics", "CheckNumericsV2")
def _check_numerics(node: Node, x: Array) -> Array:
    if not np.isfinite(x).all():
        occurrences = {"Inf": np.isinf(x).any(), "NaN": np.isnan(x).any()}
        kinds = " and ".join(kind for kind, occurs in occurrences.items() if occurs)
        raise ValueError(f"{attribute(node, 'message').decode(errors='replace')} : Tensor had {kinds} values")
    return x


@kernel("EnsureShape")
def _ensure_shape(node: Node, x: Array) -> Array:
    shape = attribute(node, "shape")
    if not shape.accepts(x.shape):
        raise ValueError(f"the shape must be {shape}")
    return x


@kernel("Assert")
def _assert(node: Node, condition: Array, *data: Array) -> tuple[Array, ...]:
    if not condition.all():
        text = " ".join(str(item.decode() if isinstance(item, bytes) else item) for part in data for item in part.flat)
        raise GraphError(f"node {node.name!r} (Assert) failed: {text}")
    return ()
