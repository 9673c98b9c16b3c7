"""Pipelines of the data that commands take: images in folders, lists and TFRecord files."""

from typing import Any

from quantkit.data.dataset import IMAGE_FEATURES, FileDataset, encoded_image
from quantkit.data.sources import as_dataset
from quantkit.errors import UsageError
from quantkit.runtimes.tensorflow_library import import_tensorflow


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

        encoded = tf.data.TFRecordDataset(paths).map(parse, tf.data.AUTOTUNE)

    def decode(image: Any) -> Any:
        return tf.io.decode_image(image, channels=3, expand_animations=False)

    return encoded.map(decode, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
