"""From a card to a verified file on this machine.

    for each source: download -> compare with the checksum -> unpack -> compare the members -> publish

Every source is tried in turn; the model's folder appears complete or not at all. Where nobody published a checksum of
the archive its members are verified, and its digest is recorded in the receipt.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from urllib.parse import urlsplit

from quantkit.errors import InputError, UsageError
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.zoo.cache import (
    Receipt,
    SourceError,
    Stored,
    cache_folder,
    drop_parts,
    locked,
    new_folder,
    part_of,
)
from quantkit.zoo.cards import ModelCard, find_card, model_files

SCHEMES = ("http", "https", "file")
# A GraphDef begins with one of its fields: node, library, an obsolete version, versions.
GRAPH_STARTS = frozenset(b"\x0a\x12\x18\x22")


@dataclass(frozen=True)
class Fetched:
    """A model on this machine.

    Attributes:
        card: what is known of it.
        path: the graph.
        is_cached: whether it was there already.
        receipt: where it came from; None for what is part of the installation.
    """

    card: ModelCard
    path: Path
    is_cached: bool
    receipt: Receipt | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.receipt.warnings if self.receipt else ()


@dataclass(frozen=True)
class _Source:
    """One place to try.

    Attributes:
        url: where.
        num_bytes, sha256: what the downloaded file must have, where known.
        is_own: named by the caller, so that the card's checksums do not apply.
        is_graph: the bare graph instead of the archive.
    """

    url: str
    num_bytes: int | None
    sha256: str
    is_own: bool = False
    is_graph: bool = False


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
) -> Fetched:
    """A model and where it came from, downloaded when it is not here yet.

    Args:
        card: a card or its name.
        offline: use what is here and nothing else.
        url: an archive or a graph of one's own instead of the published one: http, https or file. The names of its
            members must be the card's; the card's sizes and checksums do not apply.
        sha256: digest of the file behind `url`.
        force: download even when the model is here.
        on_progress: receives the bytes done and the total number of bytes.
        on_message: receives messages about waiting, retries and failed sources.

    Raises:
        UsageError: no such card, or the url or digest is not one.
        InputError: it can not be had; the message says why for each source.
    """
    card = find_card(card) if isinstance(card, str) else card
    digest = _checked(card, url, sha256)
    if card.is_bundled:
        return _bundled(card)
    if not force and (here := _cached(card, url, digest)):
        return here
    sources = [_Source(url, None, digest, is_own=True)] if url else _published(card)
    if offline:
        sources = [one for one in sources if urlsplit(one.url).scheme == "file"]
    if not sources:
        raise InputError(
            f"{card.name} is not in {cache_folder() / card.name}, and offline nothing is downloaded",
            hint=f"run 'quantkit models fetch {card.name}' once with a network, or set QUANTKIT_CACHE to where it is",
        )
    with locked(card.name, on_message):
        if not force and (here := _cached(card, url, digest)):
            return here
        return _first_of(sources, card, on_progress, on_message)


def locate(card: ModelCard | str) -> Path | None:
    """The graph of a model if it is on this machine, complete."""
    card = find_card(card) if isinstance(card, str) else card
    return locate_member(card, card.graph)


def locate_member(card: ModelCard, name: str) -> Path | None:
    """A file of a model if it is on this machine, complete."""
    if card.is_bundled:
        path = Path(str(model_files().joinpath(name)))
        return path if path.is_file() else None
    folder = cache_folder() / card.name
    receipt = Receipt.read(folder)
    return folder / name if receipt and name in receipt.members else None


def label_files(card: ModelCard) -> tuple[Path, ...]:
    """The label files of a model, in the card's order; empty when one of them is not on this machine."""
    owner = find_card(card.labels.card) if card.labels.card else card
    found = [locate_member(owner, name) for name in card.labels.files]
    return tuple(path for path in found if path) if all(found) else ()


def _checked(card: ModelCard, url: str | None, sha256: str | None) -> str:
    """The digest in lower case, or an empty string."""
    if url is not None and card.is_bundled:
        raise UsageError(f"{card.name} is part of the installation: it has no url")
    if url is not None and urlsplit(url).scheme not in SCHEMES:
        own = Path(url).absolute().as_uri() if Path(url).exists() else "file:///folder/archive.tgz"
        raise UsageError(f"{url!r} is not a URL of {', '.join(SCHEMES)}", hint=f"name a file as --url {own}")
    if sha256 is None:
        return ""
    if url is None:
        raise UsageError("sha256 without url: the card has its own checksums", hint="give --url as well")
    if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise UsageError(f"{sha256!r} is not 64 hexadecimal digits", hint="sha256sum FILE prints them")
    return sha256.lower()


def _bundled(card: ModelCard) -> Fetched:
    path = locate(card)
    if path is None:
        raise InputError(f"{card.graph} is missing from the installation", hint="install quantkit again")
    return Fetched(card, path, is_cached=True)


def _cached(card: ModelCard, url: str | None, digest: str) -> Fetched | None:
    """What is in the cache, if it is what was asked for."""
    folder = cache_folder() / card.name
    receipt = Receipt.read(folder)
    if receipt is None or card.graph not in receipt.members:
        return None
    if url and (receipt.sha256 != digest if digest else receipt.url != url):
        return None
    return Fetched(card, folder / card.graph, is_cached=True, receipt=receipt)


