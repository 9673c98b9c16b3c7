"""Random parameters that keep a deep network's numbers in range, drawn when they are read.

A kernel with fan-in f and inputs of mean square p has entries of variance 1 / (f p), so every
output has variance one (for p = 1/2, the mean square after a ReLU, this is He's initialization).
Each output channel is then scaled by its own factor, as in trained networks, and the following
batch norm is scaled accordingly.

He et al., Delving Deep into Rectifiers, 2015: https://arxiv.org/abs/1502.01852
"""

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from quantkit.ir.tensor import Array, DType, Tensor

# Mean square after the ReLU of a batch norm with the vectors drawn below.
RELU_POWER = 0.65


@dataclass(frozen=True)
class LayerParameters:
    """Random weights of one convolution and of the batch norm after it.

    Attributes:
        seed: seed of the network.
        name: name of the layer, which selects the stream of random values.
        shape: shape of the kernel: (h, w, c_in, c_out), or (h, w, c, 1) for a depthwise
            convolution.
        power: mean square of the input of the layer.
        is_depthwise: each channel is filtered by itself.
    """

    seed: int
    name: str
    shape: tuple[int, int, int, int]
    power: float
    is_depthwise: bool = False

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return self.shape[2] if self.is_depthwise else self.shape[3]

    @property
    def kernel(self) -> Tensor:
        """Kernel of `shape`."""
        return self._tensor(self.shape, self._kernel)

    @property
    def gamma(self) -> Tensor:
        """Scale of the batch norm, (c,), around one."""
        return self._tensor((self.channels,), lambda: np.exp(self._normal("gamma", 0.2)))

    @property
    def beta(self) -> Tensor:
        """Offset of the batch norm, (c,), around zero."""
        return self._tensor((self.channels,), lambda: self._normal("beta", 0.3))

    @property
    def moving_mean(self) -> Tensor:
        """Mean of the batch norm, (c,): a fraction of each channel's standard deviation."""
        return self._tensor((self.channels,), lambda: self._normal("moving_mean", 0.3) * self._stretch())

    @property
    def moving_variance(self) -> Tensor:
        """Variance of the batch norm, (c,): near the square of each channel's standard deviation."""
        return self._tensor(
            (self.channels,), lambda: np.exp(self._normal("moving_variance", 0.1)) * self._stretch() ** 2
        )

    @property
    def bias(self) -> Tensor:
        """Bias of a layer without batch norm, (c,), around zero."""
        return self._tensor((self.channels,), lambda: self._normal("bias", 0.05))

    def _kernel(self) -> Array:
        height, width, depth, _ = self.shape
        fan_in = height * width * (1 if self.is_depthwise else depth)
        values = self._generator("kernel").standard_normal(self.shape, np.float32)
        stretch = self._stretch() / np.float32(np.sqrt(fan_in * self.power))
        values *= stretch[:, None] if self.is_depthwise else stretch
        return values

    def _stretch(self) -> Array:
        return np.exp(self._normal("stretch", 0.4))

    def _normal(self, part: str, deviation: float) -> Array:
        return self._generator(part).standard_normal(self.channels, np.float32) * np.float32(deviation)

    def _generator(self, part: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, crc32(f"{self.name}/{part}".encode())])

    @staticmethod
    def _tensor(shape: tuple[int, ...], load: Callable[[], Array]) -> Tensor:
        return Tensor(DType.FLOAT, shape, load)
