"""Threads of a job from Linux's ``/proc``: activities at each tick, counters at each sample.

A tick reads the state of the threads that use CPU time, and of the main threads. A blocked thread is in the kernel
function that ``wchan`` names, so the name shows the cause: ``futex`` is a lock, ``pipe_read`` a pipe.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantkit.monitor.sample import (
    CHILD,
    DISK,
    EVENTS,
    LOCK,
    NETWORK,
    OTHER,
    PIPE,
    RUNNING,
    SLEEP,
    ThreadSample,
)

# Parts of the names of kernel functions, and the activity of a thread that is blocked in them.
KERNEL_FUNCTIONS = (
    ("futex", LOCK),
    ("nanosleep", SLEEP),
    ("pause", SLEEP),
    ("sigtimedwait", SLEEP),
    ("pipe", PIPE),
    ("wait_for_partner", PIPE),
    ("do_wait", CHILD),
    ("poll", EVENTS),
    ("select", EVENTS),
    ("wait_woken", NETWORK),
    ("sk_wait", NETWORK),
    ("skb_wait", NETWORK),
    ("unix_stream", NETWORK),
    ("inet_csk", NETWORK),
    ("rpc_wait", NETWORK),
    ("folio", DISK),
    ("wait_on_page", DISK),
    ("io_schedule", DISK),
    ("fuse", DISK),
    ("flock", LOCK),
    ("fcntl", LOCK),
)
# Activities in which a thread usually depends on another thread or process of the job.
INTERNAL = frozenset({LOCK, CHILD, PIPE, EVENTS, OTHER})
# Threads without a context switch since the last sample are read only at samples, beyond this number.
MAX_IDLE_THREADS = 16
MAX_THREADS = 512
_MISSING = (FileNotFoundError, ProcessLookupError, PermissionError)


def activity_of(state: str, function: str) -> str:
    """Return the activity of a thread.

    Args:
        state: letter of the state in ``/proc/PID/stat``.
        function: kernel function in which the thread is blocked; ``0`` or empty if unknown.

    >>> activity_of("S", "futex_do_wait"), activity_of("D", "0"), activity_of("R", "0")
    ('lock', 'disk', 'running')
    """
    if state == "R":
        return RUNNING
    for part, activity in KERNEL_FUNCTIONS:
        if part in function:
            return activity
    return DISK if state == "D" else OTHER


@dataclass
class _Thread:
    """Last values of a thread."""

    pid: int
    tid: int
    path: str
    name: str = ""
    cpu_ticks: tuple[int, int] = (0, 0)
    faults: tuple[int, int] = (0, 0)
    switches: tuple[int, int] = (0, 0)
    is_active: bool = True
    activity: str = OTHER
    activities: Counter[str] = field(default_factory=Counter)


class ProcessReader:
    """Reader of the processes of a job: the first process and its descendants.

    Args:
        pid: first process.
        root: folder ``/proc``.
        ticks_per_second: resolution of CPU times; None if that of this host.
    """

    def __init__(self, pid: int, root: Path = Path("/proc"), ticks_per_second: int | None = None) -> None:
        self.pid = pid
        self._root = str(root)
        self._ticks_per_second = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._threads: dict[int, _Thread] = {}
        self._pids = [pid]
        self.activities: Counter[str] = Counter()
        self.find_threads()

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of the job that were alive at the last sample."""
        return tuple(self._pids)

    def find_threads(self) -> None:
        """Update the processes and the threads of the job."""
        pids: dict[int, None] = {}
        pending = list(self._pids)
        while pending:
            pid = pending.pop()
            tids = self._tids(pid)
            if pid in pids or not tids:
                continue
            pids[pid] = None
            for tid in tids:
                if tid not in self._threads and len(self._threads) < MAX_THREADS:
                    self._threads[tid] = self._make_thread(pid, tid)
                pending.extend(map(int, _read(f"{self._root}/{pid}/task/{tid}/children").split()))
        self._pids = sorted(pids)
        alive = {tid for pid in pids for tid in self._tids(pid)}
        self._threads = {tid: thread for tid, thread in self._threads.items() if tid in alive}

    def _make_thread(self, pid: int, tid: int) -> _Thread:
        return _Thread(pid, tid, f"{self._root}/{pid}/task/{tid}")

    def _tids(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"{self._root}/{pid}/task")]
        except (*_MISSING, NotADirectoryError):
            return []

    def tick(self) -> None:
        """Count the present activity of each thread, and that of the whole job.

        The job runs if one of its threads runs. Else its activity is disk access if a thread accesses the disk, and
        otherwise that of the first thread that is blocked by something outside the job.
        """
        idle = MAX_IDLE_THREADS
        for thread in self._threads.values():
            idle -= not thread.is_active
            if thread.is_active or thread.tid == thread.pid or idle >= 0:
                self._read_state(thread)
        if all(thread.activity != RUNNING for thread in self._threads.values()):
            self._read_new_threads()
        for thread in self._threads.values():
            thread.activities[thread.activity] += 1
        if self._threads:
            self.activities[self._job_activity()] += 1

    def _read_new_threads(self) -> None:
        """Read the threads that started since the last sample: a job that seems blocked may run in one of them."""
        for pid in self._pids:
            for tid in self._tids(pid):
                if tid not in self._threads and len(self._threads) < MAX_THREADS:
                    self._threads[tid] = thread = self._make_thread(pid, tid)
                    self._read_state(thread)

    def _job_activity(self) -> str:
        mains = [self._threads[pid] for pid in self._pids if pid in self._threads]
        awake = [thread for thread in self._threads.values() if thread.is_active and thread.tid != thread.pid]
        activities = [thread.activity for thread in (*mains, *awake)]
        for activity in (RUNNING, DISK):
            if activity in activities:
                return activity
        external = [activity for activity in activities if activity not in INTERNAL]
        return (external or activities or [OTHER])[0]

    def _read_state(self, thread: _Thread) -> None:
        text = _read(f"{thread.path}/stat")
        name_end = text.rfind(")")
        if name_end < 0:
            thread.activity = OTHER
            return
        fields = text[name_end + 2 :].split()
        thread.name = text[text.find("(") + 1 : name_end]
        thread.faults = int(fields[7]), int(fields[9])
        thread.cpu_ticks = int(fields[11]), int(fields[12])
        state = fields[0]
        thread.activity = activity_of(state, "" if state == "R" else _read(f"{thread.path}/wchan"))

    def sample(self) -> tuple[ThreadSample, ...]:
        """Return the counters of all threads, and clear the counted activities."""
        samples = []
        for thread in self._threads.values():
            self._read_state(thread)
            samples.append(self._sample_of(thread))
            thread.activities = Counter()
        self.activities = Counter()
        return tuple(samples)

    def _sample_of(self, thread: _Thread) -> ThreadSample:
        user, system = (ticks / self._ticks_per_second for ticks in thread.cpu_ticks)
        schedule = _read(f"{thread.path}/schedstat").split()
        fields = _fields(_read(f"{thread.path}/status"))
        switches = fields.get("voluntary_ctxt_switches", 0), fields.get("nonvoluntary_ctxt_switches", 0)
        thread.is_active = switches != thread.switches or thread.activity in (RUNNING, DISK)
        thread.switches = switches
        return ThreadSample(
            pid=thread.pid,
            tid=thread.tid,
            name=thread.name,
            user=user,
            system=system,
            queued=int(schedule[1]) / 1e9 if len(schedule) == 3 else None,
            minor_faults=thread.faults[0],
            major_faults=thread.faults[1],
            voluntary=switches[0],
            involuntary=switches[1],
            activities=dict(thread.activities),
        )

    def memory(self) -> int:
        """Return the resident memory of the job in bytes; shared pages count once per process."""
        return sum(_fields(_read(f"{self._root}/{pid}/status")).get("VmRSS", 0) * 1024 for pid in self._pids)

    def disk(self) -> tuple[int, int]:
        """Return the bytes that the living processes read from the disk and wrote to it."""
        fields = [_fields(_read(f"{self._root}/{pid}/io")) for pid in self._pids]
        return (
            sum(each.get("read_bytes", 0) for each in fields),
            sum(each.get("write_bytes", 0) for each in fields),
        )

    def uses_gpu(self) -> bool:
        """Return True if a process of the job has opened a device of the NVIDIA driver."""
        for pid in self._pids:
            folder = f"{self._root}/{pid}/fd"
            try:
                targets = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
            except OSError:
                continue
            if any(target.startswith("/dev/nvidia") for target in targets):
                return True
        return False

    def throttled_seconds(self, groups: Path = Path("/sys/fs/cgroup")) -> float | None:
        """Return the seconds in which the CPU quota was exhausted; None if the control group does not report it."""
        for line in _read(f"{self._root}/{self.pid}/cgroup").splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and "cpu" not in controllers.split(","):
                continue
            folder = groups / controllers if controllers else groups
            for base in (folder / path.lstrip("/"), folder):
                fields = _fields(_read(str(base / "cpu.stat")))
                if "throttled_usec" in fields:
                    return fields["throttled_usec"] / 1e6
                if "throttled_time" in fields:
                    return fields["throttled_time"] / 1e9
        return None


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 14).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _fields(text: str) -> Mapping[str, int]:
    """Return the integers of a file with one name and one value in each line."""
    fields = {}
    for line in text.splitlines():
        name, *values = line.replace(":", " ").split() or [""]
        if values and values[0].isdigit():
            fields[name] = int(values[0])
    return fields
