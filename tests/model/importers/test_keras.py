"""Keras files: read without running anything that is in them."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InputError, UnavailableError
from quantkit.formats import graphdef
from quantkit.model.importers import keras as reader
from quantkit.model.importers import keras_contents
from quantkit.runtimes import tensorflow

TENSORFLOW = tensorflow.RUNTIME.available()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail),
    pytest.mark.filterwarnings("ignore"),  # Keras' own
]
ENDINGS = pytest.mark.parametrize("ending", [".keras", ".h5"])
X = np.array([[1, 2, 3, 4]], np.float32)


def save(path: Path, *layers: Any) -> Path:
    keras = tensorflow.import_tensorflow().keras
    keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(3)]).save(path)
    return path


def edit(path: Path, edit: Callable[[Any], Any]) -> Path:
    """The file with another configuration."""
    h5py = pytest.importorskip("h5py")
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            file.attrs["model_config"] = json.dumps(edit(json.loads(file.attrs["model_config"])))
        return path
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["config.json"] = json.dumps(edit(json.loads(members["config.json"]))).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def with_layer(layer: dict[str, Any]) -> Callable[[Any], Any]:
    """Insert a layer after the input."""

    def edit(config: Any) -> Any:
        config["config"]["layers"].insert(1, layer)
        return config

    return edit


@ENDINGS
def test_lambda_layer_is_rejected_and_not_run(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keras = tensorflow.import_tensorflow().keras
    marker = str(tmp_path / "was here")
    evil = keras.layers.Lambda(lambda x: (Path(marker).write_text("!"), x)[1], name="evil")
    path = save(tmp_path / f"model{ending}", evil)
    Path(marker).unlink()  # making the model ran it
    monkeypatch.setattr("keras.models.load_model", lambda *_, **__: pytest.fail("Keras was asked"))
    with pytest.raises(
        InputError, match=r"has a Lambda 'evil': quantkit does not run code from a model file"
    ) as caught:
        qk.load(path)
    assert caught.value.hint
    assert not Path(marker).exists()


@ENDINGS
@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"module": "os", "class_name": "system", "config": {"command": "touch {marker}"}}, "needs 'os.system'"),
        (
            {
                "module": "keras.layers",
                "class_name": "Activation",
                "config": {
                    "activation": {"module": "subprocess", "class_name": "function", "config": "check_output"},
                    "name": "a",
                },
            },
            "needs 'subprocess.check_output'",
        ),
        (
            {"module": "keras.src.utils.file_utils", "class_name": "get_file", "config": {"fname": "{marker}"}},
            "needs 'keras.src.utils.file_utils.get_file'",
        ),
        (
            {"module": "keras.config", "class_name": "function", "config": "enable_unsafe_deserialization"},
            "needs 'keras.config.enable_unsafe_deserialization'",
        ),
        (
            {"module": "keras._tf_keras.keras.utils", "class_name": "get_file", "config": {"fname": "{marker}"}},
            "needs 'keras._tf_keras.keras.utils.get_file'",
        ),
        (
            {"module": "keras", "class_name": "utils.get_file", "config": {"fname": "{marker}"}},
            "needs 'keras.utils.get_file'",
        ),
        (
            {"module": "keras.applications", "class_name": "function", "config": "VGG16"},
            "needs 'keras.applications.VGG16'",
        ),
        (
            {"module": "keras.models", "class_name": "function", "config": "load_model"},
            "needs 'keras.models.load_model'",
        ),
        (
            {"module": "os", "class_name": "function", "config": "system", "registered_name": "tests>Registered"},
            "needs 'os.system'",
        ),
        ({"module": "keras", "class_name": "layers.Lambda", "config": {"name": "l"}}, "has a Lambda 'l'"),
        ({"module": "keras.layers", "class_name": "TFSMLayer", "config": {"name": "t"}}, "has a TFSMLayer 't'"),
        ({"class_name": "__lambda__", "config": {"value": "4wAAAA=="}}, "has a lambda ''"),
        ({"module": "mine", "class_name": "Mine", "config": {}, "registered_name": "my>Mine"}, "needs 'mine.Mine'"),
        ({"class_name": "Mine", "config": {"name": "m"}}, "needs 'Mine', which is not a layer or function of Keras"),
    ],
)
def test_classes_outside_keras_are_rejected(
    layer: dict[str, Any], message: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    custom_objects = tensorflow.import_tensorflow().keras.utils.get_custom_objects()
    monkeypatch.setitem(custom_objects, "tests>Registered", object)
    marker = tmp_path / "was here"
    text = json.dumps(layer).replace("{marker}", str(marker))
    path = edit(save(tmp_path / f"model{ending}"), with_layer(json.loads(text)))
    with pytest.raises(InputError, match=message) as caught:
        qk.load(path)
    assert caught.value.hint
    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("before", [b"", b"PK\x03\x04".ljust(512)], ids=["at the start", "at offset 512"])
def test_an_hdf5_file_with_an_archive_is_rejected(
    before: bytes, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of such a file, Keras might load the part that is not checked."""
    archive, hdf5 = save(tmp_path / "harmless.keras"), save(tmp_path / "other.h5")
    path = tmp_path / f"model{suffix}"
    path.write_bytes(before + hdf5.read_bytes() + archive.read_bytes())
    assert zipfile.is_zipfile(path)
    monkeypatch.setattr("keras.models.load_model", lambda *_, **__: pytest.fail("the file was loaded"))
    with pytest.raises(InputError, match="the file is HDF5 and a zip archive at once") as caught:
        qk.load(path)
    assert caught.value.hint


