"""Receipt of a quantized file: how it was made, and the check that its graph and weights are those of the receipt.

The metadata of the file contain the receipt; two digests in it cover the graph with its weights, and all metadata. They
find changes by accident. A signature finds changes on purpose, too: the package model-signing writes it to FILE.sig.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from quantkit.arguments import expand_user, public, require_path, type_name, without_none
from quantkit.errors import CheckError, InputError, UsageError, one_line
from quantkit.facts import PlainReport, format_facts
from quantkit.formats import metadata, model_path
from quantkit.formats.content_digest import content_digest
from quantkit.model.model import Model
from quantkit.runtimes.availability import find_package, require

NO_RECEIPT = "the file has no receipt: quantkit quantize did not write it, or another program removed the receipt"
CHANGED_CONTENT = "the graph or the weights are not those of the receipt"
CHANGED_RECEIPT = "the receipt, the preprocessing or the labels were changed after the quantization"
SUFFIX = ".sig"
KEY_HINT = (
    "openssl ecparam -name prime256v1 -genkey -noout -out KEY writes a private key, "
    "openssl ec -in KEY -pubout -out PUBLIC_KEY its public key"
)

# Metrics of the accuracy in a receipt.
FIGURES = ("top1", "agreement", "sqnr", "equal", "task")


@dataclass(frozen=True, repr=False)
class ReceiptCheck(PlainReport):
    """Receipt of a file, and the result of its check.

    Attributes:
        file: path of the file or folder.
        receipt: receipt, with the preprocessing and the labels; None if the file has no readable receipt.
        problems: reasons why the file does not match its receipt or signature; empty if it matches.
        signature: path of the signature that was written or verified; None without a key.
    """

    file: Path
    receipt: Mapping[str, Any] | None
    problems: tuple[str, ...]
    signature: Path | None = None

    @property
    def matches(self) -> bool:
        """True if graph, weights, metadata and signature are those of the receipt."""
        return not self.problems

    def check(self) -> None:
        """Check that the file matches its receipt.

        Raises:
            CheckError: the file was changed, or has no receipt.
        """
        if self.problems:
            hint = "quantize the model again, or copy the original file"
            raise CheckError(f"{self.file}: {'; '.join(self.problems)}", hint=hint)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit receipt --json``."""
        return {
            "schema": "quantkit.receipt/1",
            "file": str(self.file),
            "matches": self.matches,
            "problems": list(self.problems),
            "receipt": None if self.receipt is None else dict(self.receipt),
            "signature": None if self.signature is None else str(self.signature),
        }

    @property
    def _facts(self) -> list[tuple[str, str]]:
        facts = {**(self.receipt or {}), "signature": self.signature}
        accuracy = facts.get("accuracy")
        if isinstance(accuracy, Mapping) and not any(accuracy.get(figure) for figure in FIGURES):
            samples = f"compared on {accuracy.get('samples')} samples of {accuracy.get('on')}"
            facts["accuracy"] = f"{samples}; SQNR and metrics of a task are stated with --runs N only"
        return [(name.replace("_", " "), _text(value)) for name, value in facts.items() if value is not None]

    @property
    def _notes(self) -> list[str]:
        return list(self.problems) or ["graph, weights and metadata match the receipt"]

    def __repr__(self) -> str:
        return f"ReceiptCheck({str(self.file)!r}, matches={self.matches})"

    def __str__(self) -> str:
        return format_facts(str(self.file), self._facts, self._notes)


