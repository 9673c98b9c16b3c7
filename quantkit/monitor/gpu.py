"""Gauges of NVIDIA GPUs, read with NVML.

NVML's utilization is the fraction of the last period in which any kernel ran: one tiny kernel after another reads
100 %. GPM (Hopper and later) counts the busy multiprocessors, so both values are shown side by side.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from quantkit.distribution import install_command
from quantkit.monitor.sample import GpuSample

# Bytes per second of one PCIe lane by generation, without protocol overhead.
LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Fields of a sample: name of the metric, and the number of its values that is 1 in the field.
_GPM_METRICS = {
    "sm_utilization": ("NVML_GPM_METRIC_SM_UTIL", 100),
    "sm_occupancy": ("NVML_GPM_METRIC_SM_OCCUPANCY", 100),
    "dram_utilization": ("NVML_GPM_METRIC_DRAM_BW_UTIL", 100),
    "pcie_sent": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", 2**-20),
    "pcie_received": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", 2**-20),
}


class GpuReader:
    """Reader of all GPUs of the host.

    Args:
        nvml: module with the interface of ``pynvml``; None if it is imported.

    Attributes:
        missing: reason for no GPU, or an empty string.
    """

    def __init__(self, nvml: Any = None) -> None:
        self.missing = ""
        self._devices: list[_Device] = []
        try:
            self._nvml = nvml or import_module("pynvml")
        except ImportError:
            self.missing = f"nvidia-ml-py is not installed: {install_command('monitor')}"
            return
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            self.missing = f"no NVIDIA driver: {str(error) or type(error).__name__}"
            return
        for index in range(self._nvml.nvmlDeviceGetCount()):
            self._devices.append(_Device(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index)))
        if not self._devices:
            self.missing = "the NVIDIA driver lists no GPU"

    def read(self) -> tuple[GpuSample, ...]:
        """Return the present gauges of each GPU."""
        return tuple(device.read() for device in self._devices)

    def close(self) -> None:
        """Release the GPM buffers and NVML."""
        for device in self._devices:
            device.close()
        if not self.missing:
            self._nvml.nvmlShutdown()


class _Device:
    """One GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._name = _text(self._query(nvml.nvmlDeviceGetName)) or "NVIDIA GPU"
        generation = self._query(nvml.nvmlDeviceGetMaxPcieLinkGeneration)
        width = self._query(nvml.nvmlDeviceGetMaxPcieLinkWidth)
        self._pcie_limit = LANE_BYTES[generation] * width if generation in LANE_BYTES and width else None
        self._gpm: list[Any] = []
        if self._supports_gpm():
            self._gpm = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            self._query(nvml.nvmlGpmSampleGet, self._gpm[0])

    def _supports_gpm(self) -> bool:
        support = self._query(self._nvml.nvmlGpmQueryDeviceSupport)
        return bool(support is not None and support.isSupportedDevice)

    def _query(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a value of the GPU; None if the GPU does not support it."""
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def read(self) -> GpuSample:
        nvml = self._nvml
        rates = self._query(nvml.nvmlDeviceGetUtilizationRates)
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo)
        power = self._query(nvml.nvmlDeviceGetPowerUsage)
        values: dict[str, Any] = self._read_gpm() or {
            "pcie_sent": self._pcie_rate(nvml.NVML_PCIE_UTIL_TX_BYTES),
            "pcie_received": self._pcie_rate(nvml.NVML_PCIE_UTIL_RX_BYTES),
        }
        return GpuSample(
            name=self._name,
            utilization=None if rates is None else rates.gpu / 100,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            pcie_limit=self._pcie_limit,
            clock=self._query(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            power=None if power is None else power / 1000,
            **values,
        )

    def _pcie_rate(self, counter: int) -> float | None:
        kilobytes = self._query(self._nvml.nvmlDeviceGetPcieThroughput, counter)
        return None if kilobytes is None else kilobytes * 1e3

    def _read_gpm(self) -> dict[str, float]:
        """Return the GPM metrics since the previous call; empty if the GPU does not report them."""
        nvml = self._nvml
        if not self._gpm or self._query(nvml.nvmlGpmSampleGet, self._gpm[1]) is None:
            return {}
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        request.sample1, request.sample2 = self._gpm
        for index, (name, _) in enumerate(_GPM_METRICS.values()):
            request.metrics[index].metricId = getattr(nvml, name)
        self._gpm.reverse()
        try:
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError:
            return {}
        return {
            key: request.metrics[index].value / scale
            for index, (key, (_, scale)) in enumerate(_GPM_METRICS.items())
            if request.metrics[index].nvmlReturn == 0
        }

    def close(self) -> None:
        for sample in self._gpm:
            self._nvml.nvmlGpmSampleFree(sample)


def _text(value: Any) -> str:
    """Return a name as text: older versions of the package return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value or "")
