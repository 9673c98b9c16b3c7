"""The geometry that both releases of Inception v3 share.

The same 94 convolutions in the same eleven modules; the releases differ in names, in how batch norm
is written, and in the pool of the last module.

Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2015:
https://arxiv.org/abs/1512.00567
"""

from typing import NamedTuple


class Conv(NamedTuple):
    """A convolution with batch norm and ReLU.

    Attributes:
        scope: its name in the 2016 release.
        filters: output channels.
        kernel: height and width.
        stride: in both directions.
        padding: ``SAME`` or ``VALID``.
    """

    scope: str
    filters: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: str = "SAME"


class Pool(NamedTuple):
    """A 3x3 pool; fields as those of `Conv`."""

    scope: str
    op: str
    stride: int = 1
    padding: str = "SAME"


class Fork(NamedTuple):
    """Two convolutions of the same input, both concatenated to the output of the module."""

    left: Conv
    right: Conv


Branch = tuple[Conv | Pool | Fork, ...]


class Module(NamedTuple):
    """Branches of the same input, concatenated along the channels.

    Attributes:
        scope: its name in the 2016 release.
        branches: in the order in which they are joined.
    """

    scope: str
    branches: tuple[Branch, ...]


STEM: Branch = (
    Conv("Conv2d_1a_3x3", 32, (3, 3), 2, "VALID"),
    Conv("Conv2d_2a_3x3", 32, (3, 3), 1, "VALID"),
    Conv("Conv2d_2b_3x3", 64, (3, 3)),
    Pool("MaxPool_3a_3x3", "MaxPool", 2, "VALID"),
    Conv("Conv2d_3b_1x1", 80, (1, 1), 1, "VALID"),
    Conv("Conv2d_4a_3x3", 192, (3, 3), 1, "VALID"),
    Pool("MaxPool_5a_3x3", "MaxPool", 2, "VALID"),
)


def modules(last_pool: str) -> tuple[Module, ...]:
    """Return the eleven modules, from 35x35 and 17x17 to 8x8 positions.

    Args:
        last_pool: op of the pool in the last module: ``MaxPool`` in 2015, ``AvgPool`` in 2016.
    """
    return (
        _module_35("Mixed_5b", 32),
        _module_35("Mixed_5c", 64, ("Conv2d_0b_1x1", "Conv_1_0c_5x5")),
        _module_35("Mixed_5d", 64),
        _from_35_to_17("Mixed_6a"),
        _module_17("Mixed_6b", 128),
        _module_17("Mixed_6c", 160),
        _module_17("Mixed_6d", 160),
        _module_17("Mixed_6e", 192),
        _from_17_to_8("Mixed_7a"),
        _module_8("Mixed_7b", "Conv2d_0b_3x1", "AvgPool"),
        _module_8("Mixed_7c", "Conv2d_0c_3x1", last_pool),
    )


def _pool_branch(filters: int, op: str = "AvgPool") -> Branch:
    return Pool("AvgPool_0a_3x3", op), Conv("Conv2d_0b_1x1", filters)


def _module_35(scope: str, pool_filters: int, names: tuple[str, str] = ("Conv2d_0a_1x1", "Conv2d_0b_5x5")) -> Module:
    return Module(
        scope,
        (
            (Conv("Conv2d_0a_1x1", 64),),
            (Conv(names[0], 48), Conv(names[1], 64, (5, 5))),
            (Conv("Conv2d_0a_1x1", 64), Conv("Conv2d_0b_3x3", 96, (3, 3)), Conv("Conv2d_0c_3x3", 96, (3, 3))),
            _pool_branch(pool_filters),
        ),
    )


def _from_35_to_17(scope: str) -> Module:
    return Module(
        scope,
        (
            (Conv("Conv2d_1a_1x1", 384, (3, 3), 2, "VALID"),),
            (
                Conv("Conv2d_0a_1x1", 64),
                Conv("Conv2d_0b_3x3", 96, (3, 3)),
                Conv("Conv2d_1a_1x1", 96, (3, 3), 2, "VALID"),
            ),
            (Pool("MaxPool_1a_3x3", "MaxPool", 2, "VALID"),),
        ),
    )


def _module_17(scope: str, width: int) -> Module:
    return Module(
        scope,
        (
            (Conv("Conv2d_0a_1x1", 192),),
            (
                Conv("Conv2d_0a_1x1", width),
                Conv("Conv2d_0b_1x7", width, (1, 7)),
                Conv("Conv2d_0c_7x1", 192, (7, 1)),
            ),
            (
                Conv("Conv2d_0a_1x1", width),
                Conv("Conv2d_0b_7x1", width, (7, 1)),
                Conv("Conv2d_0c_1x7", width, (1, 7)),
                Conv("Conv2d_0d_7x1", width, (7, 1)),
                Conv("Conv2d_0e_1x7", 192, (1, 7)),
            ),
            _pool_branch(192),
        ),
    )


def _from_17_to_8(scope: str) -> Module:
    return Module(
        scope,
        (
            (Conv("Conv2d_0a_1x1", 192), Conv("Conv2d_1a_3x3", 320, (3, 3), 2, "VALID")),
            (
                Conv("Conv2d_0a_1x1", 192),
                Conv("Conv2d_0b_1x7", 192, (1, 7)),
                Conv("Conv2d_0c_7x1", 192, (7, 1)),
                Conv("Conv2d_1a_3x3", 192, (3, 3), 2, "VALID"),
            ),
            (Pool("MaxPool_1a_3x3", "MaxPool", 2, "VALID"),),
        ),
    )


def _module_8(scope: str, right: str, pool: str) -> Module:
    return Module(
        scope,
        (
            (Conv("Conv2d_0a_1x1", 320),),
            (
                Conv("Conv2d_0a_1x1", 384),
                Fork(Conv("Conv2d_0b_1x3", 384, (1, 3)), Conv(right, 384, (3, 1))),
            ),
            (
                Conv("Conv2d_0a_1x1", 448),
                Conv("Conv2d_0b_3x3", 384, (3, 3)),
                Fork(Conv("Conv2d_0c_1x3", 384, (1, 3)), Conv("Conv2d_0d_3x1", 384, (3, 1))),
            ),
            _pool_branch(192, pool),
        ),
    )
