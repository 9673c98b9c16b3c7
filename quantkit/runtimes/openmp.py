"""Whether an engine has an OpenMP runtime, to heed KMP_AFFINITY, KMP_BLOCKTIME or OMP_NUM_THREADS.

The libraries loaded into the process tell. TensorFlow's official wheels compute on a thread pool of their
own, and none of these variables changes anything there; an OpenMP runtime that another Python package
brought along (scikit-learn has one) serves that package only.
"""

import re
from pathlib import Path

_RUNTIME = re.compile(r"^(?:.*\s)?(?P<folder>/\S*)/lib(?P<name>iomp5|gomp|omp)(?:-[0-9a-f]+)?\.so[.\d]*$", re.MULTILINE)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
# libgomp reads the OMP_ variables only; the other two read those of Intel's runtime as well.
READS_KMP = frozenset({"libiomp5", "libomp"})


def openmp_libraries(module: str, maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """The OpenMP runtimes that an engine can use: ``libiomp5``, ``libgomp``, ``libomp``.

    Call it after the engine is loaded.

    Args:
        module: the engine's Python package: ``tensorflow``.
        maps: the process's memory map, as Linux writes it.

    Returns:
        Sorted names of those that the package or the system brought; none where there is no memory map.
    """
    try:
        text = maps.read_text()
    except OSError:
        return ()
    return tuple(
        sorted({f"lib{found['name']}" for found in _RUNTIME.finditer(text) if _serves(found["folder"], module)})
    )


def _serves(folder: str, module: str) -> bool:
    """Whether a library in that folder is the engine's own, or the system's."""
    package = _PACKAGE.search(folder)
    return package is None or package[1].startswith(module)
