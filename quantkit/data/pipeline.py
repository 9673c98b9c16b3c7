"""Input pipeline: preparation of one sample for the inputs of a model.

image    decode -> crop -> resize -> normalize -> layout of the input
array    unchanged, with the axes of the input and in its type; uint8 images are resized and normalized
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import numpy as np

from quantkit.data.dataset import ARRAYS, Dataset
from quantkit.data.inference import Basis, PreprocessingOptions, infer_preprocessing
from quantkit.data.inputs import ImageInput, image_size, takes_images
from quantkit.data.preprocessing import Origin, Preprocessing
from quantkit.errors import InputError, QuantkitError, UsageError, did_you_mean
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.limits import check_size
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import ModelCard

# One sample without a batch axis: an encoded image, an array, or arrays by input name.
Prepared = bytes | Array | Mapping[str, Array]
ARRAYS_UNCHANGED = "arrays unchanged"
# Maximum distance from an integer of a pixel that was normalized in float32 and is computed back.
PIXEL_TOLERANCE = 0.01


@dataclass(frozen=True)
class InputPipeline:
    """Preparation of samples for the inputs of one model.

    Attributes:
        inputs: inputs of the session; a single one if it takes images.
        preprocessing: preprocessing of images; None if arrays are fed unchanged.
        holds_pixels: True if samples are images or uint8 arrays, which the preprocessing applies to.
        source: description of the data, for messages.
        is_unchanged: True if the arrays are values of an image input, and not pixels.
        unbatched: names of the inputs that one sample fills, because they have no batch axis.
    """

    inputs: tuple[TensorInfo, ...]
    preprocessing: Preprocessing | None
    holds_pixels: bool = False
    source: str = "the data"
    is_unchanged: bool = False
    unbatched: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        inputs: Sequence[TensorInfo],
        dataset: Dataset,
        basis: Basis | None = None,
        options: PreprocessingOptions = PreprocessingOptions(),
    ) -> Self:
        """Choose the preparation of a dataset for the inputs of a model.

        Args:
            inputs: inputs of the session.
            dataset: the data.
            basis: card or preprocessing of the model, or the scaling in its graph.
            options: preprocessing that the caller states.

        Raises:
            UsageError: the data does not name its inputs, or the input does not take images.
        """
        arrays = _select(dataset.example(rank_of(inputs)), inputs)
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
            return cls.of_arrays(inputs, arrays, dataset.source)
        if len(inputs) != 1:
            raise UsageError(
                f"the model has {len(inputs)} inputs ({', '.join(info.name for info in inputs)}), "
                "and images fill only one",
                hint="give an array for each input (.npz, or a dict), or name one input with --input-layer",
            )
        if any(not _is_image(array, inputs[0]) for array in arrays.values()):
            return cls.of_arrays(inputs, arrays, dataset.source)
        holds_pixels = all(array.dtype == np.uint8 for array in arrays.values())
        is_unchanged = not holds_pixels and inputs[0].dtype.is_float
        for row in arrays.values():
            options = with_pixel_size(options, row, inputs[0], basis)
        preprocessing = infer_preprocessing(inputs[0], basis, options)
        return cls(tuple(inputs), preprocessing, holds_pixels, dataset.source, is_unchanged)

    @classmethod
    def of_arrays(cls, inputs: Sequence[TensorInfo], arrays: Mapping[str, Array], source: str) -> Self:
        """Return the pipeline for arrays that stay unchanged.

        Args:
            inputs: inputs of the session.
            arrays: arrays of one sample.
            source: description of the data, for messages.
        """
        pipeline = cls(tuple(inputs), None, source=source)
        unbatched = (info.name for info, row in pipeline._rows(arrays) if not _has_batch_axis(row, info))
        return replace(pipeline, unbatched=frozenset(unbatched))

    def __str__(self) -> str:
        return ARRAYS_UNCHANGED if self.preprocessing is None or self.is_unchanged else str(self.preprocessing)

    @property
    def applied(self) -> Preprocessing | None:
        """Preprocessing of the samples; None for arrays, which stay unchanged."""
        return self.preprocessing if self.holds_pixels else None

    @property
    def is_assumed(self) -> bool:
        """True if pixels are normalized with the defaults, because neither the caller nor the model states how."""
        return self.applied is not None and self.applied.origin is Origin.ASSUMED

    @property
    def rank(self) -> int | None:
        """Rank for `Dataset.read`, see `rank_of`."""
        return rank_of(self.inputs)

    @property
    def batch_size(self) -> int | None:
        """Number of samples per batch of the model; None for any number."""
        if self.preprocessing is None:
            infos = (info for info in self.inputs if info.name not in self.unbatched)
            size = next((info.shape.dims[0] for info in infos if info.shape.dims), None)
            return size or 1 if self.unbatched else size
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

    def accepts(self, arrays: Mapping[str, Array]) -> bool:
        """Return True if each row has the axes of its input."""
        return all(self._arrange(row, info) is not None for info, row in self._rows(arrays))

    def prepare_arrays(self, arrays: Mapping[str, Array], *, transpose: bool = False) -> Prepared:
        """Prepare one row of each array.

        Args:
            arrays: rows by name.
            transpose: move the channels of an image to where the input takes them.

        Raises:
            InputError: a row has another shape than its input, or its elements are not real numbers.
            UsageError: an input takes integers, and its row does not hold integers.
        """
        if self.preprocessing is not None:
            return self._prepare_image_array(next(iter(_select(arrays, self.inputs).values())), transpose)
        return {info.name: self._fit(row, info, transpose) for info, row in self._rows(arrays)}

    def split(self, prepared: Iterable[Prepared], size: int) -> Iterator[list[Prepared]]:
        """Split samples into batches of consecutive samples of equal shapes.

        Args:
            prepared: samples.
            size: number of samples per batch where the model takes any number.
        """
        size = self.batch_size or size
        batch: list[Prepared] = []
        for sample in prepared:
            if batch and _shapes(sample) != _shapes(batch[0]):
                yield batch
                batch = []
            batch.append(sample)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    def stack(self, prepared: Sequence[Prepared]) -> dict[str, Array]:
        """Stack prepared samples into feeds; a fixed batch is padded with its last sample.

        Args:
            prepared: a batch of `split`.

        Raises:
            GraphError: a batch of fixed size is larger than the limit of computed tensors.
        """
        size = self.batch_size or 0
        if size > len(prepared):
            name, shape = self.inputs[0].name, self.inputs[0].shape
            check_size(f"a batch of input {name!r} of shape {shape} has", size * _num_bytes(prepared[0]))
        rows = [sample for sample in prepared if isinstance(sample, Mapping)]
        if not rows:
            images = [sample for sample in prepared if not isinstance(sample, Mapping)]
            return {self.inputs[0].name: self.image_input.stack(images)}
        rows += [rows[-1]] * ((self.batch_size or len(rows)) - len(rows))
        return {
            info.name: rows[0][info.name] if info.name in self.unbatched else np.stack([row[info.name] for row in rows])
            for info in self.inputs
        }

    @property
    def _image_preprocessing(self) -> Preprocessing:
        if self.preprocessing is None:
            raise UsageError(f"input {self.inputs[0].name!r} does not take images", hint="give arrays")
        return self.preprocessing

    def _rows(self, arrays: Mapping[str, Array]) -> Iterator[tuple[TensorInfo, Array]]:
        """Yield each input with its row; a single array may have any name."""
        arrays = _select(arrays, self.inputs)
        for info in self.inputs:
            yield info, next(iter(arrays.values())) if len(arrays) == len(self.inputs) == 1 else arrays[info.name]

    def _prepare_image_array(self, row: Array, transpose: bool) -> bytes | Array:
        """Prepare an array for an image input; arrays are not cropped.

        Args:
            row: uint8 pixels, (h, w, c) or with the axes of the input; or numbers as the input takes them, also
                flattened; for a uint8 input also normalized pixels.
            transpose: see `prepare_arrays`.

        Raises:
            InputError: the row has another shape than the input, or its elements are not real numbers.
            UsageError: the input is uint8, and the row holds no pixels.
        """
        image_input, info = self.image_input, self.inputs[0]
        preprocessing = replace(self._image_preprocessing, crop="none")
        if row.dtype.kind == "f" and image_input.dtype is DType.UINT8:
            row, preprocessing = self._to_pixels(row), replace(preprocessing, color_order="rgb")
        is_uint8 = row.dtype == np.uint8
        if image_input.form == "jpeg" or row.dtype.kind not in "biuf":
            raise self._type_error(InputError, row, info, "give images, or an array of pixels")
        if not (is_uint8 or image_input.dtype.is_float):
            raise self._type_error(UsageError, row, info, "give images, or a uint8 array of pixels")
        values = self._arrange(row, info, transpose)
        if values is None:
            raise self._shape_error(row, info)
        if is_uint8:
            return image_input.prepare(values, preprocessing)
        return values.astype(image_input.dtype.numpy, copy=False)

    def _arrange(self, row: Array, info: TensorInfo, transpose: bool = False) -> Array | None:
        """Return pixels as (h, w, c), and another row in the shape of its input; None if it has another shape."""
        if self.preprocessing is not None and row.dtype == np.uint8:
            return _pixels(row, info, self.preprocessing.channels, transpose)
        dims = info.shape.dims
        has_batch_axis = (
            info.name not in self.unbatched if self.preprocessing is None else self.image_input.has_batch_axis
        )
        return _reshape(row, None if dims is None else dims[1:] if has_batch_axis else dims, transpose)

    def _to_pixels(self, row: Array) -> Array:
        """Invert the normalization of pixels; other rows are returned unchanged."""
        basis = self._image_preprocessing
        values = row * np.asarray(basis.std) + np.asarray(basis.mean)
        pixels = np.rint(values)
        are_pixels = np.abs(values - pixels).max(initial=0) < PIXEL_TOLERANCE
        return pixels.astype(np.uint8) if are_pixels and pixels.min() >= 0 and pixels.max() <= 255 else row

    def _fit(self, row: Array, info: TensorInfo, transpose: bool) -> Array:
        """Convert a row to the type and shape of an input.

        Raises:
            InputError: the row has another size, or its elements are not real numbers.
            UsageError: the row has real numbers, and the input takes integers.
        """
        dtype = info.dtype.numpy
        if _is_text(row) != (info.dtype is DType.STRING) or (row.dtype.kind == "c" and dtype.kind in "biuf"):
            raise self._type_error(InputError, row, info, "give an array of the input's type")
        if row.dtype.kind == "f" and dtype.kind in "biu":
            raise self._type_error(UsageError, row, info, "give integers")
        values = self._arrange(row, info, transpose)
        if values is None:
            raise self._shape_error(row, info)
        return _to_strings(values) if _is_text(row) else values.astype(dtype, copy=False)

    def _type_error(self, kind: type[QuantkitError], row: Array, info: TensorInfo, hint: str) -> QuantkitError:
        return kind(f"{self.source}: input {info.name!r} takes {info.dtype.value}, not {row.dtype}", hint=hint)

    def _shape_error(self, row: Array, info: TensorInfo) -> InputError:
        dims = info.shape.dims
        if dims and info.shape.accepts(row.shape):
            return InputError(
                f"{self.source}: input {info.name!r} takes samples of shape {Shape(dims[1:])}, and each sample has the "
                f"shape {Shape(row.shape)}, that of a batch of {row.shape[0]}",
                hint="the first dimension of an array counts the samples: join batches with "
                "array.reshape(-1, *array.shape[2:]); a file of a folder holds one sample",
            )
        hint = "the first dimension of an array counts the samples, the others are the input's"
        if dims and row.ndim == len(dims) - 1:
            hint = f"pass samples of shape {Shape(dims[1:])}, or export the model with dynamic sizes"
        for source, destination in ((-1, -3), (-3, -1)):
            if row.ndim == 3 and self._arrange(np.moveaxis(row, source, destination), info) is not None:
                hint = f"move the channels: numpy.moveaxis(array, {source}, {destination})"
        return InputError(
            f"{self.source}: input {info.name!r} takes {info.dtype.value} of shape {info.shape}, and the samples "
            f"have the shape {'x'.join(map(str, row.shape)) or '()'}",
            hint=hint,
        )


def rank_of(inputs: Sequence[TensorInfo]) -> int | None:
    """Return the number of dimensions of the first input.

    Returns:
        The rank, batch included; None if it is not known, 0 for inputs without a batch axis.
    """
    if not has_batch_axis(inputs):
        return 0
    dims = inputs[0].shape.dims if inputs else None
    return None if dims is None else len(dims)


def has_batch_axis(inputs: Sequence[TensorInfo]) -> bool:
    """Return True if the first dimension of every input counts the samples.

    It does not for several inputs of which one is a single number, or with different first dimensions: then one sample
    is a value for every input.
    """
    shapes = [info.shape.dims for info in inputs if info.shape.dims is not None]
    if len(inputs) < 2:
        return True
    sizes = {dims[0] for dims in shapes if dims}
    return () not in shapes and (len(sizes) < 2 or sizes == {None, 1})


def with_pixel_size(
    options: PreprocessingOptions, row: Array, info: TensorInfo, basis: Basis | None = None
) -> PreprocessingOptions:
    """Return options with the size of an image in an array, where no option, input or card states it.

    Args:
        options: preprocessing that the caller states.
        row: image in an array.
        info: the input.
        basis: card or preprocessing of the model, or the scaling in its graph, which states no size.
    """
    has_size = isinstance(basis, ModelCard | Preprocessing)
    height, width, channels = image_size(info)
    pixels = _pixels(row, info, channels or row.shape[-1]) if not has_size and row.dtype == np.uint8 else None
    if pixels is None:
        return options
    return replace(
        options,
        height=options.height or height or pixels.shape[0],
        width=options.width or width or pixels.shape[1],
    )


def _num_bytes(sample: Prepared) -> int:
    """Return the size of a prepared sample."""
    if isinstance(sample, bytes):
        return len(sample)
    return sum(row.nbytes for row in (sample.values() if isinstance(sample, Mapping) else (sample,)))


def _shapes(sample: Prepared) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a prepared sample; empty for an encoded image."""
    if isinstance(sample, bytes):
        return ()
    return tuple(row.shape for row in (sample.values() if isinstance(sample, Mapping) else (sample,)))


