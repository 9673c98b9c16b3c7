import importlib.util
import os
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantkit.data import images
from quantkit.data.images import check_jpeg, decode, find_pictures, read_bytes
from quantkit.errors import InputError, UsageError

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed: pip install tensorflow"
)
RED, GREEN = (200, 30, 40), (10, 220, 60)


def two_halves(mode: str = "RGB") -> Image.Image:
    """64 x 32 pixels: left red, right green."""
    image = Image.new("RGB", (64, 32), RED)
    image.paste(GREEN, (32, 0, 64, 32))
    return image.convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
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
    pixels = decode(encoded(two_halves(), kind, **options), kind)
    assert pixels.shape == (32, 64, 3)
    assert pixels.dtype == np.uint8
    for column, colour in ((4, RED), (60, GREEN)):
        assert np.abs(pixels[16, column].astype(int) - colour).max() <= tolerance


@pytest.mark.parametrize(("mode", "kind"), [("L", "PNG"), ("L", "JPEG"), ("1", "PNG"), ("LA", "PNG")])
def test_grey_becomes_three_equal_channels(mode: str, kind: str) -> None:
    pixels = decode(encoded(two_halves(mode), kind), "grey")
    assert pixels.shape == (32, 64, 3)
    assert (pixels == pixels[..., :1]).all()


def test_one_channel_is_luma() -> None:
    pixels = decode(encoded(two_halves(), "PNG"), "colour", channels=1)
    assert pixels.shape == (32, 64, 1)
    assert pixels[0, 0, 0] == round(0.299 * 200 + 0.587 * 30 + 0.114 * 40)


def test_cmyk_jpeg_has_its_colours() -> None:
    pixels = decode(encoded(two_halves("CMYK"), "JPEG", quality=95), "cmyk")
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
    data = encoded(image, "JPEG", quality=70, subsampling=subsampling, progressive=progressive)
    np.testing.assert_array_equal(decode(data, "a.jpg"), tf.io.decode_jpeg(data, channels=3).numpy())


@pytest.mark.engine
@needs_tensorflow
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey_has_the_pixels_of_tensorflows_decoder(kind: str) -> None:
    import tensorflow as tf

    ramp = np.random.default_rng(0).integers(0, 256, (20, 30), np.uint8)
    data = encoded(Image.fromarray(ramp), kind)
    np.testing.assert_array_equal(decode(data, "a.jpg"), tf.io.decode_image(data, channels=3).numpy())


def test_pixels_of_a_jpeg_do_not_depend_on_where_strips_end(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (75, 40, 3), np.uint8))
    data = encoded(noise, "JPEG")
    whole = decode(data, "a.jpg")
    monkeypatch.setattr("quantkit.data.jpeg.STRIP_ROWS", 7)
    np.testing.assert_array_equal(decode(data, "a.jpg"), whole)


def test_an_rgb_jpeg_has_its_colours() -> None:
    pixels = decode(encoded(two_halves(), "JPEG", quality=95, keep_rgb=True), "rgb.jpg")
    assert np.abs(pixels[16, 4].astype(int) - RED).max() <= 4


def test_palette() -> None:
    pixels = decode(encoded(two_halves().quantize(2), "PNG"), "palette")
    assert pixels[16, 4].tolist() == list(RED)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparent_becomes_white(mode: str, kind: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (4, 0, 8, 8))
    pixels = decode(encoded(image.convert(mode), kind, **({"lossless": True} if kind == "WEBP" else {})), "alpha")
    assert (pixels[:, :4] == 255).all()
    assert (pixels[:, 4:] == 0).all()


def test_half_transparent_is_blended() -> None:
    pixels = decode(encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 128)), "PNG"), "half")
    assert (np.abs(pixels.astype(int) - 127) <= 1).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_palette_entry_becomes_white(kind: str) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([9, 9, 9, 200, 0, 0])
    image.putpixel((3, 3), 1)
    pixels = decode(encoded(image, kind, transparency=0), "key")
    assert (pixels[0, 0] == 255).all()
    assert pixels[3, 3].tolist() == [200, 0, 0]


