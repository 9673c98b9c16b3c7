import json
from dataclasses import replace
from pathlib import Path

import pytest
from measurements import MACHINE

from quantkit.benchmark.host.machine import Machine, this_machine, usable_cores

CPUINFO = """processor\t: 0
model name\t: A Processor
flags\t\t: fpu avx2 avx512_vnni amx_int8

processor\t: 1
model name\t: A Processor
flags\t\t: fpu avx2 avx512_vnni amx_int8
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cpu = "sys/devices/system/cpu/cpu0"
    write(
        tmp_path,
        {
            "proc/cpuinfo": CPUINFO,
            "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
            f"{cpu}/topology/thread_siblings_list": "0-1\n",
            "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "0-1\n",
            f"{cpu}/cache/index0/level": "1",
            f"{cpu}/cache/index0/type": "Data",
            f"{cpu}/cache/index0/size": "48K",
            f"{cpu}/cache/index1/level": "1",
            f"{cpu}/cache/index1/type": "Instruction",
            f"{cpu}/cache/index1/size": "32K",
            f"{cpu}/cpufreq/scaling_governor": "performance\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n",
            "sys/devices/system/node/node0/cpulist": "0\n",
            "sys/devices/system/node/node1/cpulist": "1\n",
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA H200\nIRQ: 1\n",
        },
    )
    return tmp_path


def test_facts_are_read_from_proc_and_sys(root: Path) -> None:
    machine = this_machine(root)
    assert machine.cpu == "A Processor"
    assert (machine.physical_cores, machine.logical_cores) == (1, 2)
    assert machine.isa == ("avx2", "avx512_vnni", "amx_int8")
    assert machine.memory_bytes == 16 << 30
    assert machine.cache_bytes == (("L1", 48 << 10),)
    assert machine.governor == "performance"
    assert machine.cpu_quota == 1.5
    assert machine.gpus == ("NVIDIA H200",)
    assert (machine.gpu_driver, machine.numa_nodes, machine.has_smt) == ("535.104.05", 2, True)


def test_control_groups_of_version_1_are_read(root: Path) -> None:
    (root / "sys/fs/cgroup/cpu.max").unlink()
    write(root, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"})
    assert this_machine(root).cpu_quota == 2.0


def test_fact_of_a_missing_file_is_unknown(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cpu
    assert machine.logical_cores >= 1
    assert (machine.physical_cores, machine.memory_bytes, machine.governor) == (None, None, None)
    assert (machine.isa, machine.gpus, machine.cpu_quota) == ((), (), None)
    assert (machine.gpu_driver, machine.numa_nodes, machine.has_smt) == ("", None, None)


def test_json_round_trip(root: Path) -> None:
    machine = this_machine(root)
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_sentence_names_the_facts_that_determine_speed(root: Path) -> None:
    sentence = this_machine(root).sentence
    for text in ("A Processor", "1 core, 2 threads", "limited to 1.5 CPUs", "avx512_vnni", "16 GiB", "NVIDIA H200"):
        assert text in sentence


@pytest.mark.parametrize(
    ("facts", "cores"),
    [
        ({}, 2),
        ({"physical_cores": None, "logical_cores": 8}, 8),
        ({"affinity": (0,)}, 1),
        ({"physical_cores": 16, "cpu_quota": 3.5}, 3),
        ({"cpu_quota": 0.5}, 1),
    ],
)
def test_usable_cores_are_the_smallest_limit(facts: dict[str, object], cores: int) -> None:
    assert usable_cores(replace(MACHINE, **facts)) == cores  # type: ignore[arg-type]
