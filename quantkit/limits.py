"""Limits of the work that a small file can cause: nodes after inlining, and bytes of computed tensors.

A function that calls another one twice doubles the number of nodes with each level, and two integers of a Fill make a
tensor of any size. Both end with an error that states the limit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from quantkit.arguments import public, require_positive, without_none
from quantkit.errors import GraphError


@dataclass(frozen=True)
class Limits:
    """Limits of the work of one call.

    Attributes:
        max_nodes: maximum number of nodes of a graph after its function calls are inlined.
        max_constant_bytes: maximum size of a computed tensor, and of all constants that a transform computes.
    """

    max_nodes: int = 250_000
    max_constant_bytes: int = 2 << 30


_DEFAULT = Limits()
_LIMITS: ContextVar[Limits] = ContextVar("limits")


def current_limits() -> Limits:
    """Return the limits in effect."""
    return _LIMITS.get(_DEFAULT)


@contextmanager
@public
def limits(*, max_nodes: int | None = None, max_constant_bytes: int | None = None) -> Iterator[None]:
    """Change the limits within a ``with`` block.

    Args:
        max_nodes: maximum number of nodes of a graph after its function calls are inlined (default: unchanged, 250,000
            at first).
        max_constant_bytes: maximum size in bytes of a computed tensor, and of all constants that a transform computes
            (default: unchanged, 2 GiB at first).

    Raises:
        UsageError: a limit is not a whole number from 1.

    >>> with limits(max_nodes=1_000_000):
    ...     current_limits().max_nodes
    1000000
    """
    changes = without_none(max_nodes=max_nodes, max_constant_bytes=max_constant_bytes)
    require_positive(**changes)
    token = _LIMITS.set(replace(current_limits(), **changes))
    try:
        yield
    finally:
        _LIMITS.reset(token)


def check_num_nodes(count: int) -> None:
    """Check the number of nodes of a graph and its functions after inlining.

    Raises:
        GraphError: the number exceeds ``max_nodes`` of the limits in effect.
    """
    limit = current_limits().max_nodes
    if count > limit:
        raise GraphError(
            f"the graph has more than {limit:,} nodes after its function calls are inlined",
            hint="raise the limit with --max-nodes if such a graph is intended",
        )


def check_size(subject: str, num_bytes: int, max_bytes: int | None = None) -> None:
    """Check that a tensor is not larger than a limit, before its memory is allocated.

    Args:
        subject: beginning of the error message, for example ``node 'fill' (Fill) computes``.
        num_bytes: size of the tensor in bytes.
        max_bytes: the limit in bytes (default: ``max_constant_bytes`` of the limits in effect).

    Raises:
        GraphError: the tensor is larger.
    """
    limit = current_limits().max_constant_bytes if max_bytes is None else max_bytes
    if num_bytes > limit:
        raise GraphError(
            f"{subject} {num_bytes:,} bytes; the limit is {limit:,}",
            hint="raise the limit with --max-constant-bytes if such a tensor is intended",
        )
