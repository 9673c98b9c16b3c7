"""What is to be measured: a model, an engine, and the settings of its process."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quantkit.errors import InputError, UsageError, did_you_mean
from quantkit.formats.kinds import kind_of
from quantkit.progress import OnProgress, ignore_progress
from quantkit.runtimes import AUTO, runtimes
from quantkit.runtimes.session import SessionOptions
from quantkit.zoo import fetch, find_card, list_cards


@dataclass(frozen=True)
class Settings:
    """How a worker's process and session are set up.

    Attributes:
        runtime: engine, or ``auto``: the fastest that can run the model here.
        options: threads, device and precision.
        environment: variables, set before the engine loads.
        cpus: hardware threads to bind the process to; empty: all.
        batch: size of a first dimension that the model leaves open; None: 1.
        inputs, outputs: ends of the graph; None: as the file or its card says.
    """

    runtime: str = AUTO
    options: SessionOptions = field(default_factory=SessionOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    batch: int | None = None
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Candidate:
    """One row of a benchmark before it runs.

    Attributes:
        label: the row's name.
        path: the model's file.
        settings: of its process.
    """

    label: str
    path: Path
    settings: Settings = field(default_factory=Settings)

    def __str__(self) -> str:
        return f"{self.label} in {self.settings.runtime}"

    def to_request(self, seed: int) -> dict[str, Any]:
        """The worker's request that opens it."""
        settings = self.settings
        return {
            "do": "open",
            "model": str(self.path.absolute()),
            "runtime": settings.runtime,
            "options": asdict(settings.options),
            "inputs": settings.inputs,
            "outputs": settings.outputs,
            "batch": settings.batch,
            "seed": seed,
        }


def find_candidate(
    word: str, settings: Settings = Settings(), *, offline: bool = False, on_progress: OnProgress = ignore_progress
) -> Candidate:
    """A candidate for a file or a card, which is fetched at first use.

    Args:
        word: ``MODEL`` or ``MODEL@RUNTIME``.
        settings: of its process; the runtime in the word goes first.
        offline: fetch nothing.
        on_progress: receives the bytes done and the total number of bytes.

    Raises:
        UsageError: no such runtime, or neither a file nor a card.
        InputError: the card's model can not be fetched.
    """
    candidate = named(word, settings)
    is_card = candidate.label in {card.name for card in list_cards()}
    if not is_card and (candidate.path.suffix or os.sep in candidate.label or candidate.path.exists()):
        return candidate
    return replace(candidate, path=fetch(find_card(candidate.label), offline=offline, on_progress=on_progress))


def named(word: str, settings: Settings) -> Candidate:
    """A candidate for ``FILE`` or ``FILE@RUNTIME``."""
    model, runtime = split_runtime(word)
    return Candidate(
        model, Path(model).expanduser(), settings if runtime is None else replace(settings, runtime=runtime)
    )


def split_runtime(word: str) -> tuple[str, str | None]:
    """``MODEL@RUNTIME`` as its parts; without an engine's name, the whole word is the model.

    Raises:
        UsageError: what follows the @ is no engine, and no such file exists.
    """
    model, at, runtime = word.rpartition("@")
    if not at or Path(word).exists():
        return word, None
    if runtime in (AUTO, *runtimes()):
        return model, runtime
    hint = did_you_mean(runtime, runtimes()) or f"the runtimes are {', '.join((AUTO, *runtimes()))}"
    raise UsageError(f"{word}: {runtime!r} is not a runtime", hint)


def digest(path: Path) -> tuple[str, int]:
    """SHA-256 and size of a model; a folder's is that of its files' digests in the order of their names.

    Raises:
        InputError: it is missing, empty, unreadable, or no model.
    """
    kind_of(path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    try:
        digests = [_digest_of_file(file) for file in files]
        num_bytes = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise InputError(
            f"{path} can not be read: {error.strerror}", hint="name a model whose files you may read"
        ) from None
    return digests[0] if path.is_file() else hashlib.sha256(json.dumps(digests).encode()).hexdigest(), num_bytes


def _digest_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
