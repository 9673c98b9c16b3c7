"""images.py of a folder prepares images as quantkit does."""

from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quantkit.data import InputPipeline
from quantkit.data.preprocessing import Preprocessing
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.optimize.deployment.client import describe_image, write_preprocessing
from quantkit.runtimes.session import TensorInfo

PIXELS = np.random.default_rng(0).integers(0, 256, (37, 53, 4), np.uint8)
MEANS, STDS = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Module images.py of a folder."""
    folder = tmp_path_factory.mktemp("folder")
    write_preprocessing(folder)
    module = ModuleType("images")
    exec((folder / "images.py").read_text(), vars(module))
    return module


def encode(pixels: Array, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def encode_rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(PIXELS[..., :3], "JPEG", exif=exif)


FILES = {
    "jpeg": encode(PIXELS[..., :3], "JPEG", subsampling=2, quality=80),
    "jpeg 4:2:2": encode(PIXELS[..., :3], "JPEG", subsampling=1),
    "jpeg 4:4:4": encode(PIXELS[..., :3], "JPEG", subsampling=0),
    "gray jpeg": encode(PIXELS[..., 0], "JPEG"),
    "rotated": encode_rotated(),
    "transparent": encode(PIXELS, "PNG"),
    "16 bits": encode(PIXELS[..., 0].astype(np.uint16) * 257, "PNG"),
    "gif": encode(PIXELS[..., :3], "GIF"),
}
INPUTS = {
    "channels last": (DType.FLOAT, (1, 24, 32, 3), Preprocessing(24, 32)),
    "channels first": (DType.FLOAT, (None, 3, 24, 24), Preprocessing(24, 24, mean=MEANS, std=STDS, crop="square")),
    "half pixels": (DType.FLOAT, (2, 24, 32, 3), Preprocessing(24, 32, resize="bilinear_half_pixel", crop="central")),
    "bgr": (DType.FLOAT, (3, 24, 32), Preprocessing(24, 32, mean=0.0, std=1.0, color_order="bgr")),
    "gray": (DType.FLOAT, (None, 16, 16, 1), Preprocessing(16, 16, 1)),
    "folded": (DType.UINT8, (1, 24, 32, 3), Preprocessing(24, 32)),
    "pixels": (DType.UINT8, (None, None, 3), Preprocessing(24, 32)),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", INPUTS)
def test_arrays_are_those_of_quantkit(images: ModuleType, name: str, file: str) -> None:
    dtype, sizes, preprocessing = INPUTS[name]
    pipeline = InputPipeline((TensorInfo("x", dtype, Shape(sizes)),), preprocessing, holds_pixels=True)
    expected = pipeline.stack([pipeline.prepare_image(pipeline.decode(FILES[file], file))])["x"]
    array = images.read_image(FILES[file], describe_image(pipeline.image_input, preprocessing))
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("data", [b"", b"text", FILES["jpeg"][:100], FILES["transparent"][:60]])
def test_broken_images_are_rejected(images: ModuleType, data: bytes) -> None:
    with pytest.raises(ValueError, match="image") as error:
        images.decode(data, 3)
    assert "BytesIO" not in str(error.value)


def test_large_images_are_rejected(images: ModuleType) -> None:
    header = bytearray(encode(PIXELS[..., :3], "BMP"))
    header[18:26] = (20_000).to_bytes(4, "little") + (8_000).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"\d+ pixels"):
        images.decode(bytes(header), 3)


def test_file_is_formatted_source(tmp_path: Path) -> None:
    write_preprocessing(tmp_path)
    text = (tmp_path / "images.py").read_text()
    assert "import quantkit" not in text
    assert "from quantkit" not in text
    assert text.count("def resize_bilinear(") == 1