@public
def receipt(
    model: Any, *, sign: str | os.PathLike[str] | None = None, verify_key: str | os.PathLike[str] | None = None
) -> ReceiptCheck:
    """Read the receipt of a quantized file, and check that graph and weights are those of the receipt.

    Args:
        model: path of a file or SavedModel folder, or a `Model` that was loaded from one.
        sign: private key (elliptic curve, PEM) that signs the file into ``FILE.sig``, if it matches its receipt.
        verify_key: public key (PEM) that verifies ``FILE.sig``.

    Raises:
        InputError: the file, key or signature is missing or broken.
        UsageError: the model is not a file.
        UnavailableError: the package model-signing is not installed.
    """
    require_path(**without_none(sign=sign, verify_key=verify_key))
    if sign is not None and verify_key is not None:
        raise UsageError("sign and verify_key need two calls", hint="sign first, then verify with the public key")
    path = _file_of(model)
    content = content_digest(path)
    stated: dict[str, Any] | None = None
    problems = []
    try:
        text = metadata.read_text(path)
        document = metadata.decode(text)
        if "receipt" not in document:
            problems.append(NO_RECEIPT)
        elif text != metadata.encode(document) or not metadata.is_sealed(document):
            problems.append(CHANGED_RECEIPT)
        if isinstance(facts := document.pop("receipt", None), dict):
            stated = {**facts, **document}
            problems += [CHANGED_CONTENT] if facts.get("content") != content else []
    except InputError as error:
        problems.append(error.message)
    signature = path.with_name(f"{path.name}{SUFFIX}")
    if sign is not None and not problems:
        _sign(path, expand_user(sign), signature)
    if verify_key is not None and (reason := _verify(path, expand_user(verify_key), signature)):
        problems.append(reason)
    is_signed = verify_key is not None or (sign is not None and not problems)
    return ReceiptCheck(path, stated, tuple(problems), signature if is_signed else None)


def _file_of(model: Any) -> Path:
    path = model.path if isinstance(model, Model) else model
    if not isinstance(path, str | os.PathLike):
        message = f"a receipt is read from a file, not from {type_name(model)} in memory"
        raise UsageError(message, hint="save the model, and name its file")
    return model_path(expand_user(path))


def _sign(path: Path, key: Path, signature: Path) -> None:
    """Sign a file with a private key.

    Raises:
        InputError: the key cannot be read.
    """
    _check_file(key, "key", KEY_HINT)
    config = _model_signing("signing").Config()
    with _report_key_errors(key):
        config.use_elliptic_key_signer(private_key=key).sign(path, signature)


def _verify(path: Path, key: Path, signature: Path) -> str:
    """Return the reason why a signature is not that of a file and a public key; empty if it is.

    Raises:
        InputError: the key or the signature is missing, or the key cannot be read.
    """
    _check_file(key, "key", KEY_HINT)
    _check_file(signature, "signature", f"quantkit receipt {path} --sign KEY writes the signature")
    config = _model_signing("verifying").Config()
    with _report_key_errors(key):
        config = config.use_elliptic_key_verifier(public_key=key)
    try:
        config.verify(path, signature)
    except Exception as error:  # the package and those below it raise errors of many types
        return f"the signature is not that of this file and key: {one_line(str(error)).partition(':')[0]}"
    return ""


@contextmanager
def _report_key_errors(key: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise InputError(f"the key {key} cannot be used: {one_line(str(error))}", hint=KEY_HINT) from None


def _check_file(path: Path, kind: str, hint: str) -> None:
    if not path.is_file():
        raise InputError(f"the {kind} {path} does not exist", hint=hint)


def _model_signing(name: str) -> Any:
    """Import a module of the package model-signing.

    Raises:
        UnavailableError: the package is not installed, or one that it needs.
    """
    require(find_package("model-signing", "model_signing", "model-signing", extra="signing"))
    require(find_package("pyOpenSSL, which model-signing needs,", "OpenSSL", "pyopenssl", extra="signing"))
    return import_module(f"model_signing.{name}")


def _text(value: Any) -> str:
    """Return a value of the receipt in one line."""
    if isinstance(value, Mapping) and "interval" in value:
        low, high = value["interval"]
        return f"{100 * value['value']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items() if each not in (None, [], {}))
    if isinstance(value, list):
        return f"{', '.join(map(_text, value[:5]))}{f', ... ({len(value)})' if len(value) > 5 else ''}"
    return str(value)
