"""Download of models: from a card to a verified file in the cache.

    for each source: download -> compare with the checksum -> unpack -> compare the members ->
    publish

Sources are tried in order; the model's folder appears complete or not at all. If the archive has no
published checksum, its members are verified, and its digest is recorded in the receipt.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from quantkit.errors import InputError, UsageError, hide_password
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.zoo.cache import (
    FileDigest,
    Receipt,
    SourceError,
    cache_folder,
    drop_parts,
    lock_model,
    new_folder,
    part_path,
)
from quantkit.zoo.cards import ModelCard, find_card, model_files

S = TypeVar("S")
T = TypeVar("T")
SCHEMES = ("http", "https", "file")
# A GraphDef begins with one of its fields: node, library, an obsolete version, versions.
GRAPH_STARTS = frozenset(b"\x0a\x12\x18\x22")


@dataclass(frozen=True)
class FetchedModel:
    """Model on this machine.

    Attributes:
        card: card of the model.
        path: file of the graph.
        is_cached: True if no download was necessary.
        receipt: origin of the download; None for a model of the installation.
    """

    card: ModelCard
    path: Path
    is_cached: bool
    receipt: Receipt | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.receipt.warnings if self.receipt else ()

    def __str__(self) -> str:
        return str(self.path)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "quantkit.models/2",
            "name": self.card.name,
            "path": str(self.path),
            "is_cached": self.is_cached,
            "receipt": asdict(self.receipt) if self.receipt else None,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class _Source:
    """Source of a download.

    Attributes:
        url: URL of the file.
        num_bytes, sha256: size and digest that the downloaded file must have, if known.
        is_own: True if the caller named the URL, so that the card's checksums do not apply.
        is_graph: True for the graph alone, False for the archive.
    """

    url: str
    num_bytes: int | None
    sha256: str
    is_own: bool = False
    is_graph: bool = False

    @property
    def title(self) -> str:
        """URL without its password, for messages."""
        return hide_password(self.url)


def fetch(card: ModelCard | str, *, offline: bool = False, on_progress: OnProgress = ignore_progress) -> Path:
    """Return the path of a model's graph, downloaded on first use; `obtain` has more options."""
    return obtain(card, offline=offline, on_progress=on_progress).path


