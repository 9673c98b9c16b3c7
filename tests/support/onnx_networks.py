"""Trained ONNX networks with their data and metrics, from the folder ``../shared/onnx_models``.

Each network has samples for the calibration, other samples for the evaluation, and the metric of its task. A metric is
a function of sums over the samples, so that a bootstrap over the samples gives its interval. The README of the folder
describes files, preprocessing and the results of the float models.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from quantkit.ir.tensor import Array

SHARED = Path(__file__).parents[3] / "shared"
FOLDER = SHARED / "onnx_models"
DATA = FOLDER / "data"
PHOTOGRAPHS = SHARED / "inception_v3" / "images"
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)

Feeds = dict[str, Array]
Run = Callable[[Feeds], Mapping[str, Array]]
Decode = Callable[[Mapping[str, Array]], Array]
NUM_RESAMPLES = 2000
# Sentences of the calibration of the sentence encoder.
NUM_SENTENCES = 48


@dataclass(frozen=True)
class OnnxNetwork:
    """Trained network with its data.

    Attributes:
        name: name of the file without suffix.
        calibration: returns the calibration samples; a recurrent network is run to compute its states.
        evaluate: returns the sums of each sample, (n, k), of a function that runs the network.
        score: returns the metric, better if larger, of the totals (k,).
        metric: name of the metric.
        keep_float: nodes that stay float, for example a spectrogram.
        folder: folder of the file.
    """

    name: str
    calibration: Callable[[Run], list[Feeds]]
    evaluate: Callable[[Run], Array]
    metric: str
    score: Callable[[Array], float]
    keep_float: tuple[str, ...] = ()
    folder: Path = FOLDER

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.onnx"

    def measure(self, run: Run) -> float:
        """Return the metric of a function that runs the network."""
        return self.score(self.evaluate(run).sum(0))

    def interval(self, reference: Array, sums: Array) -> tuple[float, float]:
        """Return the 95 % interval of the metric minus that of the float model, by a bootstrap over the samples.

        Args:
            reference: sums of each sample of the float model, (n, k).
            sums: the same of the other model.
        """
        return bootstrap(len(sums), lambda rows: self.score(sums[rows].sum(0)) - self.score(reference[rows].sum(0)))

    def deviations(self, reference: Array, sums: Array) -> Array:
        """Return the deviation of each sample from the float model, (n,), which no other sample can cancel.

        It is the absolute difference of the metrics of the sample; for outputs that are compared with those of the
        float model, the RMS error as a fraction of the RMS of the signal of all samples.

        Args:
            reference: sums of each sample of the float model, (n, k).
            sums: the same of the other model.
        """
        if self.score is decibels:
            errors: Array = np.sqrt(sums[:, 1] / reference[:, 0].mean())
            return errors
        return np.abs([self.score(row) - self.score(other) for row, other in zip(sums, reference, strict=True)])


def bootstrap(count: int, statistic: Callable[[Array], float]) -> tuple[float, float]:
    """Return the 95 % interval of a statistic of the indices of samples, by a bootstrap over the samples."""
    generator = np.random.default_rng(0)
    values = [statistic(generator.integers(0, count, count)) for _ in range(NUM_RESAMPLES)]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


# Metrics of sums over the samples


def ratio(totals: Array) -> float:
    """Return the mean of values: totals are their sum and their number."""
    return float(totals[0] / max(totals[1], 1))


def with_count(values: Sequence[float] | Array) -> Array:
    """Return the sums of samples with one value each, (n, 2), for `ratio`."""
    return np.stack([np.asarray(values, np.float64), np.ones(len(values))], 1)


def correlation(totals: Array) -> float:
    """Return the correlation of x and y: totals are the number of values, and the sums of x, y, x^2, y^2 and x y."""
    count, x, y, xx, yy, xy = totals
    return float((xy - x * y / count) / np.sqrt((xx - x * x / count) * (yy - y * y / count)))


def decibels(totals: Array) -> float:
    """Return the signal-to-noise ratio in dB: totals are the squares of the signal and of the noise."""
    return float(10 * np.log10(totals[0] / max(totals[1], 1e-20 * totals[0])))


# Images


@cache
def photographs() -> tuple[Path, ...]:
    return tuple(sorted(PHOTOGRAPHS.glob("*.jpg")))


def read(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def resize(image: Image.Image, width: int, height: int) -> Array:
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)


def letterbox(image: Image.Image, size: int, fill: int) -> tuple[Array, float]:
    """Return the image at the top left of a square in its proportions, and the factor of its size."""
    scale = min(size / image.width, size / image.height)
    canvas = np.full((size, size, 3), fill, np.float32)
    small = resize(image, int(image.width * scale), int(image.height * scale))
    canvas[: small.shape[0], : small.shape[1]] = small
    return canvas, scale


def planes(pixels: Array) -> Array:
    """Return pixels (h, w, c) as (1, c, h, w)."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def sigmoid(values: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-values))
    return result


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of a box (4,) and boxes (n, 4), left, top, right, bottom."""
    sizes = np.clip(np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2]), 0, None)
    inside = sizes.prod(1)
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1)
    result: Array = inside / np.maximum((box[2:] - box[:2]).prod() + areas - inside, 1e-9)
    return result


def suppress(boxes: Array, scores: Array, limit: float) -> Array:
    """Return the indices of boxes without a better overlapping box."""
    order, indices = list(np.argsort(-scores)), []
    while order:
        best = order.pop(0)
        indices.append(best)
        rest = overlaps(boxes[best], boxes[order]) if order else np.zeros(0)
        order = [index for index, overlap in zip(order, rest, strict=True) if overlap < limit]
    return np.array(indices, int)


def f1_sums(expected: Array, actual: Array) -> tuple[float, float]:
    """Return twice the number of matches and the number of boxes, whose `ratio` is F1; matches overlap by half."""
    matches = sum(int((overlaps(box, actual) > 0.5).any()) for box in expected) if len(actual) else 0
    return 2 * matches, len(expected) + len(actual)


_COCO_NAMES = """
person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant stop_sign
parking_meter bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie
suitcase frisbee skis snowboard sports_ball kite baseball_bat baseball_glove skateboard surfboard
tennis_racket bottle wine_glass cup fork knife spoon bowl banana apple sandwich orange broccoli carrot
hot_dog pizza donut cake chair couch potted_plant bed dining_table toilet tv laptop mouse remote keyboard
cell_phone microwave oven toaster sink refrigerator book clock vase scissors teddy_bear hair_drier
toothbrush
"""
COCO = _COCO_NAMES.split()


def objects() -> dict[str, str]:
    """Return the expected class of each photograph."""
    document: dict[str, str] = json.loads((DATA / "detector_images.json").read_text())
    return document


def other_photographs(count: int) -> list[Path]:
    return [path for path in photographs() if path.name not in objects()][:: len(photographs()) // (count + 20)][:count]


def find_objects(
    run: Run, feeds: Callable[[Path], Feeds], scores: Callable[[Mapping[str, Array]], Array], least: float
) -> Array:
    """Return 1 for each photograph whose class has a score above a limit, else 0; scores are (n, 80)."""
    expected = objects()
    hits = [
        scores(run(feeds(PHOTOGRAPHS / name)))[:, COCO.index(label)].max() > least for name, label in expected.items()
    ]
    return with_count(hits)


def yolox_feeds(path: Path) -> Feeds:
    return {"images": planes(letterbox(read(path), 416, 114)[0][..., ::-1])}


def fastestdet_feeds(path: Path) -> Feeds:
    return {"input.1": planes(resize(read(path), 352, 352)[..., ::-1] / 255)}


def fastestdet_scores(outputs: Mapping[str, Array]) -> Array:
    maps = outputs["758"][0].reshape(85, -1).T
    result: Array = maps[:, :1] ** 0.6 * maps[:, 5:] ** 0.4
    return result


def faces(part: slice) -> list[Path]:
    return sorted((DATA / "faces").glob("*.jpg"))[part]


def ultraface_feeds(path: Path) -> Feeds:
    return {"input": planes((resize(read(path), 320, 240) - 127) / 128)}


def ultraface_boxes(outputs: Mapping[str, Array]) -> Array:
    scores, boxes = outputs["scores"][0, :, 1], outputs["boxes"][0]
    boxes, scores = boxes[scores > 0.7], scores[scores > 0.7]
    result: Array = boxes[suppress(boxes, scores, 0.3)]
    return result


def yunet_feeds(path: Path) -> Feeds:
    return {"input": planes(letterbox(read(path), 320, 0)[0][..., ::-1])}


def yunet_boxes(outputs: Mapping[str, Array]) -> Array:
    rows, scores = [], []
    for stride in (8, 16, 32):
        cells = 320 // stride
        y, x = np.divmod(np.arange(cells * cells), cells)
        box = outputs[f"bbox_{stride}"][0]
        centre = (np.stack([x, y], 1) + box[:, :2]) * stride
        half = np.exp(np.clip(box[:, 2:], None, 8)) * stride / 2
        rows.append(np.concatenate([centre - half, centre + half], 1))
        product = outputs[f"cls_{stride}"][0, :, 0] * outputs[f"obj_{stride}"][0, :, 0]
        scores.append(np.sqrt(np.clip(product, 0, None)))
    boxes, values = np.concatenate(rows), np.concatenate(scores)
    boxes, values = boxes[values > 0.5], values[values > 0.5]
    return boxes[suppress(boxes, values, 0.45)]


def match_faces(
    name: str, feeds: Callable[[Path], Feeds], boxes: Callable[[Mapping[str, Array]], Array]
) -> Callable[[Run], Array]:
    def evaluate(run: Run) -> Array:
        reference = open_onnxruntime(FOLDER / f"{name}.onnx")
        samples = map(feeds, faces(slice(1, None, 2)))
        return np.array([f1_sums(boxes(reference(sample)), boxes(run(sample))) for sample in samples], np.float64)

    return evaluate


def vittrack_feeds(number: int) -> Feeds:
    return {
        name: planes((resize(read(DATA / "tracking" / f"{number:02}_{name[0]}.jpg"), size, size) / 255 - MEAN) / STD)
        for name, size in (("template", 128), ("search", 256))
    }


def vittrack_overlaps(run: Run) -> Array:
    boxes = json.loads((DATA / "tracking" / "boxes.json").read_text())
    window = np.outer(np.hanning(18)[1:-1], np.hanning(18)[1:-1])
    values = []
    for number in range(10, 44):
        outputs = run(vittrack_feeds(number))
        y, x = np.unravel_index((outputs["output1"][0, 0] * window).argmax(), (16, 16))
        size, offset = outputs["output2"][0, :, y, x], outputs["output3"][0, :, y, x]
        centre = (np.array([x, y]) + offset) / 16
        box = np.concatenate([centre - size / 2, centre + size / 2])
        values.append(overlaps(box, np.array([boxes[f"{number:02}"]]))[0])
    return with_count(values)


def orientations() -> list[Path]:
    return sorted((DATA / "text_orientation").glob("*.jpg"))


def orientation_feeds(path: Path) -> Feeds:
    image = read(path)
    scale = 256 / min(image.size)
    pixels = resize(image, round(image.width * scale), round(image.height * scale))
    top, left = (pixels.shape[0] - 224) // 2, (pixels.shape[1] - 224) // 2
    return {"x": planes((pixels[top : top + 224, left : left + 224] / 255 - MEAN) / STD)}


def right_orientations(run: Run) -> Array:
    paths = orientations()[16:]
    angles = [90 * int(next(iter(run(orientation_feeds(path)).values())).argmax()) for path in paths]
    return with_count([int(path.stem.split("_")[-1]) == angle for path, angle in zip(paths, angles, strict=True)])


def sediment() -> tuple[Array, Array]:
    with np.load(DATA / "sediment.npz") as arrays:
        return arrays["input"] / np.float32(255), arrays["target"] / np.float32(255)


def sediment_sums(run: Run, part: slice = slice(6, None)) -> Array:
    """Return the sums of each image for `correlation`."""
    rows = []
    for image, target in zip(*(arrays[part] for arrays in sediment()), strict=True):
        x, y = (np.ravel(each).astype(np.float64) for each in (run({"input": image[None, None]})["output"], target))
        rows.append((x.size, x.sum(), y.sum(), x @ x, y @ y, x @ y))
    return np.array(rows)


def luminance(path: Path) -> Image.Image | None:
    image = read(path)
    side = min(image.size)
    return image.convert("YCbCr").split()[0].crop((0, 0, side, side)) if side >= 225 else None


def super_resolution_pairs(paths: Sequence[Path]) -> Iterator[tuple[Feeds, Array]]:
    for path in paths:
        y = luminance(path)
        if y is None:
            continue
        side = y.width // 3 * 3
        small = y.crop((0, 0, side, side)).resize((side // 3, side // 3), Image.Resampling.BICUBIC)
        values = np.asarray(small, np.float32)[:224, :224] / 255
        padded = np.pad(values, [(0, 224 - size) for size in values.shape], mode="edge")
        yield {"input": padded[None, None]}, np.asarray(y, np.float32)[:side, :side][:672, :672]


def super_resolution_psnr(run: Run) -> Array:
    values = []
    for feeds, target in super_resolution_pairs(photographs()[::10]):
        result = np.clip(run(feeds)["output"][0, 0] * 255, 0, 255)[: target.shape[0], : target.shape[1]]
        error = ((result - target)[6:-6, 6:-6] ** 2).mean()
        values.append(10 * np.log10(255**2 / error))
    return with_count(values)


def xfeat_crops(path: Path) -> tuple[Feeds, Feeds]:
    image = resize(read(path), 320, 320) / 255
    return {"input": planes(image[:256, :256])}, {"input": planes(image[24:280, 32:288])}


def xfeat_matches(run: Run) -> Array:
    """Return the number of mutual nearest neighbours within one cell of the true shift, (4, 3) cells, and of all."""
    rows = []
    for path in photographs()[::5]:
        points, descriptors = [], []
        for feeds in xfeat_crops(path):
            outputs = run(feeds)
            best = np.argsort(-outputs["reliability"][0, 0].reshape(-1))[:300]
            vectors = outputs["descriptors"][0].reshape(64, -1).T[best]
            descriptors.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
            points.append(np.stack(np.divmod(best, 32), 1))
        similarity = descriptors[0] @ descriptors[1].T
        forward, backward = similarity.argmax(1), similarity.argmax(0)
        mutual = np.flatnonzero(backward[forward] == np.arange(len(forward)))
        shifts = points[0][mutual] - points[1][forward[mutual]]
        rows.append((np.count_nonzero(np.abs(shifts - [3, 4]).max(1) <= 1), len(shifts)))
    return np.array(rows, np.float64)


# Sequences


def read_recordings(part: slice) -> tuple[Array, Array]:
    with np.load(DATA / "speech_commands.npz") as arrays:
        return arrays["audio"][part] / np.float32(32768), arrays["label"][part]


def right_recordings(run: Run) -> Array:
    audio, labels = read_recordings(slice(1, None, 2))
    logits = [next(iter(run({"input_1": samples[None]}).values())) for samples in audio]
    return with_count(np.concatenate(logits).argmax(1) == labels)


def stories() -> list[Array]:
    with np.load(DATA / "stories_tokens.npz") as arrays:
        pairs = zip(arrays["tokens"], arrays["length"], strict=True)
        return [tokens[:length].astype(np.int32)[None] for tokens, length in pairs]


def story_likelihoods(run: Run) -> Array:
    """Return the logarithm of the probability of each next token in nats."""
    rows = []
    for tokens in stories()[4:]:
        logits = run({"tokens": tokens[:, :-1]})["logits"][0].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        logarithms = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        rows.append(logarithms[np.arange(len(logits)), tokens[0, 1:]])
    return with_count(np.concatenate(rows))


def speech(name: str) -> Array:
    with np.load(DATA / "noisy_speech.npz") as arrays:
        signal: Array = arrays[name] / np.float32(32768)
    return signal


def windows(signal: Array, size: int, step: int) -> Iterator[Array]:
    for start in range(0, len(signal) - size + 1, step):
        yield signal[start : start + size]


def follow(
    run: Run, frames: Iterator[Feeds], states: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[Feeds, Mapping[str, Array]]]:
    """Run a recurrent network over frames; yield the feeds and outputs of each run."""
    values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for frame in frames:
        feeds = {**frame, **values}
        outputs = run(feeds)
        values = {name: outputs[output] for name, output in states.items()}
        yield feeds, outputs


@dataclass(frozen=True)
class Recurrent:
    """Frames and states of a recurrent network.

    Attributes:
        frames: returns the feeds of each frame without the states.
        states: output of each state.
        shapes: shape of each state.
        output: name of the output that is compared.
    """

    name: str
    frames: Callable[[], Iterator[Feeds]]
    states: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    output: str

    def calibration(self, run: Run) -> list[Feeds]:
        """Return the first half of the frames, one after the other."""
        feeds = [feeds for feeds, _ in follow(run, self.frames(), self.states, self.shapes)]
        return feeds[: len(feeds) // 2]

    def squares(self, run: Run) -> Array:
        """Return the squares of signal and noise of each frame of the second half, with the states of each network."""
        reference = open_onnxruntime(FOLDER / f"{self.name}.onnx")
        sequences = []
        for each in (reference, run):
            outputs = [out[self.output] for _, out in follow(each, self.frames(), self.states, self.shapes)]
            sequences.append(np.stack([values.reshape(-1) for values in outputs[len(outputs) // 2 :]]))
        expected, actual = (frames.astype(np.float64) for frames in sequences)
        return np.stack([(expected**2).sum(1), ((expected - actual) ** 2).sum(1)], 1)


def dtln_frames() -> Iterator[Feeds]:
    for block in windows(speech("gtcrn_mix"), 512, 128):
        yield {"input_2": np.abs(np.fft.rfft(block)).astype(np.float32)[None, None]}


def dtln_blocks() -> Iterator[Feeds]:
    for block in windows(speech("gtcrn_mix"), 512, 128):
        yield {"input_4": block[None, None]}


def gtcrn_frames() -> Iterator[Feeds]:
    window = np.sqrt(np.hanning(513)[:-1])
    for block in windows(speech("gtcrn_mix"), 512, 256):
        spectrum = np.fft.rfft(block * window)
        yield {"mix": np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)[None, :, None]}


def silero_frames() -> Iterator[Feeds]:
    signal = np.concatenate([np.zeros(64, np.float32), speech("gtcrn_mix")])
    for block in windows(signal, 576, 512):
        yield {"input": block[None], "sr": np.array(16000, np.int64)}


DTLN_STATE = (1, 2, 128, 2)
RECURRENT = {
    each.name: each
    for each in (
        Recurrent("dtln_1", dtln_frames, {"input_3": "tf_op_layer_stack_2"}, {"input_3": DTLN_STATE}, "activation_2"),
        Recurrent("dtln_2", dtln_blocks, {"input_5": "tf_op_layer_stack_5"}, {"input_5": DTLN_STATE}, "conv1d_3"),
        Recurrent(
            "gtcrn_stream",
            gtcrn_frames,
            {f"{name}_cache": f"{name}_cache_out" for name in ("conv", "tra", "inter")},
            {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)},
            "enh",
        ),
        *(
            Recurrent(f"silero_vad_{opset}", silero_frames, {"state": "stateN"}, {"state": (2, 1, 128)}, "output")
            for opset in ("op15", "op18")
        ),
    )
}


def open_onnxruntime(model: Path | bytes) -> Run:
    """Return a function that runs a model in ONNX Runtime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    source = str(model) if isinstance(model, Path) else model
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def _paths(feeds: Callable[[Path], Feeds], paths: Callable[[], list[Path]]) -> Callable[[Run], list[Feeds]]:
    return lambda run: [feeds(path) for path in paths()]


