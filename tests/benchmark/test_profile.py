from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.profile import CALLS, OpProfile, profile_ops
from quantkit.runtimes.session import OpTime, SessionOptions

HELD_OUT = Path(__file__).parent.parent.parent / "assets" / "digits_heldout.npz"


@pytest.fixture(scope="module")
def int8_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "digits.onnx"
    qk.quantize("digits", HELD_OUT, limit=8, runs=0, runtime="reference", output=path)
    return path


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_time_of_int8_ops_is_recorded(runtime: str, int8_model: Path) -> None:
    pytest.importorskip(runtime, reason=f"pip install {runtime}")
    profile = profile_ops(Candidate("int8", int8_model, Settings(runtime)))
    assert profile is not None
    assert sum(profile.fractions.values()) == pytest.approx(1)
    assert profile.fractions["int8"] > 0.2
    assert {time.precision for time in profile.op_times} == {"int8", "float", "conversion"}
    assert any("conv" in time.op.lower() for time in profile.op_times if time.precision == "int8")
    assert "of the time of its ops is in int8" in str(profile)


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_session_without_a_profile_has_no_op_times(runtime: str, int8_model: Path) -> None:
    pytest.importorskip(runtime, reason=f"pip install {runtime}")
    image = np.zeros((1, 16, 16, 1), np.float32)
    with qk.open_session(int8_model, runtime) as session:
        session.run(image)
        assert session.op_times == ()
    with qk.open_session(int8_model, runtime, SessionOptions(profile=True)) as session:
        expected = session.run(image)
        assert sum(time.seconds for time in session.op_times) > 0
    assert next(iter(expected.values())).shape == (1, 10)


def test_runtime_that_measures_no_ops_has_no_profile(tiny_model: Path, tmp_path: Path) -> None:
    candidate = Candidate("tiny", tiny_model, Settings("reference"))
    assert profile_ops(candidate) is None
    assert profile_ops(replace(candidate, path=tmp_path / "missing.pb")) is None
    assert CALLS > 1


def test_profile_without_other_ops_is_int8() -> None:
    profile = OpProfile((OpTime("a", "Conv", "int8", 2.0),))
    assert str(profile) == "100 % of the time of its ops is in int8, 0 % in float, 0 % in conversions"
