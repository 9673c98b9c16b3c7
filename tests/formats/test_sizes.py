from pathlib import Path

import pytest

import quantkit as qk
from quantkit import formats
from quantkit.benchmark.sampling.candidate import digest
from quantkit.formats.sizes import measure_size
from quantkit.ir.text import from_text

NUM_BYTES = 4 * 64 * 64
GRAPH = from_text("""
inputs: x
outputs: y
x = Placeholder[<?x64>]()
w = Const[64x64]()
y = MatMul(x, w, T=float)
""")


@pytest.mark.parametrize("name", ["m.pb", "m.pbtxt", "m.onnx"])
def test_the_size_of_a_file_is_that_of_the_file(name: str, tmp_path: Path) -> None:
    qk.save(GRAPH, tmp_path / name)
    model = qk.load(tmp_path / name)
    assert measure_size(model.path, model.graph) == (tmp_path / name).stat().st_size > NUM_BYTES


def test_weights_in_other_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qk.save(GRAPH, tmp_path / "m.onnx")
    monkeypatch.setattr("quantkit.formats.onnx.writer.MAX_BYTES", NUM_BYTES // 2)
    _, data = formats.save_onnx(formats.load(tmp_path / "m.onnx"), tmp_path / "large.onnx")
    path, total = tmp_path / "large.onnx", (tmp_path / "large.onnx").stat().st_size + data.stat().st_size
    assert path.stat().st_size < NUM_BYTES <= data.stat().st_size
    assert measure_size(path, formats.load(path)) == digest(path)[1] == qk.summarize(path).file_bytes == total
    data.unlink()
    assert digest(path)[1] == path.stat().st_size, "the runtime reports the missing file"
    formats.save_saved_model(GRAPH, tmp_path / "folder")
    assert measure_size(tmp_path / "folder", GRAPH) >= NUM_BYTES


def test_models_without_a_file_of_their_own_have_the_size_of_their_weights(tmp_path: Path) -> None:
    assert measure_size(None, GRAPH) == NUM_BYTES
    (tmp_path / "m.keras").write_bytes(bytes(3 * NUM_BYTES))  # as large as with the state of an optimizer
    assert measure_size(tmp_path / "m.keras", GRAPH) == NUM_BYTES
