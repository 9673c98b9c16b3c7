from pathlib import Path

import pytest

from quantkit.runtimes.openmp import openmp_libraries

LINE = "7f00-7f01 r-xp 00000000 08:01 123                        {}\n"


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    paths = [
        "/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0",
        "/opt/venv/lib/libiomp5.so",
        "/opt/venv/lib/python3.11/site-packages/scikit_learn.libs/libomp-e985bcbb.so.5",
        "/opt/venv/lib/python3.11/site-packages/tensorflow/libtensorflow_cc.so.2",
        "/opt/lib/libcompgomp.so",
    ]
    file = tmp_path / "maps"
    file.write_text("".join(LINE.format(path) for path in [*paths, paths[0], ""]))
    return file


def test_libraries_of_the_system_are_listed(maps: Path) -> None:
    assert openmp_libraries("tensorflow", maps) == ("libgomp", "libiomp5")


def test_libraries_of_the_package_are_listed(maps: Path) -> None:
    assert openmp_libraries("scikit_learn", maps) == ("libgomp", "libiomp5", "libomp")


def test_list_is_empty_without_a_memory_map(tmp_path: Path) -> None:
    assert openmp_libraries("tensorflow", tmp_path / "missing") == ()
