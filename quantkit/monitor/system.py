"""Counters of the host, read with psutil."""

from typing import Any

from quantkit.distribution import install_command
from quantkit.errors import UnavailableError
from quantkit.monitor.sample import CpuTimes, SystemSample


def import_psutil() -> Any:
    """Return the package psutil.

    Raises:
        UnavailableError: psutil is not installed.
    """
    try:
        import psutil
    except ImportError:
        raise UnavailableError("psutil is not installed", hint=install_command("monitor")) from None
    return psutil


def read_system(psutil: Any) -> SystemSample:
    """Return the present counters of the host.

    Args:
        psutil: package psutil.
    """
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters()  # None without a device
    return SystemSample(
        cores=tuple(map(_cpu_times, psutil.cpu_times(percpu=True))),
        memory_used=memory.total - memory.available,
        memory_available=memory.available,
        swapped_in=swap.sin,
        swapped_out=swap.sout,
        disk_read=disk.read_bytes if disk else 0,
        disk_written=disk.write_bytes if disk else 0,
        network_received=network.bytes_recv if network else 0,
        network_sent=network.bytes_sent if network else 0,
    )


def _cpu_times(times: Any) -> CpuTimes:
    """Return the times of a core; those that the system does not report are 0."""
    return CpuTimes(
        user=times.user + getattr(times, "nice", 0.0),
        system=times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0),
        idle=times.idle,
        iowait=getattr(times, "iowait", 0.0),
        steal=getattr(times, "steal", 0.0),
    )
