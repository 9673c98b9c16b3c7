"""No command sends anything, or writes outside its outputs, the cache and the folder of temporary files.

An audit hook in every Python process reports connections and files opened for writing; files that libraries write
without Python appear in the home and working folders.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "assets"
# The hook must not open a file itself: it writes to a descriptor that every process opens at its start.
SITECUSTOMIZE = """
import os, sys

_log = os.open(os.environ["QUANTKIT_TEST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def _report(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        line = f"{event} {args[1:]!r}"
    elif event == "open" and isinstance(args[0], (str, bytes)) and isinstance(args[2], int):
        if not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        line = "write " + os.path.abspath(os.fsdecode(args[0]))
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink"):
        path = args[0] if event == "os.mkdir" else args[1]
        line = "write " + os.path.abspath(os.fsdecode(path))
    else:
        return
    os.write(_log, (line + "\\n").encode(errors="replace"))

sys.addaudithook(_report)
"""
# Command lines, and the module of their runtime; OUT is the folder of outputs.
COMMANDS = {
    "help": ("--help", ""),
    "transform": ("transform digits -o OUT/a.pb --recipe inference --trace OUT/t.html", ""),
    "transform to ONNX": ("transform digits -o OUT/a.onnx", ""),
    "verify": ("transform digits -o OUT/a.pb --recipe inference --verify --runtime reference", ""),
    "weights": ("quantize digits -o OUT/a.onnx --weights-only --runs 0", ""),
    "quantize": (
        "quantize digits -o OUT/a.onnx --calibration ASSETS/digits_heldout.npz --limit 20 --runs 0 --runtime reference "
        "--save-plan OUT/p.json --save-ranges OUT/r.json",
        "",
    ),
    "quantize and measure": (
        "quantize digits -o OUT/a.onnx --calibration ASSETS/digits_heldout.npz --limit 9 --runs 1 "
        "--runtime onnxruntime",
        "onnxruntime",
    ),
    "classify": ("classify ASSETS/digit_3.png --model digits --runtime reference", ""),
    "classify with OpenVINO": ("classify ASSETS/digit_3.png --model digits --runtime openvino", "openvino"),
    "classify with ONNX Runtime": ("classify ASSETS/digit_3.png --model digits --runtime onnxruntime", "onnxruntime"),
    "evaluate": ("evaluate digits@reference --data ASSETS/digits_heldout.npz --limit 20", ""),
    "compare": ("compare digits digits --runtime reference", ""),
    "structure": ("compare digits digits --structure", ""),
    "benchmark": ("benchmark digits@reference --runs 1 --processes 1 --time-budget 20s --save OUT/b.json", ""),
    "monitor": ("monitor --html OUT/m.html -- PYTHON -c print(sum(range(1000000)))", "psutil"),
    "run": ("run digits@reference --data ASSETS/digits_heldout.npz --limit 20 --workers 2 -o OUT/r", ""),
    "pack": ("data pack ASSETS/digits_heldout.npz -o OUT/shards --workers 2", ""),
    "summarize": ("summarize digits", ""),
    "models": ("models list", ""),
    "model": ("models show inception_v3", ""),
    "offline": ("models fetch inception_v3 --offline", ""),
    "transforms": ("transforms list", ""),
    "doctor": ("doctor", ""),
    "transform_graph": (
        "transform_graph --in_graph=GRAPH --out_graph=OUT/a.pb --inputs=Mul --outputs=softmax "
        "--transforms=fold_constants",
        "",
    ),
    "summarize_graph": ("summarize_graph --in_graph=GRAPH", ""),
    "compare_graphs": ("compare_graphs GRAPH GRAPH", ""),
    "label_image": ("label_image --image=ASSETS/digit_3.png --graph=digits --runtime reference", ""),
}


# Run the commands of a JSON file one after another, and separate them in the log.
SCRIPT = """
import json, sys
from importlib import import_module
from sitecustomize import _log, os

main = import_module("quantkit.cli").main
sys.path.append(sys.argv[2])
import_module("short_measurements").shorten_measurements()
for name, arguments in json.load(open(sys.argv[1])).items():
    os.write(_log, f"command {name}\\n".encode())
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code or 0
    os.write(_log, f"code {code}\\n".encode())
"""


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_commands_open_no_connection_and_write_only_their_outputs(tmp_path: Path) -> None:
    folders = {part: tmp_path / part for part in ("home", "work", "temporary", "cache", "site")}
    for folder in folders.values():
        folder.mkdir()
    (folders["site"] / "sitecustomize.py").write_text(SITECUSTOMIZE)
    graph = ROOT / "models" / "digits.pb"
    commands = {}
    for name, (command, module) in COMMANDS.items():
        if not module or find_spec(module):
            (tmp_path / name).mkdir()
            replacements = {"ASSETS": ASSETS, "GRAPH": graph, "PYTHON": Path(sys.executable)}
            for variable, path in replacements.items():
                command = command.replace(variable, str(path))
            commands[name] = [argument.replace("OUT", str(tmp_path / name)) for argument in command.split()]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    log = tmp_path / "log"
    environment = os.environ | {
        "HOME": str(folders["home"]),
        "TMPDIR": str(folders["temporary"]),
        "QUANTKIT_CACHE": str(folders["cache"]),
        "QUANTKIT_TEST_LOG": str(log),
        "PYTHONPATH": str(folders["site"]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "commands.json", ROOT / "tests" / "support"],
        cwd=folders["work"],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    sections = dict(part.split("\n", 1) for part in log.read_text().split("command ")[1:])
    assert [*sections] == [*commands]
    wrong = []
    for name, text in sections.items():
        lines = text.splitlines()
        allowed = (*(str(folders[part]) for part in ("temporary", "cache")), str(tmp_path / name), "/dev/", "/proc/")
        written = [line.removeprefix("write ") for line in lines if line.startswith("write ")]
        wrong += [f"{name}: {line}" for line in lines if line.startswith("socket")]
        wrong += [f"{name}: writes {path}" for path in written if not path.startswith(allowed)]
        if f"code {3 if name == 'offline' else 0}" not in lines:
            wrong.append(f"{name}: {lines[-1]}")
        if "OUT" in COMMANDS[name][0] and not any(path.startswith(str(tmp_path / name)) for path in written):
            wrong.append(f"{name}: the hook does not see the outputs")
    assert not wrong, "\n".join([*wrong, run.stderr])
    assert {part: _files(folders[part]) for part in ("home", "work", "temporary")} == {
        "home": [],
        "work": [],
        "temporary": [],
    }


def test_the_hook_reports_connections(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    code = "import socket; s = socket.socket(); s.settimeout(1); s.connect_ex(('127.0.0.1', 9)); open('x', 'w').close()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "QUANTKIT_TEST_LOG": str(tmp_path / "log")}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)
    text = (tmp_path / "log").read_text()
    assert "socket.connect" in text
    assert f"write {tmp_path / 'x'}" in text
