"""The Python server of a folder, started and called: its predictions are those of quantkit."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scripted_search import int8_is_fast, script

import quantkit
from quantkit.optimize.deployment import Deployment, deploy
from quantkit.runtimes.session import SessionOptions

pytest.importorskip("fastapi", reason="pip install fastapi")
pytest.importorskip("uvicorn", reason="pip install uvicorn")
pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[3]
DIGITS = sorted((ROOT / "assets").glob("digit_*.png"))[:4]
START_SECONDS = 120
# Changes of a tensor after which it does not fit the input.
CHANGES: tuple[dict[str, Any], ...] = (
    {"datatype": "INT8"},
    {"data": [1.0]},
    {"shape": [3, 16, 16, 3]},
    {"name": "other"},
)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Start the server of a folder on a free port; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (folder.parent / f"{folder.name}.log").open("w+")
    command = [sys.executable, "server.py", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": ""})
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None, (folder.parent / f"{folder.name}.log").read_text()
            assert time.monotonic() < deadline
            try:
                urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.loads(response.read())


def post(url: str, data: bytes) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as response:
        return json.loads(response.read())


def post_wrong(url: str, data: bytes) -> tuple[int, str]:
    """Return the status and the text of an error."""
    with pytest.raises(urllib.error.HTTPError) as error:
        post(url, data)
    with error.value as response:
        return response.code, response.read().decode()


def call_client(folder: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "client.py", "--url", url, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@cache
def quantize_digits(**options: bool) -> quantkit.QuantizationResult:
    return quantkit.quantize("digits", ROOT / "assets/digits_heldout.npz", limit=24, runs=0, **options)


def save_digits(folder: Path, suffix: str) -> Path:
    """Write the model of digits in a format, int8 where the runtime has kernels."""
    file = folder / f"digits{suffix}"
    if suffix == ".onnx":
        quantize_digits().save(file)
    elif suffix == "":
        quantkit.save(quantkit.load("digits"), file, format="saved_model")
    else:
        quantkit.save(quantkit.load("digits"), file)
    return file


def expected_classes(images: Sequence[Path], file: Path, runtime: str) -> list[list[tuple[str, float, int]]]:
    classification = quantkit.classify(images, file, runtime=runtime, intra_op=1)
    return [[(item.label, item.score, item.index) for item in image] for image in classification]


@pytest.mark.parametrize(
    ("suffix", "runtime", "package", "streams"),
    [
        (".onnx", "onnxruntime", "onnxruntime", None),
        (".onnx", "openvino", "openvino", 2),
        (".pb", "tensorflow", "tensorflow", 2),
        ("", "tensorflow", "tensorflow", None),
        (".tflite", "litert", "ai_edge_litert", 2),
    ],
)
def test_served_classes_are_those_of_classify(
    suffix: str, runtime: str, package: str, streams: int | None, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    pytest.importorskip("tensorflow" if suffix != ".onnx" else "onnxruntime")
    file = save_digits(tmp_path, suffix)
    options, variables = SessionOptions(intra_op=1), {"OMP_NUM_THREADS": "1"}
    deployment = Deployment(file, "digits", runtime, options, streams, variables)
    folder = deploy(deployment, tmp_path / "served", "python")
    requirements = (folder / "requirements.txt").read_text().split()
    assert requirements[-1].startswith(f"{package}>=")
    with serve(folder) as url, ThreadPoolExecutor(2) as pool:
        calls = pool.map(lambda path: post(f"{url}/classify?top=5", path.read_bytes()), DIGITS)
        predictions = [document["predictions"] for document in calls]
        printed = call_client(folder, url, str(DIGITS[0]), "--top", "2")
        checked = call_client(folder, url, "--check")
    served = [[(item["label"], item["score"], item["index"]) for item in row] for row in predictions]
    assert served == expected_classes(DIGITS, file, runtime)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.endswith("the outputs are as expected\n")
    lines = printed.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [f"{score:.6f}" for _, score, _ in served[0][:2]]
    assert [line.split(maxsplit=1)[1] for line in lines] == [f"{label} ({index})" for label, _, index in served[0][:2]]


def test_the_int8_file_of_a_search_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    script(monkeypatch, int8_is_fast)
    data, folder = ROOT / "assets/digits_heldout.npz", tmp_path / "served"
    messages: list[str] = []
    result = quantkit.optimize(
        "digits",
        data,
        runtimes=["onnxruntime"],
        output=tmp_path / "best",
        deploy=folder,
        server="python",
        on_message=messages.append,
    )
    assert messages[-1] == f"{folder}: README.md has the commands that start the server and check its outputs"
    assert result.best.form.precision == "int8"
    with serve(folder) as url:
        rows = [post(f"{url}/classify", path.read_bytes())["predictions"] for path in DIGITS]
        assert call_client(folder, url, "--check").returncode == 0
    served = [[(item["label"], item["score"], item["index"]) for item in row] for row in rows]
    assert served == expected_classes(DIGITS, tmp_path / "best.onnx", "onnxruntime")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a classifier of images with a dynamic batch, in several streams."""
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("routes")
    from exported_models import write_exports

    write_exports(path)
    deployment = Deployment(path / "classifier.onnx", "shapes", "onnxruntime", SessionOptions(intra_op=1), streams=2)
    return deploy(deployment, path / "served", "python")


