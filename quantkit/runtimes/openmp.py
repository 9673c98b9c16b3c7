"""OpenMP libraries in a process: KMP_AFFINITY, KMP_BLOCKTIME and OMP_NUM_THREADS have an effect on them only.

The official TensorFlow wheels use a thread pool of their own, on which these variables have no effect. An OpenMP
library that another Python package loads (scikit-learn does) serves that package only.
"""

import re
from pathlib import Path

_LIBRARY = re.compile(r"^(?:.*\s)?(?P<folder>/\S*)/lib(?P<name>iomp5|gomp|omp)(?:-[0-9a-f]+)?\.so[.\d]*$", re.MULTILINE)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
# libgomp reads only the OMP_ variables; the other two also read those of Intel's library.
READS_KMP = frozenset({"libiomp5", "libomp"})


def openmp_libraries(package: str, maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Return the loaded OpenMP libraries that a runtime can use: ``libiomp5``, ``libgomp``, ``libomp``.

    Call it after the runtime is loaded.

    Args:
        package: Python package of the runtime: ``tensorflow``.
        maps: memory map of the process in Linux' format.

    Returns:
        Sorted names of the libraries that belong to the package or to the system; empty without a memory map.
    """
    try:
        text = maps.read_text()
    except OSError:
        return ()
    names = {f"lib{match['name']}" for match in _LIBRARY.finditer(text) if _belongs_to(match["folder"], package)}
    return tuple(sorted(names))


def _belongs_to(folder: str, package: str) -> bool:
    """Return True for a folder of the package itself or of the system."""
    owner = _PACKAGE.search(folder)
    return owner is None or (bool(package) and owner[1].startswith(package))