def _is_image(row: Array, info: TensorInfo) -> bool:
    """Return True if a row is an image for an input, False if it is fed unchanged."""
    dims = info.shape.dims
    # Three dimensions may be those of an image, or of a batch of sequences, whose rows then have
    # two.
    is_sequence = dims is not None and len(dims) == 3 and row.ndim == 2
    is_vector = dims is None and row.ndim < 2
    return takes_images(info) and not (is_sequence or is_vector or _is_text(row))


def _is_text(row: Array) -> bool:
    """Return True if a row holds texts or bytes."""
    return row.dtype.kind in "SUOV"


def _to_strings(row: Array) -> Array:
    """Return texts and bytes as an array of bytes objects: NumPy strings drop trailing zero bytes."""
    strings = np.empty(row.shape, object)
    for index in np.ndindex(row.shape):
        value: Any = row[index]
        strings[index] = value.encode() if isinstance(value, str) else bytes(value)
    return strings


def _select(arrays: Mapping[str, Array], inputs: Sequence[TensorInfo]) -> Mapping[str, Array]:
    """Return the arrays of one sample whose elements, numbers or texts, some input takes; else all."""
    kinds = {info.dtype is DType.STRING for info in inputs}
    return {name: row for name, row in arrays.items() if _is_text(row) in kinds} or arrays


