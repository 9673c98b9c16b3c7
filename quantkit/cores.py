"""Cores of this process, the affinity of its threads, and its end with its parent."""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from quantkit.errors import UnavailableError

# Names of instruction sets in /proc/cpuinfo (x86, Arm).
_CPU_FLAGS = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
HAS_AFFINITY = hasattr(os, "sched_getaffinity")
_THREADS = Path("/proc/self/task")
_SET_PARENT_DEATH_SIGNAL = 1


def available_cpus() -> tuple[int, ...]:
    """Return the hardware threads that this process may use; empty if the system has no affinity."""
    return tuple(sorted(os.sched_getaffinity(0))) if HAS_AFFINITY else ()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(available_cpus()) or os.cpu_count() or 1


def available_physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the number of cores that this process may use, where hardware threads of one core count once.

    Args:
        root: folder with the topology of each CPU.
    """
    cores = set()
    for cpu in available_cpus():
        file = root / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.add(file.read_text() if file.exists() else str(cpu))
    return len(cores) or os.cpu_count() or 1


@cache
def cpu_flags() -> frozenset[str]:
    """Return the names of the processor's features, such as ``avx2``; empty if the system does not list them."""
    try:
        flags = _CPU_FLAGS.search(Path("/proc/cpuinfo").read_text())
    except OSError:
        return frozenset()
    return frozenset(flags[1].split()) if flags else frozenset()


def is_restricted() -> bool:
    """Return True if this process may not use all CPUs of the machine."""
    return available_cores() < (os.cpu_count() or 1)


@contextmanager
def restricted_threads() -> Iterator[None]:
    """Keep the threads that start in the block on the CPUs of this process; see `restrict_threads`."""
    before, cpus = _threads(), frozenset(available_cpus())
    yield
    restrict_threads(cpus, _threads() - before)


def restrict_threads(cpus: Set[int], threads: Set[int] | None = None) -> None:
    """Move threads to the given CPUs, and check that they are there: some runtimes pin the threads of their pools.

    Args:
        cpus: hardware threads; all or none of the machine for no restriction.
        threads: threads of this process (default: all).

    Raises:
        UnavailableError: a thread stays on another CPU.
    """
    if not cpus or len(cpus) >= (os.cpu_count() or 1):
        return
    for thread in _threads() if threads is None else threads:
        with suppress(ProcessLookupError):  # the thread ended
            if not os.sched_getaffinity(thread) <= cpus:
                os.sched_setaffinity(thread, cpus)
            if not (others := os.sched_getaffinity(thread)) <= cpus:
                raise UnavailableError(
                    f"a thread of the runtime runs on the CPUs {', '.join(map(str, sorted(others)))}, and this process "
                    f"is limited to {', '.join(map(str, sorted(cpus)))}",
                    hint="pass --intra-op with the number of these CPUs, or omit --cpus",
                )


def _threads() -> frozenset[int]:
    """Return the identifiers of the threads of this process; empty if the system does not list them."""
    return frozenset(int(path.name) for path in _THREADS.iterdir()) if _THREADS.exists() else frozenset()


def end_with_parent(name: str = "SIGKILL") -> None:
    """Ask Linux to send this process a signal when its parent ends; SIGKILL ends it even while it is halted."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, getattr(signal, name))
