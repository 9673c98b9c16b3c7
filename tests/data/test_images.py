import importlib.util
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantkit.data import images
from quantkit.data.images import check_jpeg, decode, read_bytes
from quantkit.errors import InputError

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed: pip install tensorflow"
)
RED, GREEN = (200, 30, 40), (10, 220, 60)


def two_halves(mode: str = "RGB") -> Image.Image:
    """64 x 32 pixels: left red, right green."""
    image = Image.new("RGB", (64, 32), RED)
    image.paste(GREEN, (32, 0, 64, 32))
    return image.convert(mode)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("GIF", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0}, 4),
    ],
)
def test_every_format_is_read(kind: str, options: dict[str, object], tolerance: int) -> None:
    pixels = decode(encode(two_halves(), kind, **options), kind)
    assert pixels.shape == (32, 64, 3)
    assert pixels.dtype == np.uint8
    for column, colour in ((4, RED), (60, GREEN)):
        assert np.abs(pixels[16, column].astype(int) - colour).max() <= tolerance


@pytest.mark.parametrize(("mode", "kind"), [("L", "PNG"), ("L", "JPEG"), ("1", "PNG"), ("LA", "PNG")])
def test_grey_becomes_three_equal_channels(mode: str, kind: str) -> None:
    pixels = decode(encode(two_halves(mode), kind), "grey")
    assert pixels.shape == (32, 64, 3)
    assert (pixels == pixels[..., :1]).all()


def test_one_channel_is_luma() -> None:
    pixels = decode(encode(two_halves(), "PNG"), "colour", channels=1)
    assert pixels.shape == (32, 64, 1)
    assert pixels[0, 0, 0] == round(0.299 * 200 + 0.587 * 30 + 0.114 * 40)


def test_cmyk_jpeg_has_its_colours() -> None:
    pixels = decode(encode(two_halves("CMYK"), "JPEG", quality=95), "cmyk")
    assert np.abs(pixels[16, 4].astype(int) - RED).max() <= 12


@pytest.mark.engine
@needs_tensorflow
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(1, 1), (4, 9), (5, 5), (6, 6), (33, 17), (17, 33), (300, 200)], ids=str)
def test_jpeg_has_the_pixels_of_tensorflows_decoder(size: tuple[int, int], subsampling: str, progressive: bool) -> None:
    import tensorflow as tf

    coarse = np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    data = encode(image, "JPEG", quality=70, subsampling=subsampling, progressive=progressive)
    np.testing.assert_array_equal(decode(data, "a.jpg"), tf.io.decode_jpeg(data, channels=3).numpy())


@pytest.mark.engine
@needs_tensorflow
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey_has_the_pixels_of_tensorflows_decoder(kind: str) -> None:
    import tensorflow as tf

    ramp = np.random.default_rng(0).integers(0, 256, (20, 30), np.uint8)
    data = encode(Image.fromarray(ramp), kind)
    np.testing.assert_array_equal(decode(data, "a.jpg"), tf.io.decode_image(data, channels=3).numpy())


def test_pixels_of_a_jpeg_do_not_depend_on_where_strips_end(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (75, 40, 3), np.uint8))
    data = encode(noise, "JPEG")
    whole = decode(data, "a.jpg")
    monkeypatch.setattr("quantkit.data.jpeg.STRIP_ROWS", 7)
    np.testing.assert_array_equal(decode(data, "a.jpg"), whole)


def test_an_rgb_jpeg_has_its_colours() -> None:
    pixels = decode(encode(two_halves(), "JPEG", quality=95, keep_rgb=True), "rgb.jpg")
    assert np.abs(pixels[16, 4].astype(int) - RED).max() <= 4


def test_palette_is_converted_to_colors() -> None:
    pixels = decode(encode(two_halves().quantize(2), "PNG"), "palette")
    assert pixels[16, 4].tolist() == list(RED)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparent_becomes_white(mode: str, kind: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (4, 0, 8, 8))
    pixels = decode(encode(image.convert(mode), kind, **({"lossless": True} if kind == "WEBP" else {})), "alpha")
    assert (pixels[:, :4] == 255).all()
    assert (pixels[:, 4:] == 0).all()


def test_half_transparent_is_blended() -> None:
    pixels = decode(encode(Image.new("RGBA", (2, 2), (0, 0, 0, 128)), "PNG"), "half")
    assert (np.abs(pixels.astype(int) - 127) <= 1).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_palette_entry_becomes_white(kind: str) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([9, 9, 9, 200, 0, 0])
    image.putpixel((3, 3), 1)
    pixels = decode(encode(image, kind, transparency=0), "key")
    assert (pixels[0, 0] == 255).all()
    assert pixels[3, 3].tolist() == [200, 0, 0]


def test_16_bits_keep_the_high_byte() -> None:
    values = np.array([[0, 255, 256], [0x1234, 0x80FF, 0xFFFF]], np.uint16)
    pixels = decode(encode(Image.fromarray(values), "PNG"), "deep", channels=1)
    assert pixels[..., 0].tolist() == [[0, 0, 1], [0x12, 0x80, 0xFF]]


def test_camera_orientation_is_applied() -> None:
    image = two_halves()
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    pixels = decode(encode(image, "JPEG", quality=95, exif=exif), "turned")
    assert pixels.shape == (64, 32, 3)
    assert pixels[4, 16, 0] > 150 > pixels[60, 16, 0]


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN)]
    pixels = decode(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]), "moving")
    assert pixels[0, 0].tolist() == list(RED)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "GIF"])
def test_truncated_image_is_rejected(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    data = encode(noise, kind)
    with pytest.raises(InputError, match=r"cut\.img.*(broken or truncated|not an image)"):
        decode(data[: len(data) // 2], "cut.img")


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"just text", "is not an image", "PNG or JPEG"),
        (b"<!DOCTYPE html><html>404", "is not an image", "web page"),
        (b"\x89PNG\r\n\x1a\n", "not an image", ""),
        (b"\xff\xd8\xff", "not an image|truncated", ""),
        (b"%PDF-1.4", "not an image", ""),
    ],
)
def test_file_of_another_kind_is_rejected(data: bytes, message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        decode(data, "odd.jpg")
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3


def test_only_known_formats_are_tried() -> None:
    with pytest.raises(InputError, match="is not an image"):
        decode(encode(two_halves(), "TIFF"), "scan.tif")


def test_too_many_pixels_are_rejected_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with pytest.raises(InputError, match="million pixels"):
        decode(encode(two_halves(), "PNG"), "huge.png")


def test_the_limit_of_pillow_has_the_same_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match="million pixels"):
        decode(encode(two_halves(), "PNG"), "huge.png")


def test_missing_and_empty_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    with pytest.raises(InputError, match=r"empty\.png' is empty"):
        read_bytes(tmp_path / "empty.png")
    with pytest.raises(InputError, match="No such file"):
        read_bytes(tmp_path / "none.png")


def test_graph_with_a_decoder_requires_a_complete_jpeg() -> None:
    whole = encode(two_halves(), "JPEG")
    check_jpeg(whole, "a.jpg")
    with pytest.raises(InputError, match="truncated"):
        check_jpeg(whole[: len(whole) // 2], "cut.jpg")
    with pytest.raises(InputError, match="not a JPEG"):
        check_jpeg(encode(two_halves(), "PNG"), "b.png")
