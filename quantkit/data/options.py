"""Options of verbs that read images and labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quantkit.arguments import as_numbers, require_divisors, require_natural, require_numbers, require_path
from quantkit.data.inference import PreprocessingOptions
from quantkit.data.preprocessing import COLOR_ORDERS, ColorOrder
from quantkit.errors import UsageError
from quantkit.options import Declaration, option

LABELS = Declaration(
    require_path, help="label file: one label per line, or the 2015 label map (default: the model's own)"
)
_SOURCE = "(default: from the file, else from the model card, else from a scaling layer, else 128)"


@dataclass(frozen=True, kw_only=True)
class NormalizationOptions:
    """Order of the channels and normalization (x - mean) / std of images.

    Raises:
        UsageError: mean and standard deviation are those of images from 0 to 1, as in torchvision.
    """

    input_color_order: ColorOrder | None = option(
        None, choices=COLOR_ORDERS, help="order of the channels of the input (default: from the file, else rgb)"
    )
    input_mean: float | Sequence[float] | None = option(
        None,
        require_numbers,
        help=f"value subtracted from the pixels, or one per channel such as 123.68,116.78,103.94 {_SOURCE}",
    )
    input_std: float | Sequence[float] | None = option(
        None, require_divisors, help=f"value the pixels are then divided by, or one per channel {_SOURCE}"
    )

    def __post_init__(self) -> None:
        mean, std = as_numbers(self.input_mean), as_numbers(self.input_std)
        if mean is not None and std is not None and _are_fractions(mean) and _are_fractions(std):
            means, stds = (",".join(f"{255 * value:g}" for value in np.atleast_1d(values)) for values in (mean, std))
            raise UsageError(
                "mean and standard deviation are those of images from 0 to 1, and pixels are 0 to 255",
                hint=f"multiply both by 255: --input-mean {means} --input-std {stds}",
            )

    @cached_property
    def preprocessing(self) -> PreprocessingOptions:
        """Preprocessing as the caller states it."""
        mean, std = as_numbers(self.input_mean), as_numbers(self.input_std)
        return PreprocessingOptions(mean=mean, std=std, color_order=self.input_color_order)


@dataclass(frozen=True, kw_only=True)
class InputImageOptions(NormalizationOptions):
    """Size and normalization of images."""

    input_width: int | None = option(
        None, require_natural, help="width of the resized images in pixels (default: from the model)"
    )
    input_height: int | None = option(
        None, require_natural, help="height of the resized images in pixels (default: from the model)"
    )

    @cached_property
    def preprocessing(self) -> PreprocessingOptions:
        """Preprocessing as the caller states it."""
        return replace(super().preprocessing, height=self.input_height, width=self.input_width)


def _are_fractions(values: float | tuple[float, ...]) -> bool:
    return all(0 < value < 1 for value in np.atleast_1d(values).tolist())
