"""What is to be 8 bits, and how: decisions that need neither a graph nor data.

A `Scheme` is written as TOML:

    target = "onnx"
    weights = "qint8 symmetric per_channel"
    activations = "quint8 affine"
    observer = "mean_squared_error"
    keep_float = ["Softmax", "conv_1"]
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from quantkit.errors import UsageError, did_you_mean
from quantkit.formats.documents import read_toml
from quantkit.formats.files import write_whole
from quantkit.quantization.observers import find_observer
from quantkit.quantization.spec import AFFINE, WEIGHTS, Spec

if TYPE_CHECKING:
    from quantkit.quantization.targets.base import Target


@dataclass(frozen=True)
class Scheme:
    """What is quantized, and how.

    Attributes:
        target: name of the target whose kernels the specs suit.
        weights: form of the layers' constants.
        activations: form of what flows between layers.
        signed_activations: form where negative numbers occur and ``activations`` has no codes for them; None: the
            same form everywhere.
        observer: how a range is chosen: a name of `quantkit.quantization.observers.observers`, with its number
            where it takes one: ``percentile(99.9)``.
        keep_float: node names, or op names, that stay float.
        share_concat_ranges: whether all that a concatenation joins has one range, so that joining only copies.
        share_pool_ranges: whether an average pool's result has the range of what it reads.
        float_global_pools: whether averages over all positions are computed in float: they are little work, and
            kernels that average codes cut off what averaging gains; what they average is codes until then.
        split_patterns: whether a layer, its bias and its activation are ops of their own, with codes between them.
        quantize_outputs: whether what leaves a layer is codes even where only float ops read it.
        bias_correction: whether the mean error of each layer's output is taken out through its bias.
        equalize: whether scales are moved between neighbouring layers before quantizing, where that is exact.
        weights_only: whether weights alone are stored in 8 bits, and everything is computed in float.
    """

    target: str = "onnx"
    weights: Spec = WEIGHTS
    activations: Spec = AFFINE
    signed_activations: Spec | None = None
    observer: str = "mean_squared_error"
    keep_float: tuple[str, ...] = ()
    share_concat_ranges: bool = True
    share_pool_ranges: bool = False
    float_global_pools: bool = False
    split_patterns: bool = False
    quantize_outputs: bool = False
    bias_correction: bool = True
    equalize: bool = False
    weights_only: bool = False

    def __post_init__(self) -> None:
        find_observer(self.observer)
        _find_target(self.target).check_scheme(self)
        if not self.activations.is_signed and self.signed_activations is None:
            raise UsageError(
                f"activations = {str(self.activations)!r} has no codes for negative numbers",
                hint='give signed_activations as well, for example "qint8 symmetric"',
            )

    @classmethod
    def for_target(cls, target: str, **changes: Any) -> Self:
        """The scheme that suits a target's kernels, with other fields changed.

        Raises:
            UsageError: no target or field has that name.
        """
        known = [one.name for one in fields(cls)]
        for name in changes:
            if name not in known:
                raise UsageError(f"a scheme has no field {name!r}", hint=did_you_mean(name, known))
        return cls(**{"target": target, **_find_target(target).defaults, **changes})

    def with_(self, **changes: Any) -> Self:
        """A copy with other fields."""
        return replace(self, **changes)

    @property
    def digest(self) -> str:
        """Equal for equal schemes."""
        return blake2b(self.to_toml().encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Plain values by field; `from_json` reads them."""
        written = {one.name: _written(getattr(self, one.name)) for one in fields(self)}
        return {name: value for name, value in written.items() if value is not None}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The scheme of plain values; what they leave out is as the target wants it.

        Raises:
            UsageError: a field is unknown or of the wrong type.
        """
        values = {name: _read(name, value) for name, value in document.items()}
        return cls.for_target(values.pop("target", "onnx"), **values)

    def to_toml(self) -> str:
        """The scheme as a TOML document."""
        return "".join(f"{name} = {_toml(value)}\n" for name, value in self.to_json().items())

    def save(self, path: str | Path) -> None:
        """Write the scheme to a TOML file."""
        write_whole(Path(path), lambda file: file.write(self.to_toml().encode()))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The scheme of a TOML file.

        Raises:
            InputError: the file can not be read or is no TOML.
            UsageError: a field is unknown or of the wrong type.
        """
        return cls.from_json(read_toml(Path(path), 'write lines such as weights = "qint8 symmetric per_channel"'))


_SWITCHES = (
    "share_concat_ranges",
    "share_pool_ranges",
    "float_global_pools",
    "split_patterns",
    "quantize_outputs",
    "bias_correction",
    "equalize",
    "weights_only",
)
_KINDS: Mapping[str, type] = {"target": str, "observer": str, **dict.fromkeys(_SWITCHES, bool)}
_SPECS = ("weights", "activations", "signed_activations")


def _find_target(name: str) -> "Target":
    # Imported late: targets convert plans, and a plan holds a scheme.
    from quantkit.quantization.targets import find_target

    return find_target(name)


def _written(value: Any) -> Any:
    return str(value) if isinstance(value, Spec) else list(value) if isinstance(value, tuple) else value


def _read(name: str, value: Any) -> Any:
    if name in _SPECS and isinstance(value, str):
        return Spec.parse(value)
    if name == "keep_float" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if name in _SPECS or name == "keep_float" or not isinstance(value, _KINDS.get(name, object)):
        raise UsageError(f"the scheme's {name} can not be {value!r}", hint="quantkit quantize --help shows a scheme")
    return value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
