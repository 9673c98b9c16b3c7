"""Kernels of constants, identities and checks."""

from collections.abc import Sequence

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.tensorflow.signatures import attribute


@kernel("Const", "HostConst")
def _const(node: Node, _: Sequence[Array]) -> Array:
    return node.value.array


@kernel(
    "Identity",
    "StopGradient",
    "PreventGradient",
    "Snapshot",
    "PlaceholderWithDefault",
    "DeepCopy",
)
def _identity(_: Node, inputs: Sequence[Array]) -> Array:
    return inputs[0]


@kernel("Print")
def _print(_: Node, inputs: Sequence[Array]) -> Array:
    """Return the input; the message is not printed, because the library does not write to the terminal."""
    return inputs[0]


@kernel("IdentityN")
def _identity_n(_: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(inputs)


@kernel("NoOp")
def _no_op(_: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return ()


@kernel("CheckNumerics", "CheckNumericsV2")
def _check_numerics(node: Node, inputs: Sequence[Array]) -> Array:
    x = inputs[0]
    if not np.isfinite(x).all():
        occurrences = {"Inf": np.isinf(x).any(), "NaN": np.isnan(x).any()}
        kinds = " and ".join(kind for kind, occurs in occurrences.items() if occurs)
        raise ValueError(f"{attribute(node, 'message').decode(errors='replace')} : Tensor had {kinds} values")
    return x


@kernel("EnsureShape")
def _ensure_shape(node: Node, inputs: Sequence[Array]) -> Array:
    x, shape = inputs[0], attribute(node, "shape")
    if not shape.accepts(x.shape):
        raise ValueError(f"the shape must be {shape}")
    return x


@kernel("Assert")
def _assert(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    condition, *data = inputs
    if not condition.all():
        text = " ".join(str(item.decode() if isinstance(item, bytes) else item) for part in data for item in part.flat)
        raise GraphError(f"node {node.name!r} (Assert) failed: {text}")
    return ()
