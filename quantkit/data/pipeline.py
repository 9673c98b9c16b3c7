"""Input pipeline: from samples to the arrays that a model takes, for every command.

image    decode -> crop -> resize -> normalize -> layout of the input
array    unchanged, in the shape and type of the input; uint8 images are resized and normalized
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import NamedTuple, Self

import numpy as np

from quantkit.arguments import public
from quantkit.data.dataset import ARRAYS, Dataset, Sample
from quantkit.data.inference import PreprocessingOptions, infer_preprocessing
from quantkit.data.inputs import ImageInput, takes_images
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import InputError, QuantkitError, UsageError, did_you_mean
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo import ModelCard

# One sample without a batch axis: an encoded image, an array, or arrays by input name.
Prepared = bytes | Array | Mapping[str, Array]
# Maximum distance from an integer of a pixel that was normalized in float32 and is computed back.
PIXEL_TOLERANCE = 0.01


class Batch(NamedTuple):
    """Samples of one run; `feeds` is padded to the batch size of the model."""

    feeds: dict[str, Array]
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class InputPipeline:
    """Preparation of samples for the inputs of one model.

    Attributes:
        inputs: inputs of the session; a single one if it takes images.
        preprocessing: preprocessing of images; None if arrays are fed unchanged.
        is_assumed: True if pixels are normalized with the defaults, because the model is not known.
        source: description of the data, for messages.
    """

    inputs: tuple[TensorInfo, ...]
    preprocessing: Preprocessing | None
    is_assumed: bool = False
    source: str = "the data"

    @classmethod
    def of(
        cls,
        inputs: Sequence[TensorInfo],
        dataset: Dataset,
        basis: ModelCard | Preprocessing | None = None,
        options: PreprocessingOptions = PreprocessingOptions(),
    ) -> Self:
        """Choose the preparation of a dataset for the inputs of a model.

        Args:
            inputs: inputs of the session.
            dataset: the data.
            basis: card or preprocessing of the model.
            options: preprocessing that the caller states.

        Raises:
            UsageError: the data does not name its inputs, or the input does not take images.
        """
        arrays = dataset.example(rank_of(inputs))
        names = [info.name for info in inputs]
        name = next(iter(arrays), "") if len(arrays) == 1 and dataset.source == ARRAYS else ""
        # A single array may have any name, except a misspelled one.
        if name not in names and (near := did_you_mean(name, names)):
            raise UsageError(f"the data has an array {name!r}, which is not an input of the model", hint=near)
        if len(arrays) > 1 or (arrays and len(inputs) > 1):
            missing = [info.name for info in inputs if info.name not in arrays]
            if missing:
                count = f"{len(arrays)} arrays" if len(arrays) > 1 else "one array"
                raise UsageError(
                    f"{dataset.source} holds {count} ({', '.join(arrays)}), and none for the input {missing[0]!r}",
                    hint="give an array for each input, by input name (.npz, or a dict)",
                )
            return cls(tuple(inputs), None, source=dataset.source)
        if len(inputs) != 1:
            raise UsageError(
                f"the model has {len(inputs)} inputs ({', '.join(info.name for info in inputs)}), "
                "and images fill only one",
                hint="give an array for each input (.npz, or a dict), or name one input with --input-layer",
            )
        if any(not _is_image(array, inputs[0]) for array in arrays.values()):
            return cls(tuple(inputs), None, source=dataset.source)
        holds_pixels = all(array.dtype == np.uint8 for array in arrays.values())
        is_known = basis is not None or options.mean is not None or options.std is not None
        is_assumed = holds_pixels and inputs[0].dtype.is_float and not is_known
        return cls(tuple(inputs), infer_preprocessing(inputs[0], basis, options), is_assumed, dataset.source)

    def __str__(self) -> str:
        return "arrays unchanged" if self.preprocessing is None else str(self.preprocessing)

    @property
    def rank(self) -> int | None:
        """Number of dimensions of the first input, batch included; None if it is not known."""
        return rank_of(self.inputs)

    @property
    def batch_size(self) -> int | None:
        """Number of samples per batch of the model; None for any number."""
        if self.preprocessing is None:
            return next((info.shape.dims[0] for info in self.inputs if info.shape.dims), None)
        return self.image_input.batch_size if self.image_input.has_batch_axis else 1

    @property
    def image_input(self) -> ImageInput:
        """Form in which the only input takes images."""
        return ImageInput.of(self.inputs[0])

    @property
    def decoding(self) -> tuple[str, int]:
        """Key of the decoded form of an image: pipelines with the same key share it."""
        return "jpeg" if self.image_input.form == "jpeg" else "pixels", self._image_preprocessing.channels

    def decode(self, encoded: bytes, name: str) -> bytes | Array:
        """Decode an image; see `ImageInput.decode`.

        Raises:
            InputError: the data is not a complete image.
        """
        return self.image_input.decode(encoded, name, self._image_preprocessing.channels)

    def prepare_image(self, image: bytes | Array) -> Prepared:
        """Prepare a decoded image."""
        return self.image_input.prepare(image, self._image_preprocessing)

    def prepare_arrays(self, arrays: Mapping[str, Array]) -> Prepared:
        """Prepare one row of each array.

        Raises:
            InputError: a row has another shape than its input, or its elements are not real numbers.
            UsageError: an input takes integers, and its row does not hold integers.
        """
        if self.preprocessing is not None:
            return self._prepare_image_array(next(iter(arrays.values())))
        if len(arrays) == 1 and len(self.inputs) == 1:
            return {self.inputs[0].name: self._fit(next(iter(arrays.values())), self.inputs[0])}
        return {info.name: self._fit(arrays[info.name], info) for info in self.inputs}

    def stack(self, prepared: Sequence[Prepared]) -> dict[str, Array]:
        """Stack prepared samples into feeds; a fixed batch is padded with its last sample.

        Args:
            prepared: at least one sample, and at most `batch_size`.
        """
        rows = [sample for sample in prepared if isinstance(sample, Mapping)]
        if not rows:
            images = [sample for sample in prepared if not isinstance(sample, Mapping)]
            return {self.inputs[0].name: self.image_input.stack(images)}
        rows += [rows[-1]] * ((self.batch_size or len(rows)) - len(rows))
        return {info.name: np.stack([row[info.name] for row in rows]) for info in self.inputs}

    @property
    def _image_preprocessing(self) -> Preprocessing:
        if self.preprocessing is None:
            raise UsageError(f"input {self.inputs[0].name!r} does not take images", hint="give arrays")
        return self.preprocessing

    def _prepare_image_array(self, row: Array) -> bytes | Array:
        """Prepare an array for an image input; arrays are not cropped.

        Args:
            row: (h, w, c) uint8 pixels, or numbers as the input takes them, channels first or last,
                or flattened; for a uint8 input also normalized pixels.

        Raises:
            InputError: the row has another shape than the input, or its elements are not real numbers.
            UsageError: the input is uint8, and the row holds no pixels.
        """
        image_input, info = self.image_input, self.inputs[0]
        if row.dtype.kind == "f" and image_input.dtype is DType.UINT8:
            row = self._to_pixels(row)
        is_uint8 = row.dtype == np.uint8
        if image_input.form == "jpeg" or row.dtype.kind not in "biuf":
            raise self._type_error(InputError, row, info, "give images, or an array of pixels")
        if not (is_uint8 or image_input.dtype.is_float):
            raise self._type_error(UsageError, row, info, "give images, or a uint8 array of pixels")
        if is_uint8:
            if row.ndim != 3 or not row.size or row.shape[2] != self._image_preprocessing.channels:
                raise self._shape_error(row, info)
            return image_input.prepare(row, replace(self._image_preprocessing, crop="none"))
        dims = info.shape.dims
        if dims and row.ndim == 1 and None not in dims[1:] and row.size == prod(size or 1 for size in dims[1:]):
            row = row.reshape([size or 1 for size in dims[1:]])
        if dims and not Shape(dims[-3:]).accepts(row.shape):
            transposed = row.transpose((2, 0, 1) if image_input.channels_first else (1, 2, 0)) if row.ndim == 3 else row
            if not Shape(dims[-3:]).accepts(transposed.shape):
                raise self._shape_error(row, info)
            row = np.ascontiguousarray(transposed)
        return row.astype(image_input.dtype.numpy, copy=False)

    def _to_pixels(self, row: Array) -> Array:
        """Invert the normalization of pixels; other rows are returned unchanged."""
        basis = self._image_preprocessing
        values = row * np.asarray(basis.std) + np.asarray(basis.mean)
        pixels = np.rint(values)
        are_pixels = np.abs(values - pixels).max(initial=0) < PIXEL_TOLERANCE
        return pixels.astype(np.uint8) if are_pixels and pixels.min() >= 0 and pixels.max() <= 255 else row

    def _fit(self, row: Array, info: TensorInfo) -> Array:
        """Convert a row to the type and shape of an input.

        Raises:
            InputError: the row has another size, or its elements are not real numbers.
            UsageError: the row has real numbers, and the input takes integers.
        """
        dtype, dims = info.dtype.numpy, info.shape.dims
        if (row.dtype.kind in "SU") != (info.dtype is DType.STRING) or (row.dtype.kind == "c" and dtype.kind in "biuf"):
            raise self._type_error(InputError, row, info, "give an array of the input's type")
        if row.dtype.kind == "f" and dtype.kind in "biu":
            raise self._type_error(UsageError, row, info, "give integers")
        if dims is not None and not Shape(dims[1:]).accepts(row.shape):
            if None in dims[1:] or row.size != prod(size or 1 for size in dims[1:]):
                raise self._shape_error(row, info)
            row = row.reshape([size or 1 for size in dims[1:]])
        return row.astype(dtype, copy=False)

    def _type_error(self, kind: type[QuantkitError], row: Array, info: TensorInfo, hint: str) -> QuantkitError:
        return kind(f"{self.source}: input {info.name!r} takes {info.dtype.value}, not {row.dtype}", hint=hint)

    def _shape_error(self, row: Array, info: TensorInfo) -> InputError:
        return InputError(
            f"{self.source}: input {info.name!r} takes {info.dtype.value} of shape {info.shape}, and the samples "
            f"have the shape {'x'.join(map(str, row.shape)) or '()'}",
            hint="the first dimension of an array counts the samples, the others are the input's",
        )


@public
def prepare_samples(
    samples: Iterable[Sample],
    pipelines: Sequence[InputPipeline],
    rejected: dict[str, str] | None = None,
    *,
    require_finite: bool = False,
) -> Iterator[tuple[Sample, list[Prepared]]]:
    """Prepare each sample for every model; an image is decoded once.

    Args:
        samples: samples of a dataset.
        pipelines: one pipeline for each model.
        rejected: receives the reason for each image that cannot be read, by name; if None such an
            image is an error.
        require_finite: reject arrays with NaN or infinite values as well.

    Raises:
        InputError: an image cannot be read, and there is no `rejected`.
        UsageError: an input does not take the data.
    """
    for sample in samples:
        if sample.arrays is not None:
            reason = _not_finite_reason(sample.arrays, pipelines[0].inputs) if require_finite else ""
            if reason and rejected is None:
                raise InputError(f"sample {sample}: {reason}", hint="remove the sample")
            if reason and rejected is not None:
                rejected[f"sample {sample}"] = reason
                continue
            yield sample, [pipeline.prepare_arrays(sample.arrays) for pipeline in pipelines]
            continue
        decoded: dict[tuple[str, int], bytes | Array] = {}
        try:
            encoded = sample.read_image()
            for pipeline in pipelines:
                if pipeline.decoding not in decoded:
                    decoded[pipeline.decoding] = pipeline.decode(encoded, str(sample))
        except InputError as error:
            if rejected is None:
                raise
            rejected[str(sample)] = error.message
        else:
            yield sample, [pipeline.prepare_image(decoded[pipeline.decoding]) for pipeline in pipelines]


@public
def batches(
    dataset: Dataset,
    pipeline: InputPipeline,
    size: int = 1,
    rejected: dict[str, str] | None = None,
    *,
    require_finite: bool = False,
) -> Iterator[Batch]:
    """Prepare a dataset in batches.

    Args:
        dataset: the data.
        pipeline: preparation for the model.
        size: number of samples per batch where the model takes any number.
        rejected, require_finite: see `prepare_samples`.

    Raises:
        InputError, UsageError: see `prepare_samples`.
    """
    samples = dataset.read(pipeline.rank)
    prepared = prepare_samples(samples, [pipeline], rejected, require_finite=require_finite)
    while chunk := list(islice(prepared, pipeline.batch_size or size)):
        yield Batch(pipeline.stack([values[0] for _, values in chunk]), tuple(sample for sample, _ in chunk))


def rank_of(inputs: Sequence[TensorInfo]) -> int | None:
    """Return the number of dimensions of the first input; None if it is not known."""
    dims = inputs[0].shape.dims if inputs else None
    return None if dims is None else len(dims)


def _is_image(row: Array, info: TensorInfo) -> bool:
    """Return True if a row is an image for an input, False if it is fed unchanged."""
    dims = info.shape.dims
    # Three dimensions may be those of an image, or of a batch of sequences, whose rows then have
    # two.
    is_sequence = dims is not None and len(dims) == 3 and row.ndim == 2
    return takes_images(info) and not is_sequence


def _not_finite_reason(arrays: Mapping[str, Array], inputs: Sequence[TensorInfo]) -> str:
    """Return which array is not finite in the type of its input; empty if all arrays are finite."""
    dtypes = {info.name: info.dtype.numpy for info in inputs if info.dtype.is_float}
    default = next(iter(dtypes.values()), np.dtype(np.float32))
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        with np.errstate(over="ignore"):
            values = array.astype(dtypes.get(name, default), copy=False)
        num_nan, num_infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        if num_nan or num_infinite:
            kind = f"NaN in {num_nan}" if num_nan else f"infinity in {num_infinite}"
            return f"{kind} of {values.size} values" + (f" of {name!r}" if name else "")
    return ""
