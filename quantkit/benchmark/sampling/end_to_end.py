"""End-to-end calls: from image files to the best classes, with the time of each part."""

from collections.abc import Mapping
from itertools import islice

import numpy as np

from quantkit.benchmark.sampling.sampler import Clock
from quantkit.data import InputPipeline, as_dataset
from quantkit.data.pipeline import rank_of
from quantkit.errors import UsageError
from quantkit.model import Model
from quantkit.runtimes.session import Session

# Parts of a call: read and decode the file; crop, resize and normalize; run the model; find the highest scores.
PARTS = ("decode", "preprocess", "infer", "postprocess")
# Images that the calls take in turn.
NUM_IMAGES = 64
# Classes that postprocessing finds.
TOP = 5


class EndToEndCall:
    """Call that decodes, preprocesses and classifies the next images of a dataset.

    Args:
        model: model with its preprocessing.
        session: the opened model.
        data: path of a dataset of images.
        batch: images in one call for models with a dynamic batch.
        clock: monotonic clock in seconds.

    Attributes:
        batch: number of images in one call.

    Raises:
        UsageError: the data holds no images.
    """

    def __init__(self, model: Model, session: Session, data: str, batch: int, clock: Clock) -> None:
        dataset = as_dataset(data, NUM_IMAGES, keep_order=True)
        basis = model.find_basis(session.inputs)
        self._pipeline = InputPipeline.of(session.inputs, dataset, basis)
        self._samples = list(islice(dataset.read(rank_of(session.inputs)), NUM_IMAGES))
        if not self._samples or not dataset.holds_images:
            raise UsageError(f"{data} holds no images", hint="--end-to-end takes image files: --data IMAGES")
        self.batch = self._pipeline.batch_size or batch
        self._session = session
        self._clock = clock
        self._next = 0
        self._parts: dict[str, list[float]] = {}
        self.take_parts()

    def __call__(self) -> None:
        seconds = dict.fromkeys(PARTS, 0.0)
        prepared = []
        for _ in range(self.batch):
            sample = self._samples[self._next % len(self._samples)]
            self._next += 1
            start = self._clock()
            decoded = self._pipeline.decode(sample.read_image(), str(sample))
            middle = self._clock()
            prepared.append(self._pipeline.prepare_image(decoded))
            seconds["decode"] += middle - start
            seconds["preprocess"] += self._clock() - middle
        start = self._clock()
        feeds = self._pipeline.stack(prepared)
        stacked = self._clock()
        outputs = self._session.run(feeds)[self._session.outputs[0].name]
        inferred = self._clock()
        for scores in outputs.reshape(len(outputs) if outputs.ndim else 1, -1):
            np.argsort(-scores)[:TOP]
        seconds["preprocess"] += stacked - start
        seconds["infer"] = inferred - stacked
        seconds["postprocess"] = self._clock() - inferred
        for name, part in seconds.items():
            self._parts[name].append(part)

    def take_parts(self) -> Mapping[str, list[float]]:
        """Return the seconds of each part in each call since the last time."""
        parts, self._parts = self._parts, {name: [] for name in PARTS}
        return parts
