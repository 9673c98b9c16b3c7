import pytest

from quantkit.quantization import Scheme
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.planning import choose_scheme


@pytest.mark.parametrize(
    ("target", "fields", "has_message"),
    [
        ("onnx", {"activations": "qint8 affine"}, True),
        ("onnx", {"activations": "qint8 symmetric"}, True),
        ("onnx", {"activations": "quint8 symmetric", "signed_activations": "qint8 symmetric"}, True),
        ("onnx", {"activations": "qint8 affine", "weights_only": True}, False),
        ("onnx", {}, False),
        ("litert", {}, False),
    ],
)
def test_signed_activations_for_openvino_have_a_message(
    target: str, fields: dict[str, object], has_message: bool
) -> None:
    messages: list[str] = []
    choose_scheme(Options(scheme=Scheme.for_target(target, **fields), on_message=messages.append))
    assert any("OpenVINO is less accurate" in message for message in messages) == has_message