def _has_batch_axis(row: Array, info: TensorInfo) -> bool:
    """Return True if an input takes several samples, False if one sample has all of its axes."""
    dims = info.shape.dims
    if dims is None or (dims and _reshape(row, dims[1:], transpose=False) is not None):
        return True
    return not Shape(dims).accepts(row.shape)


def _pixels(row: Array, info: TensorInfo, channels: int, transpose: bool = False) -> Array | None:
    """Return pixels as (h, w, c); None if the row does not hold an image.

    Args:
        row: (h, w, c); (h, w) of a grayscale image; or (c, h, w) for an input with channels first.
        info: the input.
        channels: number of channels of the input.
        transpose: accept (c, h, w) for every input.
    """
    if row.ndim == 2 and channels == 1:
        row = row[..., None]
    if row.ndim != 3 or not row.size:
        return None
    is_first = ImageInput.of(info).channels_first and Shape((info.shape.dims or ())[-3:]).accepts(row.shape)
    if not is_first and row.shape[2] == channels:
        return row
    may_be_first = transpose or ImageInput.of(info).channels_first
    return row.transpose(1, 2, 0) if may_be_first and row.shape[0] == channels else None


def _reshape(row: Array, dims: Sequence[int | None] | None, transpose: bool) -> Array | None:
    """Return a row in the shape of an input; None if it does not fit.

    Args:
        row: numbers in the shape of the input; or flattened, or without axes of size 1.
        dims: sizes of the input, without the batch; None if they are not known.
        transpose: move the channels of an image first or last, where the input takes them there.
    """
    if dims is None or Shape(tuple(dims)).accepts(row.shape):
        return row
    sizes = [size for size in dims if size is not None]
    if len(sizes) == len(dims) and row.size == prod(sizes):
        is_flat = 1 in (row.ndim, len(sizes))
        if is_flat or [size for size in row.shape if size != 1] == [size for size in sizes if size != 1]:
            return row.reshape(sizes)
    orders = ((2, 0, 1), (1, 2, 0)) if transpose and row.ndim == 3 else ()
    candidates = (row.transpose(order) for order in orders)
    fitting = (candidate for candidate in candidates if Shape(tuple(dims)).accepts(candidate.shape))
    return next((np.ascontiguousarray(candidate) for candidate in fitting), None)
