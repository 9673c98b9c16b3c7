"""Gauges of a scripted GPU."""

import pytest
from monitored_jobs import ScriptedNvml

from quantkit.distribution import install_command
from quantkit.monitor.gpu import GpuReader


def test_both_utilizations_are_read() -> None:
    nvml = ScriptedNvml({"utilization": 0.98, "sm": 0.12, "dram": 0.4, "pcie": 2e9})
    reader = GpuReader(nvml)
    (gpu,) = reader.read()
    assert (gpu.name, gpu.utilization, gpu.sm_utilization, gpu.dram_utilization) == ("Scripted GPU", 0.98, 0.12, 0.4)
    assert gpu.sm_occupancy == 0.06
    assert gpu.pcie_received == pytest.approx(2e9)
    assert gpu.pcie_limit == pytest.approx(31.504e9)
    assert (gpu.clock, gpu.power, gpu.memory_used, gpu.memory_total) == (1500, 71.0, 1 << 30, 8 << 30)
    reader.read()
    reader.close()
    assert (nvml.open_samples, nvml.is_open) == (0, False)


def test_missing_metrics_have_no_value() -> None:
    (gpu,) = GpuReader(ScriptedNvml({"utilization": 0.5, "pcie": 1e9})).read()
    assert (gpu.utilization, gpu.sm_utilization, gpu.dram_utilization) == (0.5, None, None)
    assert gpu.pcie_sent == pytest.approx(1e9)
    (gpu,) = GpuReader(ScriptedNvml({"sm": 0.5, "dram": None})).read()
    assert (gpu.utilization, gpu.sm_utilization, gpu.dram_utilization) == (None, 0.5, None)


def test_missing_driver_is_a_reason() -> None:
    class NoDriver(ScriptedNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("NVML Shared Library Not Found")

    reader = GpuReader(NoDriver({}))
    assert reader.missing == "no NVIDIA driver: NVML Shared Library Not Found"
    assert reader.read() == ()
    reader.close()


def test_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert GpuReader().missing == f"nvidia-ml-py is not installed: {install_command('monitor')}"