def test_16_bits_keep_the_high_byte() -> None:
    values = np.uint16([[0, 255, 256], [0x1234, 0x80FF, 0xFFFF]])
    pixels = decode(encoded(Image.fromarray(values), "PNG"), "deep", channels=1)
    assert pixels[..., 0].tolist() == [[0, 0, 1], [0x12, 0x80, 0xFF]]


def test_camera_orientation_is_applied() -> None:
    image = two_halves()
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    pixels = decode(encoded(image, "JPEG", quality=95, exif=exif), "turned")
    assert pixels.shape == (64, 32, 3)
    assert pixels[4, 16, 0] > 150 > pixels[60, 16, 0]


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN)]
    pixels = decode(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), "moving")
    assert pixels[0, 0].tolist() == list(RED)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "GIF"])
def test_a_truncated_picture_is_refused(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    data = encoded(noise, kind)
    with pytest.raises(InputError, match=r"cut\.img.*(broken or cut short|no picture)"):
        decode(data[: len(data) // 2], "cut.img")


@pytest.mark.parametrize(
    ("data", "said", "hint"),
    [
        (b"just text", "is no picture", "PNG or JPEG"),
        (b"<!DOCTYPE html><html>404", "is no picture", "web page"),
        (b"\x89PNG\r\n\x1a\n", "no picture", ""),
        (b"\xff\xd8\xff", "no picture|cut short", ""),
        (b"%PDF-1.4", "no picture", ""),
    ],
)
def test_no_picture_is_refused(data: bytes, said: str, hint: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        decode(data, "odd.jpg")
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3


def test_only_known_formats_are_tried() -> None:
    with pytest.raises(InputError, match="is no picture"):
        decode(encoded(two_halves(), "TIFF"), "scan.tif")


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with pytest.raises(InputError, match="million pixels"):
        decode(encoded(two_halves(), "PNG"), "huge.png")


def test_pillows_own_limit_is_told_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match="million pixels"):
        decode(encoded(two_halves(), "PNG"), "huge.png")


def test_missing_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    with pytest.raises(InputError, match=r"empty\.png' is empty"):
        read_bytes(tmp_path / "empty.png")
    with pytest.raises(InputError, match="No such file"):
        read_bytes(tmp_path / "none.png")


def test_a_graph_that_decodes_wants_a_whole_jpeg() -> None:
    whole = encoded(two_halves(), "JPEG")
    check_jpeg(whole, "a.jpg")
    with pytest.raises(InputError, match="cut short"):
        check_jpeg(whole[: len(whole) // 2], "cut.jpg")
    with pytest.raises(InputError, match="not a JPEG"):
        check_jpeg(encoded(two_halves(), "PNG"), "b.png")


def test_a_folder_that_can_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(InputError, match="can not be read: permission denied"):
        find_pictures([tmp_path])


def test_folders_are_walked_in_order(tmp_path: Path) -> None:
    names = ["b/2.PNG", "b/1.jpeg", "a.webp", "notes.txt", "b/.DS_Store"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_pictures([tmp_path, tmp_path / "a.webp"])
    assert [path.relative_to(tmp_path).as_posix() for path in found.paths] == [
        "a.webp",
        "b/1.jpeg",
        "b/2.PNG",
        "a.webp",
    ]
    assert found.skipped == 2


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no pictures"):
        find_pictures([tmp_path])


def test_a_missing_picture_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "panda.jpg").touch()
    with pytest.raises(InputError, match="does not exist") as caught:
        find_pictures([tmp_path / "pand.jpg"])
    assert "panda.jpg" in caught.value.hint


@pytest.mark.parametrize("address", ["http://example.org/a.jpg", "https://example.org/a.jpg"])
def test_web_addresses_are_off(address: str) -> None:
    with pytest.raises(UsageError, match="downloading pictures is off"):
        find_pictures([address])
