"""Data cards: known datasets, and their verified download to the cache."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quantkit.errors import InputError, hide_password
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.zoo.cache import Receipt, SourceError, cache_folder, lock_model, new_folder, part_path
from quantkit.zoo.cards import Archive, model_files, parse_table
from quantkit.zoo.fetch import check_url, compare, digest_of, try_sources

SUFFIX = ".data.toml"


@dataclass(frozen=True)
class DataCard:
    """Facts about a known dataset.

    Attributes:
        name: name of the card in commands.
        title, description: texts for the user.
        license: license of the data, or a note about it.
        homepage: page of the publication.
        archive: published archive.
    """

    name: str
    title: str
    description: str
    license: str
    homepage: str
    archive: Archive


@cache
def data_cards() -> tuple[DataCard, ...]:
    """List the installed data cards in the order of their names.

    Raises:
        InputError: a card cannot be read.
    """
    entries = sorted(
        (file for file in model_files().iterdir() if file.name.endswith(SUFFIX)), key=lambda file: file.name
    )
    return tuple(parse_table(DataCard, entry.read_text(encoding="utf-8"), entry.name) for entry in entries)


def obtain_data(
    card: DataCard,
    *,
    url: str | None = None,
    sha256: str | None = None,
    offline: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> Path:
    """Return the path of a dataset's archive, downloaded on first use.

    Args:
        card: card of the dataset.
        url: URL (http, https or file) of another archive, for which the card's checksum does not apply.
        sha256: digest of the file at `url`.
        offline: never download.
        on_progress: receives the bytes done and the total number of bytes.
        on_message: receives messages about the download.

    Raises:
        UsageError: the URL or digest is malformed.
        InputError: every source failed; the message has the reason for each one.
    """
    digest = check_url(url, sha256)
    with lock_model(card.name, on_message):
        cached = _find_cached(card, url, digest)
        if cached:
            return cached
        if offline and not (url or "").startswith("file:"):
            raise InputError(
                f"{card.name} is not in {cache_folder() / card.name}, and --offline forbids a download",
                hint="run the command once with a network, or set QUANTKIT_CACHE to its folder",
            )
        expected = (None, digest) if url else (card.archive.num_bytes, card.archive.sha256)
        sources = [url] if url else card.archive.urls
        return try_sources(card.name, sources, lambda source: _fetch(card, source, *expected, on_progress, on_message))


def _find_cached(card: DataCard, url: str | None, digest: str) -> Path | None:
    folder = cache_folder() / card.name
    receipt = Receipt.read(folder)
    if receipt is None or (url and (receipt.sha256 != digest if digest else receipt.url != hide_password(url))):
        return None
    return folder / next(iter(receipt.members))


def _fetch(
    card: DataCard, url: str, num_bytes: int | None, digest: str, on_progress: OnProgress, on_message: OnMessage
) -> Path:
    """Download and verify one source; a file that fails the check is removed."""
    from quantkit.zoo import transfer

    part, title = part_path(card.name, url), hide_password(url)
    on_message(f"fetching {card.name} from {title}")
    transfer.download(url, part, num_bytes=num_bytes, on_progress=on_progress, on_message=on_message)
    try:
        stored = digest_of(part)
        compare(title, stored, num_bytes, digest)
    except SourceError:
        transfer.discard(part)
        raise
    if not digest:
        on_message(f"warning: {title} was not verified, because no checksum was given; its SHA-256 is {stored.sha256}")
    name = card.archive.urls[0].rpartition("/")[2]
    with new_folder(card.name) as folder:
        part.rename(folder / name)
        receipt = Receipt(title, stored.num_bytes, stored.sha256, "archive" if digest else "nothing", {name: stored})
        receipt.write(folder)
    transfer.discard(part)
    return cache_folder() / card.name / name
