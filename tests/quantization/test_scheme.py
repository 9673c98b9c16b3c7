from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import InputError, UsageError
from quantkit.ir.tensor import DType
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets import targets

SPECS = st.builds(
    Spec,
    st.sampled_from([DType.QUINT8, DType.QINT8]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 5), max_size=2).map(tuple),
)


@given(SPECS)
def test_a_spec_round_trips_through_its_text(spec: Spec) -> None:
    assert Spec.parse(str(spec)) == spec


@given(SPECS)
def test_the_limits_contain_zero(spec: Spec) -> None:
    low, high = spec.limits
    assert low <= 0 <= high
    assert high - low in (255, 254, 127, 126)


@pytest.mark.parametrize("target", targets())
def test_schemes_round_trip_through_toml(target: str, tmp_path: Path) -> None:
    scheme = Scheme.for_target(target, keep_float=('od"d', "Softmax"), observer="percentile(99.5)", equalize=True)
    scheme.save(tmp_path / "scheme.toml")
    assert Scheme.load(tmp_path / "scheme.toml") == scheme


def test_missing_fields_are_those_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "scheme.toml").write_text('target = "tensorflow"\nobserver = "min_max"\n')
    assert Scheme.load(tmp_path / "scheme.toml") == Scheme.for_target("tensorflow", observer="min_max")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('target = "onxx"', "onnx"),
        ('observer = "entropi"', "entropy"),
        ('observer = "percentil(99)"', "percentile"),
        ('observer = "entropy(3)"', "write entropy"),
        ('weights = "qint8 symetric"', "symmetric"),
        ('weights = "qint8"', "affine"),
        ("activations = 8", '"quint8 affine"'),
        ("keep_float = 'Softmax'", '["Softmax"]'),
        ("equalise = true", "equalize"),
        ("equalize = 1", "true or false"),
        ('activations = "quint8 symmetric"', "signed_activations"),
    ],
)
def test_an_invalid_scheme_has_a_hint(text: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "scheme.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        Scheme.load(tmp_path / "scheme.toml")
    assert hint in caught.value.hint


@pytest.mark.parametrize("value", [8, True, ["quint8 affine"]])
def test_the_guide_of_a_hint_shows_a_scheme(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        Scheme.for_target("onnx", activations=value)
    (guide,) = (text for text in caught.value.hint.split() if text.endswith(".md"))
    assert "scheme.toml" in (Path(__file__).parents[2] / guide).read_text()


def test_number_formats_may_be_texts() -> None:
    expected = Scheme.for_target("onnx", activations=Spec.parse("qint8 affine"), keep_float=("Softmax",))
    assert Scheme.for_target("onnx", activations="qint8 affine", keep_float=["Softmax"]) == expected
    assert Scheme("onnx").with_(activations="qint8 affine", keep_float=["Softmax"]) == expected


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none\.toml"):
        Scheme.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("target onnx")
    with pytest.raises(InputError, match="TOML"):
        Scheme.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("onnx", {"weights": Spec.parse("quint8 affine")}, "requires symmetric qint8 weights, not 'quint8 affine'"),
        ("tensorflow", {"weights": Spec.parse("qint8 affine")}, "requires symmetric qint8 weights"),
        (
            "tensorflow",
            {"activations": Spec.parse("qint8 symmetric")},
            "requires activations = 'quint8 symmetric', not",
        ),
        ("eightbit", {"weights": Spec.parse("quint8 affine reduce_range")}, "requires weights = 'quint8 affine', not"),
        ("litert", {"weights": Spec.parse("qint8 symmetric")}, "requires weights = 'qint8 symmetric per_channel', not"),
        (
            "litert",
            {"signed_activations": Spec.parse("qint8 symmetric")},
            "takes no signed_activations: 'qint8 symmetric'",
        ),
        ("onnx", {"split_patterns": True}, "does not support split_patterns"),
    ],
)
def test_an_unsupported_field_is_an_error(target: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Scheme.for_target(target, **changes)
    assert caught.value.hint


def test_default_schemes_are_supported() -> None:
    for target in targets():
        assert Scheme.from_json(Scheme.for_target(target).to_json()) == Scheme.for_target(target)
    Scheme.for_target("onnx", activations=Spec.parse("qint8 symmetric"), weights=Spec.parse("qint8 symmetric"))
    Scheme.for_target("tensorflow", weights=Spec.parse("qint8 symmetric per_channel reduce_range"))