def test_a_stored_member_at_an_offset_of_hdf5_is_accepted(tmp_path: Path) -> None:
    """The weights of an archive are HDF5, and may start where an HDF5 reader looks for a file."""
    path = save(tmp_path / "model.keras")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    weights = members.pop(keras_contents.WEIGHTS)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        start = archive.fp.tell() + 30 + len(keras_contents.WEIGHTS)  # type: ignore[union-attr]
        padding = zipfile.ZipInfo("padding")
        offset = 1 << (start + 100).bit_length()
        archive.writestr(padding, bytes(offset - start - 30 - len("padding")))
        archive.writestr(keras_contents.WEIGHTS, weights)
    assert path.read_bytes()[offset : offset + 8] == keras_contents.HDF5_SIGNATURE
    assert qk.load(path).graph.op_counts["MatMul"] == 1


def test_keras_loads_the_checked_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another process replaces after the check is not loaded."""
    path, other = save(tmp_path / "model.keras"), save(tmp_path / "other.h5")
    checked = reader._check_contents

    def replace(*arguments: Any) -> None:
        checked(*arguments)
        other.replace(path)

    monkeypatch.setattr(reader, "_check_contents", replace)
    assert qk.load(path).graph.op_counts["MatMul"] == 1
    assert not other.exists()


@pytest.mark.parametrize("version", ["2.19.0", "3.5.0", "3.13.1"])
def test_keras_with_a_known_vulnerability_is_not_used(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "model.h5")
    monkeypatch.setattr(tensorflow.import_tensorflow().keras, "__version__", version)
    with pytest.raises(UnavailableError, match=rf"Keras {version} may execute code") as caught:
        qk.load(path)
    assert "keras>=3.13.2" in caught.value.hint


def test_registered_layers_are_accepted(tmp_path: Path) -> None:
    keras = tensorflow.import_tensorflow().keras

    @keras.utils.register_keras_serializable("quantkit_tests")
    class Twice(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def call(self, x: Any) -> Any:
            return 2 * x

    path = save(tmp_path / "model.keras", Twice())
    assert "Mul" in qk.load(path).graph.op_counts
    del keras.utils.get_custom_objects()["quantkit_tests>Twice"]
    with pytest.raises(InputError, match=r"needs '.*Twice'"):
        qk.load(path)


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt", "a/../../outside.txt", "..\\outside", "C:x"])
def test_members_outside_the_archive_are_rejected(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "model.keras")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, "mine now")
    with pytest.raises(InputError, match="has a path outside the archive"):
        qk.load(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


def test_links_in_archives_are_rejected(tmp_path: Path) -> None:
    path = save(tmp_path / "model.keras")
    info = zipfile.ZipInfo("assets")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, "/etc")
    with pytest.raises(InputError, match="member 'assets' has a path outside"):
        qk.load(path)


@ENDINGS
@pytest.mark.parametrize("way", ["link", "values"])
def test_weights_in_other_files_are_rejected(way: str, ending: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(48))
    path = save(tmp_path / f"model{ending}")
    weights = path if ending == ".h5" else tmp_path / "model.weights.h5"
    if ending == ".keras":
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        weights.write_bytes(members[weights.name])
    with h5py.File(weights, "r+") as file:
        if way == "link":
            file["more"] = h5py.ExternalLink(str(secret), "/")
        else:
            file.create_dataset("more", (12,), np.float32, external=[(str(secret), 0, 48)])
    if ending == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**members, weights.name: weights.read_bytes()}.items():
                archive.writestr(name, content)
    with pytest.raises(InputError, match="its weights 'more' are in another file"):
        qk.load(path)


@ENDINGS
def test_more_than_2_gb_is_rejected_before_any_work(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / f"model{ending}")
    monkeypatch.setattr(graphdef, "MAX_BYTES", 59)
    monkeypatch.setattr("keras.models.load_model", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"the weights of .* take .* GB") as caught:
        qk.load(path)
    assert caught.value.hint


def test_compressed_archives_are_read_as_well(tmp_path: Path) -> None:
    path = save(tmp_path / "model.keras")
    expected = qk.load(path).graph
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert qk.load(path).graph.op_counts == expected.op_counts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.keras", b"PK\x03\x04 and no more", "cannot be read: "),
        ("model.h5", b"\x89HDF\r\n\x1a\n and no more", "cannot be read: .*superblock"),
        ("model.keras", b"PK\x05\x06" + bytes(18), "is an archive|cannot be read"),
    ],
)
def test_broken_file_is_an_error_of_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        qk.load(tmp_path / name)
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_wrong_length_is_an_error_of_one_line(tmp_path: Path) -> None:
    """The header claims weights beyond the end of the archive."""
    path = save(tmp_path / "model.keras")
    data = bytearray(path.read_bytes())
    folder = data.rindex(b"model.weights.h5") - 46
    struct.pack_into("<II", data, folder + 20, 1 << 30, 1 << 30)
    path.write_bytes(data)
    with pytest.raises(InputError, match="cannot be read"):
        qk.load(path)


@pytest.mark.parametrize("fate", ["while True: pass", "import os; os.abort()"], ids=["it hangs", "it breaks down"])
def test_a_crash_of_the_inspection_is_an_error(fate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5's library does either over some broken files."""
    source = Path(keras_contents.__file__).read_text()
    before = "        result = inspect_contents("
    assert before in source
    (tmp_path / "contents.py").write_text(source.replace(before, f"        {fate}\n{before}"))
    monkeypatch.setattr(keras_contents, "__file__", str(tmp_path / "contents.py"))
    monkeypatch.setattr(reader, "_SECONDS", 1)
    with pytest.raises(InputError, match="its inspection process ended with exit code -") as caught:
        qk.load(save(tmp_path / "model.h5"))
    assert caught.value.hint


def test_weights_without_layers_are_rejected(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file["w"] = X
    with pytest.raises(InputError, match="has weights but no layers"):
        qk.load(tmp_path / "weights.h5")