def test_routes_of_the_protocol(folder: Path) -> None:
    batch = np.random.default_rng(0).normal(size=(3, 3, 16, 16)).astype(np.float32)
    tensor = {"name": "image", "datatype": "FP32", "shape": [3, 3, 16, 16], "data": batch.reshape(-1).tolist()}
    with serve(folder) as url:
        metadata = get(f"{url}/v2/models/shapes")
        response = post(f"{url}/v2/models/shapes/infer", json.dumps({"inputs": [tensor]}).encode())
        wrong = [
            post_wrong(f"{url}/v2/models/shapes/infer", json.dumps(request).encode())
            for request in ([], *({"inputs": [{**tensor, **change}]} for change in CHANGES))
        ]
        assert get(f"{url}/v2")["name"] == "quantkit"
        assert post_wrong(f"{url}/classify", b"no image")[0] == 400
        damaged = np.load(folder / "expected.npz")["arr_0"] + 1
        np.savez(folder / "expected.npz", damaged)
        assert call_client(folder, url, "--check").returncode == 1
        assert "the difference is" in call_client(folder, url, "--check").stdout
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 16, 16]}]
    assert [status for status, _ in wrong] == [400] * len(wrong)
    (output,) = response["outputs"]
    with quantkit.open_session(folder / "models/model.onnx", "onnxruntime", threads=1) as session:
        expected = session.run({"image": batch})["logits"]
    assert output["shape"] == [3, 10]
    np.testing.assert_array_equal(np.float32(output["data"]).reshape(3, 10), expected)


def test_preprocessing_inside_the_model_is_stated(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "pixels.onnx"
    quantize_digits(uint8_input=True).save(file)
    folder = deploy(Deployment(file, "digits", "onnxruntime", SessionOptions(intra_op=1)), tmp_path / "served")
    document = json.loads((folder / "deployment.json").read_text())
    assert document["inputs"][0]["datatype"] == "UINT8"
    assert not document["image"]["is_normalized"]
    assert "The model normalizes" in (folder / "README.md").read_text()
    with serve(folder) as url:
        row = post(f"{url}/classify", DIGITS[0].read_bytes())["predictions"]
        assert call_client(folder, url, "--check").returncode == 0
    (expected,) = expected_classes(DIGITS[:1], file, "onnxruntime")
    assert [(item["label"], item["score"], item["index"]) for item in row] == expected


def test_arrays_are_served_without_images(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = ROOT.parent / "shared" / "onnx_models" / "silero_vad_op18.onnx"
    if not file.exists():
        pytest.skip("needs ../shared/onnx_models")
    folder = deploy(Deployment(file, "speech", "onnxruntime", SessionOptions(intra_op=1)), tmp_path / "served")
    assert (folder / "example.npz").exists()
    with serve(folder) as url:
        checked = call_client(folder, url, "--check")
        assert post_wrong(f"{url}/classify", b"")[0] == 404
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_large_color_photographs_are_served(folder: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (700, 900, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photograph.jpg", quality=90)
    with serve(folder) as url:
        row = post(f"{url}/classify", (tmp_path / "photograph.jpg").read_bytes())["predictions"]
    (expected,) = expected_classes([tmp_path / "photograph.jpg"], folder / "models/model.onnx", "onnxruntime")
    assert [(item["label"], item["score"], item["index"]) for item in row] == expected
