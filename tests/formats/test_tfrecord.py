"""TFRecord files of a test writer and of TensorFlow."""

import gzip
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import example, write_records

from quantkit.errors import InputError
from quantkit.formats.tfrecord import (
    compression_of,
    crc32c,
    find_damaged_record,
    is_tfrecord,
    masked_checksum,
    parse_example,
    read_record,
    record_offsets,
)


@given(st.binary(max_size=300))
def test_checksum_equals_bitwise_computation(data: bytes) -> None:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(data) == register ^ 0xFFFFFFFF


def test_known_checksums() -> None:
    """Compare with the values of RFC 3720, B.4."""
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_records_are_read(tmp_path: Path) -> None:
    path = write_records(tmp_path / "train-00000-of-00001", [b"first", b"", b"third" * 1000])
    assert is_tfrecord(path)
    offsets = record_offsets(path)
    assert [read_record(path, offset) for offset in offsets] == [b"first", b"", b"third" * 1000]


def test_other_files_are_not_tfrecord_files(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("images/a.png 7\n")
    (tmp_path / "short").write_bytes(b"\x00")
    assert not is_tfrecord(tmp_path / "list.txt")
    assert not is_tfrecord(tmp_path / "short")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-3], "truncated in record 1"),
        (lambda data: data[:-30], "truncated"),
        (lambda data: b"\x01" + data[1:], "damaged"),
        (lambda data: b"\x1f\x8b" + data, "compressed"),
        (lambda data: b"", "empty"),
    ],
)
def test_damaged_file_is_rejected_with_reason(tmp_path: Path, change: "object", message: str) -> None:
    path = write_records(tmp_path / "a.tfrecord", [b"first record", b"second record"])
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        record_offsets(path)


def test_damaged_record_is_rejected_with_its_offset(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.tfrecord", [b"first record", b"second record"])
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    first, second = record_offsets(path)
    assert read_record(path, first) == b"first record"
    with pytest.raises(InputError, match=f"the record at byte {second} of .* is damaged"):
        read_record(path, second)


def test_example_is_parsed(tmp_path: Path) -> None:
    features = parse_example(
        example(name=[b"x", b"y"], sizes=np.array([3, -1], np.int64), values=np.array([0.5, 2], np.float32)), "one"
    )
    assert features["name"] == [b"x", b"y"]
    assert np.asarray(features["sizes"]).tolist() == [3, -1]
    assert np.asarray(features["values"]).tolist() == [0.5, 2]
    with pytest.raises(InputError, match=r"one is not a tf\.train\.Example"):
        parse_example(b"\xff\xff\xff", "one")


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "GZIP": gzip.compress,
    "GZIP, two members": lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]),
    "GZIP, padded": lambda data: gzip.compress(data) + bytes(100),
    "ZLIB": zlib.compress,
    "ZLIB, level 9": lambda data: zlib.compress(data, 9),
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_records_are_verified(name: str, tmp_path: Path) -> None:
    path = write_records(tmp_path / "train-00000", [b"first", b"", b"third" * 1_000_000, b"last" * 10])
    plain, compress = path.read_bytes(), COMPRESSIONS[name]
    path.write_bytes(compress(plain))
    assert is_tfrecord(path)
    assert compression_of(path) == name[:4]
    assert find_damaged_record(path) == ""
    assert [len(read_record(path, offset)) for offset in record_offsets(path)] == [5, 0, 5_000_000, 40]
    damaged = bytearray(plain)
    damaged[-10] ^= 1
    path.write_bytes(compress(bytes(damaged)))
    assert find_damaged_record(path) == "record 3 at byte 5000053 has a wrong checksum"
    path.write_bytes(compress(plain[:-1]))
    with pytest.raises(InputError, match="is truncated at byte 5000108"):
        find_damaged_record(path)
    path.write_bytes(zlib.compress(plain)[:-20] if name.startswith("ZLIB") else gzip.compress(plain)[:-20])
    with pytest.raises(InputError, match="is truncated in record"):
        find_damaged_record(path)
    with pytest.raises(InputError, match="is truncated"):
        record_offsets(path)


def test_damaged_compressed_data_is_found(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a", [np.random.default_rng(0).bytes(5000)])
    data = bytearray(gzip.compress(path.read_bytes()))
    data[-8] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged compressed data: incorrect data check"):
        find_damaged_record(path)
    with pytest.raises(InputError, match="damaged compressed data: incorrect data check"):
        record_offsets(path)


def test_uncompressed_records_are_not_taken_for_compressed_ones(tmp_path: Path) -> None:
    for size in (0x1F8B, 0x8B1F, 0x0178, 0x9C78):
        path = write_records(tmp_path / "a", [bytes(size)])
        assert compression_of(path) == ""
        assert find_damaged_record(path) == ""


@pytest.mark.engine
def test_tensorflow_writes_equal_files(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    written = tf.train.Example(
        features=tf.train.Features(
            feature={
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"png"])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[7])),
                "values": tf.train.Feature(float_list=tf.train.FloatList(value=[0.25, -1])),
            }
        )
    ).SerializeToString()
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(written)
    assert (tmp_path / "a.tfrecord").read_bytes() == write_records(tmp_path / "b", [written]).read_bytes()
    (offset,) = record_offsets(tmp_path / "a.tfrecord")
    features = parse_example(read_record(tmp_path / "a.tfrecord", offset), "one")
    assert features["image/encoded"] == [b"png"]
    assert np.asarray(features["image/class/label"]).tolist() == [7]
    assert np.asarray(features["values"]).tolist() == [0.25, -1]


def test_checksum_is_masked() -> None:
    length = struct.pack("<Q", 5)
    rotated = ((crc32c(length) >> 15) | (crc32c(length) << 17)) & 0xFFFFFFFF
    assert masked_checksum(length) == (rotated + 0xA282EAD8) & 0xFFFFFFFF