NETWORKS = {
    network.name: network
    for network in (
        OnnxNetwork(
            "yolox_nano",
            _paths(yolox_feeds, lambda: other_photographs(32)),
            lambda run: find_objects(
                run, yolox_feeds, lambda out: out["output"][0, :, 4:5] * out["output"][0, :, 5:], 0.3
            ),
            "photographs with the object",
            ratio,
        ),
        OnnxNetwork(
            "fastestdet",
            _paths(fastestdet_feeds, lambda: other_photographs(32)),
            lambda run: find_objects(run, fastestdet_feeds, fastestdet_scores, 0.6),
            "photographs with the object",
            ratio,
        ),
        OnnxNetwork(
            "ultraface_rfb320",
            _paths(ultraface_feeds, lambda: faces(slice(0, None, 2))),
            match_faces("ultraface_rfb320", ultraface_feeds, ultraface_boxes),
            "F1 of the boxes of the float model",
            ratio,
        ),
        OnnxNetwork(
            "yunet_n_320",
            _paths(yunet_feeds, lambda: faces(slice(0, None, 2))),
            match_faces("yunet_n_320", yunet_feeds, yunet_boxes),
            "F1 of the boxes of the float model",
            ratio,
        ),
        OnnxNetwork(
            "vittrack", lambda run: [vittrack_feeds(n) for n in range(10)], vittrack_overlaps, "mean IoU", ratio
        ),
        OnnxNetwork(
            "kwt1",
            lambda run: [{"input_1": samples[None]} for samples in read_recordings(slice(0, None, 2))[0]],
            right_recordings,
            "accuracy",
            ratio,
        ),
        OnnxNetwork(
            "stories260k",
            lambda run: [{"tokens": tokens[:, :-1]} for tokens in stories()[:4]],
            story_likelihoods,
            "mean log probability of the next token",
            ratio,
        ),
        OnnxNetwork(
            "pplcnet_orientation",
            _paths(orientation_feeds, lambda: orientations()[:16]),
            right_orientations,
            "accuracy",
            ratio,
        ),
        OnnxNetwork(
            "sediment_unet",
            lambda run: [{"input": image[None, None]} for image in sediment()[0][:6]],
            sediment_sums,
            "correlation with the target",
            correlation,
        ),
        OnnxNetwork(
            "super_resolution_10",
            lambda run: [feeds for feeds, _ in super_resolution_pairs(photographs()[5::40])],
            super_resolution_psnr,
            "PSNR in dB",
            ratio,
        ),
        OnnxNetwork(
            "xfeat",
            lambda run: [feeds for path in photographs()[7::60] for feeds in xfeat_crops(path)],
            xfeat_matches,
            "correct matches",
            ratio,
        ),
        *(
            OnnxNetwork(name, recurrent.calibration, recurrent.squares, "SQNR in dB", decibels)
            for name, recurrent in RECURRENT.items()
        ),
    )
}


def sentence_encoder(build: Path) -> OnnxNetwork:
    """Return the encoder that `export_sentence_encoder.py` has written, with its sentences."""
    with np.load(build / "minilm.npz") as arrays:
        rows = [arrays[name][None] for name in sorted(arrays)]
    sentences = [
        {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)} for ids in rows
    ]
    calibration, held_out = sentences[:NUM_SENTENCES], sentences[NUM_SENTENCES:]

    def embed(run: Run) -> Array:
        means = np.stack([run(feeds)["last_hidden_state"][0].mean(0) for feeds in held_out])
        embeddings: Array = means / np.linalg.norm(means, axis=1, keepdims=True)
        return embeddings

    def squares(run: Run) -> Array:
        expected = embed(open_onnxruntime(build / "minilm.onnx"))
        return np.stack([np.ones(len(expected)), ((embed(run) - expected) ** 2).sum(1)], axis=1)

    metric = "SQNR of the embeddings of sentences in dB"
    return OnnxNetwork("minilm", lambda run: calibration, squares, metric, decibels, folder=build)
