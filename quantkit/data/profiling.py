"""Profile of an input pipeline: a ``tf.data.Dataset``, or the one that reads and decodes the images of a dataset."""

from dataclasses import KW_ONLY, dataclass
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from quantkit.arguments import parse_duration, public, require_duration
from quantkit.data.dataset import IMAGE_FEATURES, FileDataset, encoded_image
from quantkit.data.sources import as_dataset
from quantkit.errors import UsageError
from quantkit.formats.tfrecord import compression_of
from quantkit.options import Declaration, option, takes
from quantkit.pipelines import PipelineProfile, profile_dataset
from quantkit.runtimes.tensorflow_library import import_tensorflow

DEFAULT_SECONDS = "3s"


@dataclass(frozen=True)
class DataProfileOptions:
    """The arguments of `profile`."""

    data: Annotated[
        Any,
        Declaration(
            doc="``tf.data.Dataset``; or a folder, list or TFRecord files of images, which are read and decoded"
        ),
    ]
    _: KW_ONLY
    seconds: float | str = option(
        DEFAULT_SECONDS, require_duration, help=f"time of the measurement (default: {DEFAULT_SECONDS})"
    )
    step_seconds: float | str | None = option(
        None,
        require_duration,
        metavar="STEP_TIME",
        help="time in which the consumer processes one element, in seconds (default: not known)",
    )


@public
@takes(DataProfileOptions)
def profile(options: DataProfileOptions) -> PipelineProfile:
    """Profile an input pipeline: rates, the core time of each stage, and the limits.

    Raises:
        UsageError: an argument is wrong.
        InputError: the data does not exist, or the pipeline fails or has no elements.
        UnavailableError: TensorFlow is not installed, or the pipeline has autotuning disabled.
    """
    step = None if options.step_seconds is None else parse_duration(options.step_seconds)
    return profile_dataset(as_pipeline(options.data), parse_duration(options.seconds), step)


def as_pipeline(data: Any) -> Any:
    """Return a ``tf.data.Dataset``, or the pipeline that reads and decodes images.

    Raises:
        UsageError: the data has no image files or records of images.
    """
    tf = import_tensorflow()
    if isinstance(data, tf.data.Dataset):
        return data
    dataset = as_dataset(data, keep_order=True)
    if not isinstance(dataset, FileDataset) or not dataset.holds_images:
        raise UsageError(
            f"{dataset.source} holds no images", hint="give images, TFRecord files of images, or FILE.py:FUNCTION"
        )
    paths = list(dict.fromkeys(str(sample.path) for sample in dataset.samples))
    if dataset.samples[0].offset is None:
        encoded = tf.data.Dataset.from_tensor_slices(paths).map(tf.io.read_file, tf.data.AUTOTUNE)
    else:
        names = dataset.samples[0].read_features()
        key = next(name for name in IMAGE_FEATURES if name in names and encoded_image(names))
        features = {key: tf.io.FixedLenFeature([], tf.string)}

        def parse(record: Any) -> Any:
            return tf.io.parse_single_example(record, features)[key]

        groups = groupby(paths, lambda path: compression_of(Path(path)))
        parts = [tf.data.TFRecordDataset(list(files), compression) for compression, files in groups]
        encoded = reduce(lambda first, second: first.concatenate(second), parts).map(parse, tf.data.AUTOTUNE)

    def decode(image: Any) -> Any:
        return tf.io.decode_image(image, channels=3, expand_animations=False)

    return encoded.map(decode, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