def obtain(
    card: ModelCard | str,
    *,
    offline: bool = False,
    url: str | None = None,
    sha256: str | None = None,
    force: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> FetchedModel:
    """Download a model, unless the cache has it.

    Args:
        card: card, or name of a card.
        offline: never download.
        url: URL (http, https or file) of another archive or graph. The names of its members must be
            the card's; the card's sizes and checksums do not apply.
        sha256: digest of the file at `url`.
        force: download even if the cache has the model.
        on_progress: receives the bytes done and the total number of bytes.
        on_message: receives messages about waiting, retries and failed sources.

    Raises:
        UsageError: the card does not exist, or the URL or digest is malformed.
        InputError: every source failed; the message has the reason for each one.
    """
    card = find_card(card) if isinstance(card, str) else card
    if card.is_bundled and url is not None:
        raise UsageError(f"{card.name} is part of the installation: it has no url")
    digest = check_url(url, sha256)
    if card.is_bundled:
        return _find_bundled(card)
    if not force and (cached := _find_cached(card, url, digest)):
        return cached
    sources = [_Source(url, None, digest, is_own=True)] if url else _published_sources(card)
    if offline:
        sources = [source for source in sources if urlsplit(source.url).scheme == "file"]
    if not sources:
        raise InputError(
            f"{card.name} is not in {cache_folder() / card.name}, and --offline forbids a download",
            hint=f"run 'quantkit models fetch {card.name}' once with a network, or set QUANTKIT_CACHE to its folder",
        )
    with lock_model(card.name, on_message):
        if not force and (cached := _find_cached(card, url, digest)):
            return cached
        return try_sources(card.name, sources, lambda source: _fetch_source(source, card, on_progress, on_message))


def locate(card: ModelCard | str) -> Path | None:
    """Return the path of a model's graph; None if the complete model is not on this machine."""
    card = find_card(card) if isinstance(card, str) else card
    return locate_member(card, card.graph)


def locate_member(card: ModelCard, name: str) -> Path | None:
    """Return the path of a file of a model; None if the complete model is not on this machine."""
    if card.is_bundled:
        path = Path(str(model_files().joinpath(name)))
        return path if path.is_file() else None
    folder = cache_folder() / card.name
    receipt = Receipt.read(folder)
    return folder / name if receipt and name in receipt.members else None


def label_files(card: ModelCard) -> tuple[Path, ...]:
    """Return the label files of a model; empty if one is not on this machine."""
    owner = find_card(card.labels.card) if card.labels.card else card
    paths = [locate_member(owner, name) for name in card.labels.files]
    return tuple(path for path in paths if path) if all(paths) else ()


def check_url(url: str | None, sha256: str | None) -> str:
    """Check the caller's URL and digest; return the digest in lower case, or an empty string.

    Raises:
        UsageError: the URL or the digest is malformed, or only the digest is given.
    """
    if url is not None and _scheme(url) not in SCHEMES:
        own = Path(url).absolute().as_uri() if Path(url).exists() else "file:///folder/archive.tgz"
        raise UsageError(f"{url!r} is not a URL of {', '.join(SCHEMES)}", hint=f"name a file as --url {own}")
    if sha256 is None:
        return ""
    if url is None:
        raise UsageError("sha256 without url: the card has its own checksums", hint="give --url as well")
    if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise UsageError(f"{sha256!r} is not 64 hexadecimal digits", hint="sha256sum FILE prints them")
    return sha256.lower()


def _scheme(url: str) -> str:
    """Return the scheme of a URL; empty if the URL is invalid."""
    try:
        return urlsplit(url).scheme
    except ValueError:  # brackets that are not an IPv6 address
        return ""


def _find_bundled(card: ModelCard) -> FetchedModel:
    path = locate(card)
    if path is None:
        raise InputError(f"{card.graph} is missing from the installation", hint="install quantkit again")
    return FetchedModel(card, path, is_cached=True)


def _find_cached(card: ModelCard, url: str | None, digest: str) -> FetchedModel | None:
    """Return the model in the cache; None if it is missing or has another origin."""
    folder = cache_folder() / card.name
    receipt = Receipt.read(folder)
    if receipt is None or card.graph not in receipt.members:
        return None
    if url and (receipt.sha256 != digest if digest else receipt.url != hide_password(url)):
        return None
    return FetchedModel(card, folder / card.graph, is_cached=True, receipt=receipt)


def _published_sources(card: ModelCard) -> list[_Source]:
    """Return the mirrors of the archive, then those of the graph alone."""
    archive, graph = card.archive, card.member(card.graph)
    archives = [_Source(url, archive.num_bytes, archive.sha256) for url in archive.urls] if archive else []
    return archives + [_Source(url, graph.num_bytes, graph.sha256, is_graph=True) for url in graph.urls]


def try_sources(name: str, sources: Iterable[S], fetch_source: Callable[[S], T]) -> T:
    """Return the result of the first source that succeeds.

    Args:
        name: name of the card, for the message.
        sources: sources in order.
        fetch_source: function that downloads from one source; a `SourceError` is its failure.

    Raises:
        InputError: every source failed; the message has the reason for each one.
    """
    failures: list[SourceError] = []
    for source in sources:
        try:
            return fetch_source(source)
        except SourceError as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise InputError(failures[0].message, failures[0].hint)
    raise InputError(
        f"{name} cannot be downloaded: " + "; ".join(failure.message for failure in failures),
        hint="check the network and the proxy (HTTPS_PROXY), or name another archive: --url URL --sha256 DIGEST",
    )


def _fetch_source(source: _Source, card: ModelCard, on_progress: OnProgress, on_message: OnMessage) -> FetchedModel:
    """Download, verify, unpack and publish one source; a file that fails a check is removed."""
    from quantkit.zoo import transfer

    part = part_path(card.name, source.url)
    resumable = transfer.count_resumable_bytes(part)
    resumed = f", {resumable / 1e6:.1f} MB are already here" if resumable else ""
    on_message(f"fetching {card.name} from {source.title}{resumed}")
    transfer.download(source.url, part, num_bytes=source.num_bytes, on_progress=on_progress, on_message=on_message)
    try:
        stored = digest_of(part)
        compare(source.title, stored, source.num_bytes, source.sha256)
        with new_folder(card.name) as folder:
            members = _unpack(source, part, card, folder)
            _check_graph(folder / card.graph)
            receipt = _receipt(source, card, stored, members)
            receipt.write(folder)
    except SourceError as failure:
        transfer.discard(part)
        message = failure.message if source.title in failure.message else f"{source.title}: {failure.message}"
        raise SourceError(message, failure.hint) from None
    drop_parts(card.name)
    return FetchedModel(card, cache_folder() / card.name / card.graph, is_cached=False, receipt=receipt)


def digest_of(path: Path) -> FileDigest:
    """Return the size and the digest of a file."""
    with path.open("rb") as file:
        return FileDigest(path.stat().st_size, file_digest(file, "sha256").hexdigest())


def compare(name: str, stored: FileDigest, num_bytes: int | None, digest: str) -> None:
    """Compare a file with its published size and digest.

    Raises:
        SourceError: the size or the digest differs.
    """
    hint = "the file is truncated, altered or another version; it was removed"
    if num_bytes is not None and stored.num_bytes != num_bytes:
        raise SourceError(f"{name}: expected {num_bytes:,} bytes, found {stored.num_bytes:,}", hint)
    if digest and stored.sha256 != digest:
        raise SourceError(f"{name}: expected SHA-256 {digest}, found {stored.sha256}", hint)


def _unpack(source: _Source, part: Path, card: ModelCard, folder: Path) -> dict[str, FileDigest]:
    """Extract the members of a download, and verify them unless the caller named the URL."""
    from quantkit.zoo import archives

    if archives.kind_of(part) == "other":
        members = _bare_graph(source, part, card, folder)
    else:
        members = archives.extract(part, {member.name for member in card.members}, folder)
    needed = [card.graph] if source.is_own or source.is_graph else [member.name for member in card.members]
    for name in needed:
        if name not in members or not members[name].num_bytes:
            raise SourceError(
                f"the archive has no {name!r}", hint=f"check the URL: the archive of {card.name} contains this file"
            )
    if not source.is_own:
        for name, stored in members.items():
            published = card.member(name)
            compare(name, stored, published.num_bytes, published.sha256)
    return members


def _check_graph(path: Path) -> None:
    """Check that a file is a graph, before it replaces a model in the cache.

    Raises:
        SourceError: the file is truncated, or is not a graph.
    """
    from quantkit.formats import load

    try:
        load(path)
    except InputError as error:
        reason = error.message.removeprefix(str(path)).lstrip(": ")
        raise SourceError(f"{path.name} is not a model: {reason}", hint="name the archive of the model") from None


def _bare_graph(source: _Source, part: Path, card: ModelCard, folder: Path) -> dict[str, FileDigest]:
    from quantkit.zoo import archives

    with part.open("rb") as file:
        start = file.read(1)
    if not (source.is_own or source.is_graph) or start[0] not in GRAPH_STARTS:
        raise SourceError("the file is neither an archive (tar, tar.gz, zip) nor a frozen graph")
    with part.open("rb") as file:
        return {card.graph: archives.copy(file, folder / card.graph)}


def _receipt(source: _Source, card: ModelCard, stored: FileDigest, members: Mapping[str, FileDigest]) -> Receipt:
    if source.is_own:
        verified = "given" if source.sha256 else "nothing"
    else:
        verified = "archive" if source.sha256 and not source.is_graph else "members"
    warnings = _warnings(source, card, stored, members)
    return Receipt(source.title, stored.num_bytes, stored.sha256, verified, members, warnings)


def _warnings(
    source: _Source, card: ModelCard, stored: FileDigest, members: Mapping[str, FileDigest]
) -> tuple[str, ...]:
    """Return the warnings about a download."""
    warnings = []
    if source.is_own and not source.sha256:
        warnings.append(
            f"{source.title} was not verified, because no checksum was given; its SHA-256 is {stored.sha256}"
        )
    if source.is_own:
        warnings += [
            f"{name} has {members[name].num_bytes:,} bytes, the published file {published.num_bytes:,}"
            for published in card.members
            if published.num_bytes
            and (name := published.name) in members
            and members[name].num_bytes != published.num_bytes
        ]
    missing = [member.name for member in card.members if member.name not in members]
    if missing:
        warnings.append(f"{source.title} has no {', '.join(missing)}")
    return tuple(warnings)
