"""Ops that hand tensors on: constants, identities, checks."""

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
    """What TensorFlow prints on the way is not printed here: a library does not write to the terminal."""
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
        kinds = " and ".join(word for word, found in (("Inf", np.isinf(x).any()), ("NaN", np.isnan(x).any())) if found)
        raise ValueError(f"{attribute(node, 'message').decode(errors='replace')} : Tensor had {kinds} values")
    return x


@kernel("EnsureShape")
def _ensure_shape(node: Node, inputs: Sequence[Array]) -> Array:
    x, wanted = inputs[0], attribute(node, "shape")
    if not wanted.accepts(x.shape):
        raise ValueError(f"the shape must be {wanted}")
    return x


@kernel("Assert")
def _assert(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    condition, *data = inputs
    if not condition.all():
        said = " ".join(str(item.decode() if isinstance(item, bytes) else item) for part in data for item in part.flat)
        raise GraphError(f"node {node.name!r} (Assert) fails: {said}")
    return ()
