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


# Layers of a branch, one branch in each line: the name in the 2016 release, then filters and kernel (default: 1x1) of a
# convolution or the op of a pool, then a stride of 2 (/2) and VALID padding. Two layers joined by & are a fork.
_STEM = """
Conv2d_1a_3x3 32 3x3 /2 VALID | Conv2d_2a_3x3 32 3x3 VALID | Conv2d_2b_3x3 64 3x3 | MaxPool_3a_3x3 MaxPool /2 VALID \
| Conv2d_3b_1x1 80 VALID | Conv2d_4a_3x3 192 3x3 VALID | MaxPool_5a_3x3 MaxPool /2 VALID
"""
_MODULE_35 = """
Conv2d_0a_1x1 64
{first} 48 | {second} 64 5x5
Conv2d_0a_1x1 64 | Conv2d_0b_3x3 96 3x3 | Conv2d_0c_3x3 96 3x3
AvgPool_0a_3x3 AvgPool | Conv2d_0b_1x1 {filters}
"""
_FROM_35_TO_17 = """
Conv2d_1a_1x1 384 3x3 /2 VALID
Conv2d_0a_1x1 64 | Conv2d_0b_3x3 96 3x3 | Conv2d_1a_1x1 96 3x3 /2 VALID
MaxPool_1a_3x3 MaxPool /2 VALID
"""
_MODULE_17 = """
Conv2d_0a_1x1 192
Conv2d_0a_1x1 {width} | Conv2d_0b_1x7 {width} 1x7 | Conv2d_0c_7x1 192 7x1
Conv2d_0a_1x1 {width} | Conv2d_0b_7x1 {width} 7x1 | Conv2d_0c_1x7 {width} 1x7 | Conv2d_0d_7x1 {width} 7x1 \
| Conv2d_0e_1x7 192 1x7
AvgPool_0a_3x3 AvgPool | Conv2d_0b_1x1 192
"""
_FROM_17_TO_8 = """
Conv2d_0a_1x1 192 | Conv2d_1a_3x3 320 3x3 /2 VALID
Conv2d_0a_1x1 192 | Conv2d_0b_1x7 192 1x7 | Conv2d_0c_7x1 192 7x1 | Conv2d_1a_3x3 192 3x3 /2 VALID
MaxPool_1a_3x3 MaxPool /2 VALID
"""
_MODULE_8 = """
Conv2d_0a_1x1 320
Conv2d_0a_1x1 384 | Conv2d_0b_1x3 384 1x3 & {right} 384 3x1
Conv2d_0a_1x1 448 | Conv2d_0b_3x3 384 3x3 | Conv2d_0c_1x3 384 1x3 & Conv2d_0d_3x1 384 3x1
AvgPool_0a_3x3 {pool} | Conv2d_0b_1x1 192
"""


def modules(last_pool: str) -> tuple[Module, ...]:
    """Return the eleven modules, from 35x35 and 17x17 to 8x8 positions.

    Args:
        last_pool: op of the pool in the last module: ``MaxPool`` in 2015, ``AvgPool`` in 2016.
    """
    names = {"first": "Conv2d_0a_1x1", "second": "Conv2d_0b_5x5"}
    return (
        Module("Mixed_5b", _branches(_MODULE_35, **names, filters=32)),
        Module("Mixed_5c", _branches(_MODULE_35, first="Conv2d_0b_1x1", second="Conv_1_0c_5x5", filters=64)),
        Module("Mixed_5d", _branches(_MODULE_35, **names, filters=64)),
        Module("Mixed_6a", _branches(_FROM_35_TO_17)),
        Module("Mixed_6b", _branches(_MODULE_17, width=128)),
        Module("Mixed_6c", _branches(_MODULE_17, width=160)),
        Module("Mixed_6d", _branches(_MODULE_17, width=160)),
        Module("Mixed_6e", _branches(_MODULE_17, width=192)),
        Module("Mixed_7a", _branches(_FROM_17_TO_8)),
        Module("Mixed_7b", _branches(_MODULE_8, right="Conv2d_0b_3x1", pool="AvgPool")),
        Module("Mixed_7c", _branches(_MODULE_8, right="Conv2d_0c_3x1", pool=last_pool)),
    )


def _branches(text: str, **values: str | int) -> tuple[Branch, ...]:
    lines = text.format(**values).strip().splitlines()
    return tuple(tuple(map(_parse_layer, line.split("|"))) for line in lines)


def _parse_layer(text: str) -> Conv | Pool | Fork:
    if "&" in text:
        return Fork(*(_parse_conv(part) for part in text.split("&")))
    scope, op, *options = text.split()
    return _parse_conv(text) if op.isdecimal() else Pool(scope, op, *_stride_and_padding(options))


def _parse_conv(text: str) -> Conv:
    scope, filters, *options = text.split()
    height, width = next((option for option in options if "x" in option), "1x1").split("x")
    return Conv(scope, int(filters), (int(height), int(width)), *_stride_and_padding(options))


def _stride_and_padding(options: list[str]) -> tuple[int, str]:
    return 2 if "/2" in options else 1, "VALID" if "VALID" in options else "SAME"


(STEM,) = _branches(_STEM)
