"""Quantize the 20 networks of `support/portable_networks.py` in other circumstances, and compare the SHA-256.

    python tests/bench/measure_reproducibility.py BUILD [NETWORK ...] [--emulated NETWORK ...] [--python PYTHON]

The first files are made by this checkout, with all threads and all instructions of the processor. The second ones are
made from a copy of the checkout in another folder, on another date (faketime), with one CPU, another hash seed, and
OpenVINO, TensorFlow, NumPy and OpenBLAS held to AVX2. Some networks are also quantized for ONNX Runtime, here and on
an emulated Haswell (`qemu-user`), where it calibrates with its AVX2 kernels; OpenVINO computes some networks wrongly in
the emulator. With ``--python``, another interpreter quantizes all networks. Files that exist in BUILD are not made
again; results of other networks stay in the file.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

OTHER_PROCESS = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "7",
    "DONT_FAKE_MONOTONIC": "1",
}
OTHER_DATE = ("faketime", "2031-02-03 04:05:06", "taskset", "-c", "0")
QEMU = ("qemu-x86_64", "-cpu", "Haswell")
EMULATED = ("dtln_1", "kwt1", "yunet_n_320", "ultraface_rfb320")
# Circumstances whose files are made for ONNX Runtime, with their names in the results.
ONNXRUNTIME = {"onnxruntime": "this process, for ONNX Runtime", "emulated": "emulated Haswell, for ONNX Runtime"}


def quantize(build: Path, circumstance: str, names: list[str]) -> None:
    """Write the files of networks in this process, and print their SHA-256."""
    from portable_networks import load_saved

    import quantkit as qk

    for name in names:
        path = build / f"{name}.{circumstance}.onnx"
        if not path.exists():
            network = load_saved(name, build)
            runtime = {"runtime": "onnxruntime"} if circumstance in ONNXRUNTIME else {}
            options = network.options("onnx") | runtime
            qk.quantize(network.path, network.samples, target="onnx", output=path, **options)
        print(json.dumps({name: hashlib.sha256(path.read_bytes()).hexdigest()}), flush=True)


def run(
    build: Path, circumstance: str, names: list[str], root: Path, environment: dict[str, str], *command: str
) -> dict[str, str]:
    """Return the SHA-256 of the files that a process of its own makes; those before a failure if it fails."""
    script = root / "tests" / "bench" / Path(__file__).name
    arguments = [*command, str(script), str(build), *names, "--circumstance", circumstance]
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    result = subprocess.run(arguments, cwd=root, env=variables, stdout=subprocess.PIPE, text=True)
    digests: dict[str, str] = {}
    for line in result.stdout.splitlines():
        digests |= json.loads(line)
    return digests


def copy_checkout(folder: Path) -> Path:
    """Copy the library and the scripts of this checkout; return the new root."""
    for name in ("quantkit", "cli", "models", "tests/support", "tests/bench"):
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def main() -> None:
    """Quantize the networks in all circumstances, and write `reproducibility.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="networks (default: all)")
    parser.add_argument("--emulated", nargs="*", default=list(EMULATED), help="networks that are quantized emulated")
    parser.add_argument("--python", help="another interpreter with the same packages")
    parser.add_argument("--save", type=Path, default=HERE / "reproducibility.json", help="file to write")
    parser.add_argument("--circumstance", help=argparse.SUPPRESS)
    options = parser.parse_args()
    build = options.build.resolve()
    if options.circumstance:
        quantize(build, options.circumstance, options.networks)
        return
    from portable_networks import NAMES, save_networks

    from quantkit.benchmark.host.machine import this_machine

    save_networks(build)
    names = options.networks or list(NAMES)
    copy = copy_checkout(build / "other checkout")
    # On a later date, temporary folders of other processes would be stale.
    temporary = build / "temporary"
    temporary.mkdir(exist_ok=True)
    other = {**OTHER_PROCESS, "TMPDIR": str(temporary)}
    emulated = [name for name in names if name in options.emulated] if shutil.which(QEMU[0]) else []
    digests = {
        "this process": run(build, "here", names, ROOT, {}, sys.executable),
        "other process": run(build, "other", names, copy, other, *OTHER_DATE, sys.executable),
        "other Python": run(build, "python", names, ROOT, {}, options.python) if options.python else {},
    }
    emulation = {}
    if emulated:
        commands = {"onnxruntime": (sys.executable,), "emulated": (*QEMU, sys.executable)}
        emulation = {
            title: run(build, name, emulated, ROOT, {}, *commands[name]) for name, title in ONNXRUNTIME.items()
        }
    rows: list[dict[str, Any]] = []
    if options.save.exists():
        earlier = json.loads(options.save.read_text())["rows"]
        rows = [row for row in earlier if row["name"] not in names]
    for name in names:
        groups = [
            {where: each[name] for where, each in group.items() if name in each} for group in (digests, emulation)
        ]
        compared = [group for group in groups if group]
        is_equal = bool(compared) and all(len(set(group.values())) == 1 < len(group) for group in compared)
        row = {where: digest for group in groups for where, digest in group.items()}
        rows.append({"name": name, "is_equal": is_equal, **row})
        print(name, rows[-1]["is_equal"], len(row))
    document: dict[str, Any] = {"schema": "quantkit.bench.reproducibility/1", "machine": this_machine().to_json()}
    document |= {"equal": sum(row["is_equal"] for row in rows), "networks": len(rows), "rows": rows}
    options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