def _published(card: ModelCard) -> list[_Source]:
    """The archive's sources, then those of the bare graph."""
    archive, graph = card.archive, card.member(card.graph)
    whole = [_Source(url, archive.num_bytes, archive.sha256) for url in archive.urls] if archive else []
    return whole + [_Source(url, graph.num_bytes, graph.sha256, is_graph=True) for url in graph.urls]


def _first_of(sources: list[_Source], card: ModelCard, on_progress: OnProgress, on_message: OnMessage) -> Fetched:
    failures: list[SourceError] = []
    for source in sources:
        try:
            return _from(source, card, on_progress, on_message)
        except SourceError as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise InputError(failures[0].message, failures[0].hint)
    raise InputError(
        f"{card.name} can not be downloaded: " + "; ".join(failure.message for failure in failures),
        hint="check the network and the proxy (HTTPS_PROXY), or give an archive of your own: --url URL --sha256 DIGEST",
    )


def _from(source: _Source, card: ModelCard, on_progress: OnProgress, on_message: OnMessage) -> Fetched:
    """Download, verify, unpack and publish one source; what fails a check is not kept."""
    from quantkit.zoo import transfer

    part = part_of(card.name, source.url)
    kept = transfer.kept_bytes(part)
    on_message(f"fetching {card.name} from {source.url}" + (f", of which {kept / 1e6:.1f} MB are here" if kept else ""))
    transfer.download(source.url, part, num_bytes=source.num_bytes, on_progress=on_progress, on_message=on_message)
    try:
        stored = _stored(part)
        _compare(source.url, stored, source.num_bytes, source.sha256)
        with new_folder(card.name) as folder:
            members = _unpack(source, part, card, folder)
            receipt = _receipt(source, card, stored, members)
            receipt.write(folder)
    except SourceError as failure:
        transfer.discard(part)
        message = failure.message if source.url in failure.message else f"{source.url}: {failure.message}"
        raise SourceError(message, failure.hint) from None
    drop_parts(card.name)
    return Fetched(card, cache_folder() / card.name / card.graph, is_cached=False, receipt=receipt)


def _stored(path: Path) -> Stored:
    with path.open("rb") as file:
        return Stored(path.stat().st_size, file_digest(file, "sha256").hexdigest())


def _compare(what: str, stored: Stored, num_bytes: int | None, digest: str) -> None:
    """Hold a file to what is known of it.

    Raises:
        SourceError: size or digest differ.
    """
    hint = "the file is truncated, altered or another version; nothing of it was kept"
    if num_bytes is not None and stored.num_bytes != num_bytes:
        raise SourceError(f"{what}: expected {num_bytes:,} bytes, found {stored.num_bytes:,}", hint)
    if digest and stored.sha256 != digest:
        raise SourceError(f"{what}: expected SHA-256 {digest}, found {stored.sha256}", hint)


def _unpack(source: _Source, part: Path, card: ModelCard, folder: Path) -> dict[str, Stored]:
    """The card's members out of a downloaded file, verified unless it is the caller's own."""
    from quantkit.zoo import archives

    if archives.kind_of(part) == "other":
        members = _bare_graph(source, part, card, folder)
    else:
        members = archives.extract(part, {member.name for member in card.members}, folder)
    needed = [card.graph] if source.is_own or source.is_graph else [member.name for member in card.members]
    for name in needed:
        if name not in members or not members[name].num_bytes:
            raise SourceError(f"the archive has no {name!r}", hint=f"the card {card.name} expects it")
    if not source.is_own:
        for name, stored in members.items():
            known = card.member(name)
            _compare(name, stored, known.num_bytes, known.sha256)
    return members


def _bare_graph(source: _Source, part: Path, card: ModelCard, folder: Path) -> dict[str, Stored]:
    from quantkit.zoo import archives

    with part.open("rb") as file:
        start = file.read(1)
    if not (source.is_own or source.is_graph) or start[0] not in GRAPH_STARTS:
        raise SourceError("this is neither an archive (tar, tar.gz, zip) nor a frozen graph")
    with part.open("rb") as file:
        return {card.graph: archives.copy(file, folder / card.graph)}


def _receipt(source: _Source, card: ModelCard, stored: Stored, members: Mapping[str, Stored]) -> Receipt:
    if source.is_own:
        verified = "given" if source.sha256 else "nothing"
    else:
        verified = "archive" if source.sha256 and not source.is_graph else "members"
    warnings = _warnings(source, card, stored, members)
    return Receipt(source.url, stored.num_bytes, stored.sha256, verified, members, warnings)


def _warnings(source: _Source, card: ModelCard, stored: Stored, members: Mapping[str, Stored]) -> tuple[str, ...]:
    """What the user of this download should know."""
    found = []
    if source.is_own and not source.sha256:
        found.append(f"nothing vouches for {source.url}: no checksum was given; its SHA-256 is {stored.sha256}")
    if source.is_own:
        found += [
            f"{name} has {members[name].num_bytes:,} bytes, the published one {known.num_bytes:,}"
            for known in card.members
            if known.num_bytes and (name := known.name) in members and members[name].num_bytes != known.num_bytes
        ]
    missing = [member.name for member in card.members if member.name not in members]
    if missing:
        found.append(f"{source.url} has no {', '.join(missing)}")
    return tuple(found)
