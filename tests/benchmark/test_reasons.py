"""Reasons why an int8 model is not faster, from scripted profiles and files of control groups."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measurements import MACHINE, make_model_profile

from quantkit.benchmark.host.cgroup import cpu_quota, throttled_seconds
from quantkit.benchmark.host.machine import Machine, usable_threads
from quantkit.benchmark.profiling import ModelProfile, Profile, ProfileRow
from quantkit.benchmark.profiling.layer_work import LayerWork, Peaks
from quantkit.benchmark.profiling.reasons import FileRemedies, find_reasons
from quantkit.benchmark.results.reason import Reason
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, TRANSFER, RuntimeVersion

VNNI = replace(MACHINE, isa=("avx2", "avx512_vnni"))
REMEDIES = FileRemedies("float.pb@tensorflow", "int8.pb@tensorflow")
# Layers in the order of the original graph; conv_1 and relu_1 are a float island.
ROWS = (
    ProfileRow("conv", "Conv2D", INT8, 0.030, work=LayerWork(1000, 100)),
    ProfileRow("conv", "Conv2D", CONVERSION, 0.002),
    ProfileRow("conv_1", "Conv2D", FLOAT, 0.020, work=LayerWork(1000, 100)),
    ProfileRow("relu_1", "Relu", FLOAT, 0.001, work=LayerWork(0, 10)),
    ProfileRow("conv_2", "Conv2D", CONVERSION, 0.003),
    ProfileRow("conv_2", "Conv2D", INT8, 0.030, work=LayerWork(1000, 100)),
    ProfileRow("pool", "MaxPool", INT8, 0.004, work=LayerWork(0, 10)),
    ProfileRow("softmax", "Softmax", FLOAT, 0.001, work=LayerWork(0, 10)),
)


def make_profile(*rows: ProfileRow, **facts: Any) -> ModelProfile:
    return replace(make_model_profile({}), rows=rows, untraced_seconds=0.1, **facts)


def reasons_of(model: ModelProfile, machine: Machine = VNNI, peaks: Peaks | None = None) -> dict[str, Reason]:
    profile = Profile((model,), {} if peaks is None else {model.runtime.name: peaks})
    return {reason.kind: reason for reason in find_reasons(profile, machine, REMEDIES)}


def test_the_float_island_and_its_cost_are_named() -> None:
    reasons = reasons_of(make_profile(*ROWS))
    assert list(reasons) == ["float fallbacks", "boundaries"]
    island = reasons["float fallbacks"]
    assert island.seconds == pytest.approx(0.026)
    assert island.text == (
        "21.00 of 100.0 ms in 1 float island, above all conv_1, relu_1, and 5.000 ms in the conversions around it"
    )
    assert island.command == ("quantkit quantize float.pb -o OUTPUT.onnx --calibration DATA --save-plan plan.json")
    assert reasons["boundaries"].seconds == pytest.approx(0.005)


def test_float_model_has_no_island() -> None:
    assert reasons_of(make_profile(ROWS[2], ROWS[3])) == {}


@pytest.mark.parametrize(
    ("on_gpu", "command"),
    [
        (True, "quantkit benchmark float.pb@tensorrt int8.pb@tensorrt --device gpu"),
        (False, "quantkit quantize float.pb -o OUTPUT.onnx --calibration DATA --target onnx"),
    ],
)
def test_runtime_without_int8_kernels_is_named(on_gpu: bool, command: str) -> None:
    rows = [replace(row, precision=FLOAT) if row.precision == INT8 else row for row in ROWS]
    model = make_profile(*rows, runtime=RuntimeVersion("onnxruntime", "1.31", "device"), on_gpu=on_gpu)
    reason = reasons_of(model)["no int8 kernels"]
    assert reason.seconds == pytest.approx(0.091)
    assert reason.text.endswith("onnxruntime on device has no int8 kernel for a layer of this file")
    assert reason.command.startswith(command)


def test_reference_kernels_rank_first_and_lead_to_another_target() -> None:
    slow = replace(ROWS[0], seconds=0.9, reference_seconds=0.9)
    reasons = list(reasons_of(make_profile(slow, *ROWS[1:])).values())
    assert reasons[0].kind == "reference kernels"
    assert reasons[0].text == "900.0 of 100.0 ms in kernels without SIMD or oneDNN, above all conv"
    assert reasons[0].command.endswith("--target onnx")
    assert [reason.seconds for reason in reasons] == sorted((reason.seconds for reason in reasons), reverse=True)


def test_processor_without_int8_dot_products() -> None:
    reason = reasons_of(make_profile(*ROWS), MACHINE)["no VNNI"]
    assert reason.seconds == pytest.approx(0.064)
    assert "64.00 of 100.0 ms in int8 layers on a processor without int8 dot products (VNNI)" in reason.text
    # Processors without them have no bfloat16 either: the search also measures the float model in all runtimes.
    assert reason.command == "quantkit optimize float.pb -o OUTPUT --data DATA"
    assert "no VNNI" not in reasons_of(make_profile(*ROWS), replace(MACHINE, isa=()))


def test_memory_bound_layers_and_transfers() -> None:
    copies = ProfileRow("x", "Placeholder", TRANSFER, 0.01, ops=("MemcpyFromHost",))
    reasons = reasons_of(make_profile(*ROWS, copies), peaks=Peaks(1e12, 1e12, 2500.0))
    # All layers with 100 bytes in less than 57 ms.
    assert reasons["memory-bound"].seconds == pytest.approx(0.086)
    assert reasons["transfers"].text == "10.00 of 100.0 ms in copies between devices, above all x"


def test_oversubscription_is_measured() -> None:
    model = make_profile(*ROWS, threads=2, usable_threads=1, oversubscription_seconds=0.04)
    reason = reasons_of(model)["oversubscription"]
    assert reason.text == "2 threads on 1 CPU cost 40.00 ms of 100.0 ms"
    assert reason.command.endswith("float.pb@tensorflow int8.pb@tensorflow --intra-op 1 --inter-op 1")
    assert reasons_of(replace(model, usable_threads=2)).keys() == {"float fallbacks", "boundaries"}


def test_quota_of_a_container() -> None:
    model = make_profile(*ROWS, usable_threads=1, throttled_fraction=0.3)
    reason = reasons_of(model, replace(VNNI, cpu_quota=1.5))["cpu quota"]
    assert reason.seconds == pytest.approx(0.03)
    assert reason.text == "the container limits the process to 1.5 CPUs of 2, and stopped it for 30 % of the time"
    assert "cpu quota" not in reasons_of(model, replace(VNNI, cpu_quota=2.0))


def write_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".", 1)).write_text(text)


def test_quota_of_version_2_is_the_smallest_of_the_parents(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs/one\n")
    group = tmp_path / "sys/fs/cgroup"
    write_group(group / "jobs", cpu__max="150000 100000\n", cpu__stat="usage_usec 7\nthrottled_usec 2500000\n")
    write_group(group / "jobs/one", cpu__max="max 100000\n", cpu__stat="usage_usec 7\nthrottled_usec 0\n")
    assert cpu_quota(tmp_path) == 1.5
    assert throttled_seconds(tmp_path) == 2.5
    (group / "jobs/one/cpu.max").write_text("50000 100000")
    assert cpu_quota(tmp_path) == 0.5


def test_quota_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("2:cpu,cpuacct:/one\n1:name=systemd:/\n0::/\n")
    group = tmp_path / "sys/fs/cgroup/cpu,cpuacct/one"
    files = {"cpu__cfs_quota_us": "200000\n", "cpu__cfs_period_us": "100000\n", "cpu__stat": "throttled_time 4000000"}
    write_group(group, **files)
    assert cpu_quota(tmp_path) == 2.0
    assert throttled_seconds(tmp_path) == 0.004
    (group / "cpu.cfs_quota_us").write_text("-1")
    assert cpu_quota(tmp_path) is None


def test_host_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert throttled_seconds(tmp_path) == 0.0


@pytest.mark.parametrize(
    ("facts", "cpus", "threads"),
    [({}, (), 2), ({"affinity": (0,)}, (), 1), ({}, (0,), 1), ({"cpu_quota": 1.5}, (), 1), ({"cpu_quota": 0.5}, (), 1)],
)
def test_usable_threads(facts: dict[str, Any], cpus: tuple[int, ...], threads: int) -> None:
    assert usable_threads(replace(MACHINE, **facts), cpus) == threads
