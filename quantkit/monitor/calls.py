"""Calls of a job by purpose: input, compute or waiting, from the stacks of its Python threads.

All code below an input pipeline is input. Else the innermost frame of a known library decides; in the job's own code,
the text of the running line and then the names of the functions. Imports and model loading are the start of the job
and are not judged. A call has the name of the job's own function: a user cannot change the functions of a library.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from quantkit.monitor.agent import LIBRARY_FILES

STARTUP, INPUT, COMPUTE, WAITING, OTHER = "startup", "input", "compute", "waiting", "other"
# A call that computes and takes its input inside.
MIXED = "input or compute"
# Causes of waiting that depend on another thread of the job.
INTERNAL_CAUSES = frozenset({"lock", "queue", "child process"})

# Longest text of a source line in a report.
MAX_TEXT = 60

Stack = tuple[tuple[str, str], ...]
_Key = TypeVar("_Key")


class Purpose(NamedTuple):
    """Purpose of a sampled stack.

    Attributes:
        kind: `INPUT`, `COMPUTE`, `MIXED`, `WAITING`, `STARTUP` or `OTHER`.
        cause: cause of waiting, for example ``sleep``; empty if the line computes.
        label: innermost function of the job's own code, else of the library, as ``file.py:function``.
        line: running line of that function of the job, as ``file.py:7: text``; empty for a library.
    """

    kind: str
    cause: str
    label: str
    line: str = ""

    @property
    def location(self) -> str:
        """Function with its running line."""
        function = self.label.rpartition(":")[2]
        return self.label if not self.line else self.line if function == "<module>" else f"{function} ({self.line})"


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_STARTUP_FILES = _any_of("<frozen importlib", r"/tensorflow/python/autograph/(pyct/|core/converter)")
_STARTUP_NAMES = re.compile(
    r"(^|_)(load_model|load_graph|from_pretrained|load_weights|load_checkpoint|compile|import_\w+|create_inference_session)(_|$)"
)
_INPUT_FILES = _any_of(
    r"/PIL/",
    r"/cv2/",
    r"/imageio/",
    r"/skimage/(io|transform)",
    r"/torchvision/(io|datasets|transforms)",
    r"/torch/utils/data/",
    r"/tensorflow/python/data/",
    r"/tensorflow/python/ops/(gen_)?(image|io|parsing|dataset|decode|experimental_dataset)_ops",
    r"/tensorflow/python/ops/image_ops",
    r"/tensorflow/python/lib/io/",
    r"/keras/src/(trainers/data_adapters|utils/(image|dataset))",
    r"/h5py/",
    r"/pandas/io/",
    r"/pyarrow/",
    r"/numpy/lib/.*(npyio|format)",
    r"/(gzip|zipfile|tarfile|bz2|lzma|csv|pickle|shelve|mailbox|wave)\.py$",
    r"/(json|zipfile|sqlite3)/",
    r"/quantkit/(data|formats)/",
    r"/(albumentations|soundfile|librosa|datasets|decord|av|webdataset|lmdb)(/|\.py)",
)
# Callers of the job's input functions: all functions that these call are input.
_PIPELINE_FILES = _any_of(
    r"/(keras|tf_keras)/src/(trainers/data_adapters|engine/data_adapter|utils/data_utils)",
    r"/tensorflow/python/(data|ops/script_ops)",
    r"/torch/utils/data/",
    r"/quantkit(_|/monitor/)markers\.py$",
)
_NETWORK_FILES = _any_of(r"/(socket|ssl)\.py$", r"/(http|urllib|urllib3|requests|httpx|boto3|botocore|aiohttp|grpc)/")
_COMPUTE_FILES = _any_of(
    r"/(onnxruntime|openvino|tensorflow|keras|tf_keras|torch|jax|jaxlib|ai_edge_litert|tflite_runtime|tensorrt)/",
    r"/(sklearn|xgboost|lightgbm|catboost|transformers|triton|scipy|cupy|numba)/",
    r"/numpy/(linalg|fft|ma|_core|core)/",
    r"/quantkit/(runtimes|ops|evaluation)/",
)
# Calls of Keras that take their batches inside of TensorFlow, where no stack shows the time for the input.
_MIXED_FILES = re.compile(r"/(keras|tf_keras)/src/(backend/\w+/trainer|trainers/trainer|engine/training)\.py$")
_MIXED_NAMES = ("fit", "evaluate", "predict")
# Files of Python's library whose functions block, and the cause; the outermost one of a chain of calls decides.
_WAITING_FILES = (
    (re.compile(r"/(queue|concurrent/futures/thread|concurrent/futures/process)\.py$"), "queue"),
    (re.compile(r"/multiprocessing/(connection|queues|pool|managers)\.py$"), "queue"),
    (re.compile(r"/(threading|concurrent/futures/_base|multiprocessing/synchronize)\.py$"), "lock"),
    (re.compile(r"/(subprocess|multiprocessing/(popen_\w+|process))\.py$"), "child process"),
    (re.compile(r"/(selectors\.py|asyncio/)"), "events"),
)
_WAITING_TEXT = (
    (re.compile(r"\bsleep\("), "sleep"),
    (re.compile(r"\.(recv|recv_into|recvfrom|accept|connect|getresponse)\(|urlopen\("), "network"),
    (re.compile(r"\.(acquire|join|result)\(|^with \w*lock|\bflock\("), "lock"),
    (re.compile(r"\.(get|get_nowait|put)\((block|timeout|\))"), "queue"),
    (re.compile(r"\bwait(pid)?\("), "child process"),
)
_INPUT_TEXT = _any_of(
    r"imread|imdecode|decode|decompress|\.p?read\w*\(|\bopen\(|np\.load|fromfile|memmap|frombuffer|Image\.|parse|loads\(",
    r"\bnext\(",
)
_COMPUTE_TEXT = _any_of(
    r" @ |matmul|\.dot\(|einsum|conv|predict|forward|backward|infer|\.fit\(|\btrain|\.run\(|np\.linalg|fft"
)
_INPUT_NAMES = re.compile(
    r"(^|_)(read|reads|reader|load|loads|loader|decode|decoder|parse|parser|input|inputs|batch|batches|dataset|data|"
    r"image|images|record|records|preprocess|preprocessing|augment|resize|next|samples|examples|generator|"
    r"generate|produce|producer|pipeline)(_|$)"
)
_COMPUTE_NAMES = re.compile(
    r"(^|_)(train|training|infer|inference|predict|prediction|forward|backward|step|fit|compute|matmul|conv|model|"
    r"classify|evaluate|update|loss|optimize|run_model)(_|$)"
)


def purpose_of(frames: Stack, text: str = "", own: Sequence[Any] | None = None) -> Purpose:
    """Return the purpose of a stack.

    Args:
        frames: file and function of each frame, the innermost one first.
        text: source line of the innermost frame.
        own: file, function, line number and source line of the innermost frame of the job's own code; None without.

    >>> purpose_of((("/site-packages/PIL/ImageFile.py", "load"), ("/job.py", "main"))).kind
    'input'
    """
    purpose = _purpose(frames, text)
    if not own:
        return purpose
    file, function, number, source = own
    own_label = _label(((file, function),))
    source = source or ("" if purpose.kind == MIXED or purpose.label == own_label else purpose.label)
    source = source if len(source) <= MAX_TEXT else f"{source[: MAX_TEXT - 1]}…"
    label = purpose.label if purpose.kind == MIXED else own_label
    return purpose._replace(label=label, line=": ".join(filter(None, (f"{file}:{number}", source))))


def _purpose(frames: Stack, text: str) -> Purpose:
    label = _label(frames)
    if any(_STARTUP_FILES.search(file) for file, _ in frames):
        return Purpose(STARTUP, "", label)
    cause = _cause(frames, text)
    if any(_PIPELINE_FILES.search(file) for file, _ in frames):
        return Purpose(INPUT, cause, label)
    for file, function in frames:
        if _is_loading(file, function):
            return Purpose(STARTUP, "", label)
        if _NETWORK_FILES.search(file):
            cause = cause or "network"
        elif kind := _kind_of_file(file):
            loop = [frame for frame in frames if frame[1] in _MIXED_NAMES and _MIXED_FILES.search(frame[0])]
            if kind == COMPUTE and loop:
                return Purpose(MIXED, cause, f"Keras {loop[0][1]}")
            return Purpose(kind, cause, _label(((file, function),)))
    return _purpose_of_own_code(frames, text, cause, label)


def _is_loading(file: str, function: str) -> bool:
    is_constructor = function == "__init__" and "/onnxruntime/" in file
    return is_constructor or bool(_STARTUP_NAMES.search(function))


def _kind_of_file(file: str) -> str:
    if _INPUT_FILES.search(file):
        return INPUT
    return COMPUTE if _COMPUTE_FILES.search(file) else ""


def _purpose_of_own_code(frames: Stack, text: str, cause: str, label: str) -> Purpose:
    """Return the purpose of a stack without a frame of a known library."""
    if not cause and _INPUT_TEXT.search(text):
        return Purpose(INPUT, "", label)
    if not cause and _COMPUTE_TEXT.search(text):
        return Purpose(COMPUTE, "", label)
    for file, function in frames:
        if cause in INTERNAL_CAUSES:
            break
        if LIBRARY_FILES.search(file) or _NETWORK_FILES.search(file):
            continue
        if _INPUT_NAMES.search(function):
            return Purpose(INPUT, cause, label)
        if _COMPUTE_NAMES.search(function):
            return Purpose(WAITING if cause else COMPUTE, cause, label)
    return Purpose(WAITING if cause else OTHER, cause, label)


def _cause(frames: Stack, text: str) -> str:
    """Return the cause that blocks the innermost frames, or an empty string."""
    cause = ""
    for file, _ in frames:
        causes = [cause for pattern, cause in _WAITING_FILES if pattern.search(file)]
        if not causes:
            break
        cause = causes[0]
    return cause or next((cause for pattern, cause in _WAITING_TEXT if pattern.search(text)), "")


def _label(frames: Iterable[tuple[str, str]]) -> str:
    for file, function in frames:
        return f"{'/'.join(Path(file).parts[-2:])}:{function}"
    return ""


class Period(NamedTuple):
    """Samples of one process in about half a second, by purpose.

    Attributes:
        end: monotonic clock at the end.
        main, others: samples of the main thread, and of the other threads.
    """

    end: float
    main: Mapping[Purpose, int]
    others: Mapping[Purpose, int]


@dataclass(frozen=True)
class Calls:
    """Sampled calls of one process.

    Attributes:
        pid: process.
        periods: samples in order.
    """

    pid: int
    periods: tuple[Period, ...]

    @cached_property
    def main(self) -> Mapping[Purpose, int]:
        """Samples of the main thread by purpose."""
        return add_counts(period.main for period in self.periods)

    @cached_property
    def others(self) -> Mapping[Purpose, int]:
        """Samples of the other threads by purpose."""
        return add_counts(period.others for period in self.periods)

    @property
    def started(self) -> float | None:
        """Monotonic clock at the end of imports and model loading; None if the samples do not show it."""
        periods = takewhile(lambda each: 2 * _count(each.main, STARTUP) >= sum(each.main.values()), self.periods)
        return max((period.end for period in periods), default=None)

    @property
    def ended(self) -> float | None:
        """Monotonic clock at the end of the work: the end of the samples, or the begin of a last call of its own.

        A last call is a call of the main thread without work in other threads, and without an earlier occurrence: the
        end of an interpreter, a sleep, the release of a dataset.
        """
        last = {purpose for period in self.periods[-1:] for purpose in period.main}
        tail = list(
            takewhile(
                lambda each: last.issuperset(each.main) and not _count(each.others, INPUT, COMPUTE),
                reversed(self.periods),
            )
        )
        before = self.periods[: len(self.periods) - len(tail)]
        is_own = len(last) == 1 and not any(last.intersection(period.main) for period in before[:-1])
        periods = before if before and is_own else self.periods
        return periods[-1].end if periods else None

    @property
    def producers(self) -> int:
        """Largest number of other threads that prepared input at once, at least 1."""
        counts = [(_count(each.others, INPUT), sum(each.main.values())) for each in self.periods if each.main]
        return max([1, *(ceil(inputs / samples) for inputs, samples in counts)])

    def until(self, end: float) -> "Calls":
        """Return the calls before a time."""
        return Calls(self.pid, tuple(period for period in self.periods if period.end <= end))

    def count(self, *kinds: str) -> int:
        """Return the number of samples of all threads of some kinds."""
        return _count(self.main, *kinds) + _count(self.others, *kinds)


def read_calls(folder: Path) -> list[Calls]:
    """Return the sampled calls of each Python process of a job."""
    return [_read_process(path) for path in sorted(folder.glob("calls-*"))]


def _read_process(path: Path) -> Calls:
    purposes: dict[str, tuple[bool, Purpose]] = {}
    periods = []
    for record in _records(path):
        for number, stack in record["stacks"].items():
            frames = tuple((file, function) for file, function in stack["frames"])
            purposes[number] = stack["is_main"], purpose_of(frames, stack["text"], stack.get("own"))
        counts: dict[bool, Counter[Purpose]] = {True: Counter(), False: Counter()}
        for number, count in record["counts"].items():
            is_main, purpose = purposes.get(number, (False, Purpose(OTHER, "", "")))
            counts[is_main][purpose] += count
        periods.append(Period(record["seconds"], counts[True], counts[False]))
    return Calls(int(path.name.partition("-")[2]), tuple(periods))


def _count(purposes: Mapping[Purpose, int], *kinds: str) -> int:
    return sum(count for purpose, count in purposes.items() if purpose.kind in kinds)


def add_counts(counts: Iterable[Mapping[_Key, int]]) -> Counter[_Key]:
    """Return the sum of counts by key."""
    total: Counter[_Key] = Counter()
    for each in counts:
        total.update(each)
    return total


def _records(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the process was ended while it wrote the line
            continue
