"""Scheme of a quantization: decisions that need neither a graph nor data.

The text form is TOML:

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
from typing import Any, Self

from quantkit.arguments import public, require_choice
from quantkit.errors import UsageError, did_you_mean
from quantkit.formats.documents import read_toml
from quantkit.formats.files import write_whole
from quantkit.quantization.observers import find_observer
from quantkit.quantization.spec import AFFINE, WEIGHTS, Spec
from quantkit.quantization.target_registry import REGISTRY
from quantkit.runtimes import find_runtime

PAIR_SAFE, REDUCE_RANGE, IGNORE = "pair_safe", "reduce_range", "ignore"
# Values of `Scheme.saturation`.
SATURATIONS = (PAIR_SAFE, REDUCE_RANGE, IGNORE)


@public
@dataclass(frozen=True)
class Scheme:
    """Number formats, observer and options of a quantization.

    A number format may be given as text: ``activations="quint8 affine"``.

    Attributes:
        target: name of the target whose kernels the specs suit.
        weights: number format of the layers' weights.
        activations: number format of the tensors between layers.
        signed_activations: number format of tensors with negative values, where ``activations`` is
            unsigned; None if ``activations`` serves all tensors.
        observer: name of the observer that chooses ranges, with its number where it takes one:
            ``percentile(99.9)``.
        keep_float: nodes, op types, or layers of Keras (scopes of nodes) that stay float.
        share_concat_ranges: give all inputs of a concatenation one range, so that it only copies.
        share_pool_ranges: give the output of an average pool the range of its input.
        float_global_pools: compute global averages in float: they cost little, and int8 kernels
            lose the precision that averaging gains. Their inputs are still quantized.
        split_patterns: compute a layer, its bias and its activation as separate int8 ops.
        quantize_outputs: quantize the output of a layer even if all its consumers are float.
        float_outputs: leave the output of a layer float if all its consumers are float, for runtimes
            whose int8 kernels have float outputs, too.
        bias_correction: correct the mean error of each layer's output through its bias.
        equalize: move scales between neighbouring layers before quantizing, where that is exact.
        weights_only: quantize the weights alone; all arithmetic is in float.
        saturation: weights for processors without VNNI, where kernels add pairs of u8 x s8 products in int16:
            ``pair_safe`` limits the sums of pairs, ``reduce_range`` uses 7 bits, ``ignore`` uses 8 bits and no limit.
        runtime: name of the runtime whose `quantkit.quantization.targets.workarounds` a file contains; None for those
            of all runtimes of the target.
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
    float_outputs: bool = False
    bias_correction: bool = True
    equalize: bool = False
    weights_only: bool = False
    saturation: str = PAIR_SAFE
    runtime: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, parse_field(field.name, getattr(self, field.name)))
        find_observer(self.observer)
        require_choice(SATURATIONS, saturation=self.saturation)
        self._check_target()
        if not self.activations.is_signed and self.signed_activations is None:
            raise UsageError(
                f"activations = {str(self.activations)!r} cannot represent negative values",
                hint='set signed_activations, too, for example "qint8 symmetric"',
            )

    def _check_target(self) -> None:
        """Check that the target supports the scheme.

        Raises:
            UsageError: a field has a value that the target does not support.
        """
        target = REGISTRY.find(self.target)
        standard = {each.name: each.default for each in fields(self)}
        for name in target.fixed:
            field, _, part = name.partition(".")
            required, value = parse_field(field, target.defaults.get(field, standard[field])), getattr(self, field)
            if part:
                required, value = getattr(required, part).value, getattr(value, part).value
            if value != required:
                requirement = f"requires {name} = {str(required)!r}, not" if required else f"takes no {name}:"
                raise UsageError(
                    f"the target {self.target!r} {requirement} {str(value)!r}",
                    hint=f"leave {field} out, as Scheme.for_target({self.target!r}) does, or choose another target",
                )
        if "weights" not in target.fixed and not (self.weights.symmetric and self.weights.is_signed):
            raise UsageError(
                f"the target {self.target!r} requires symmetric qint8 weights, not {str(self.weights)!r}",
                hint='write for example weights = "qint8 symmetric per_channel"',
            )
        if self.split_patterns and not target.defaults.get("split_patterns"):
            raise UsageError(
                f"the target {self.target!r} does not support split_patterns", hint="leave split_patterns out"
            )

    @classmethod
    def for_target(cls, target: str, **changes: Any) -> Self:
        """Return the default scheme of a target, with other fields changed.

        Raises:
            UsageError: the target or a field does not exist.
        """
        values = {name: parse_field(name, value) for name, value in changes.items()}
        return cls(**{"target": target, **REGISTRY.find(target).defaults, **values})

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other fields."""
        return replace(self, **changes)

    @property
    def weights_format(self) -> Spec:
        """Number format of the weights, of 7 bits if ``saturation`` requires it."""
        return replace(self.weights, reduce_range=self.weights.reduce_range or self.saturation == REDUCE_RANGE)

    @property
    def digest(self) -> str:
        """Hash of all fields."""
        return blake2b(self.to_toml().encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain values by field; `from_json` reads them."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read a scheme from plain values; missing fields get the target's defaults.

        Raises:
            UsageError: a field is unknown or has the wrong type.
        """
        values = dict(document)
        return cls.for_target(parse_field("target", values.pop("target", cls.target)), **values)

    def to_toml(self) -> str:
        """Return the scheme as a TOML document."""
        return "".join(f"{name} = {_toml(value)}\n" for name, value in self.to_json().items())

    def save(self, path: str | Path) -> None:
        """Write the scheme to a TOML file."""
        write_whole(Path(path), lambda file: file.write(self.to_toml().encode()))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a scheme from a TOML file.

        Raises:
            InputError: the file cannot be read or is not a TOML document.
            UsageError: a field is unknown or has the wrong type.
        """
        return cls.from_json(read_toml(Path(path), 'write lines such as weights = "qint8 symmetric per_channel"'))


_SPECS = ("weights", "activations", "signed_activations")
# Type of the text and boolean fields.
_TYPES: Mapping[str, type] = {
    field.name: type(field.default) for field in fields(Scheme) if isinstance(field.default, str | bool)
}
_ALLOWED = {str: "a name in quotes", bool: "true or false"}


def parse_field(name: str, value: Any) -> Any:
    """Return the value of a scheme field; texts of number formats and lists of names are converted.

    Raises:
        UsageError: the field does not exist, or the value is not allowed; the hint lists the allowed values.
    """
    if name in _SPECS:
        if isinstance(value, Spec) or (value is None and name == "signed_activations"):
            return value
        if isinstance(value, str):
            return Spec.parse(value)
        allowed = 'a number format such as "quint8 affine" or "qint8 symmetric per_channel"'
    elif name == "runtime":
        if value is None or isinstance(value, str):
            return None if value is None else find_runtime(value).name
        allowed = _ALLOWED[str]
    elif name == "keep_float":
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        allowed = 'a list of node names or op types, such as ["Softmax"]'
    elif name in _TYPES:
        if isinstance(value, _TYPES[name]):
            return value
        allowed = _ALLOWED[_TYPES[name]]
    else:
        names = [field.name for field in fields(Scheme)]
        raise UsageError(
            f"a scheme has no field {name!r}", hint=did_you_mean(name, names) or f"use one of {', '.join(names)}"
        )
    raise UsageError(
        f"{value!r} is not a value of the scheme field {name!r}",
        hint=f"the allowed value is {allowed}; assets/guides/quantization.md shows a scheme",
    )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Spec) else list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
