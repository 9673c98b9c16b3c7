"""Seed faults in the package, and count those that the tests of their module find.

    python tests/bench/measure_faults.py [--faults 50] [--seed 30] [--only NUMBER ...]

Takes about 1 minute for each fault; the machine may be busy. Writes `faults.json`. The faults are those of
`support/seeded_faults.py`, one after another in a copy of this checkout. The tests of a module are its doctests, those
in the folder of its package, and the files of other folders that import it: the 20 files that name the module or the
changed function most. A fault is found if a test fails, or if the tests do not end. The test must pass without the
fault, otherwise it is deselected. A fault that no test can find, because both programs have equal results, stays in the
document with a note, which is written by hand.

With ``--again``, the faults are those of the document, and only the tests that found them run, and all tests of the
faults that are left. A fault whose code is no longer there keeps its row. ``found_before`` is the first result.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "support"))
from seeded_faults import Fault, choose_faults, find_faults  # noqa: E402

# Tests outside of the folder of a package that run its code by names of files, transforms and runtimes.
OTHER_TESTS = {
    "compat": ("tests/test_golden.py",),
    "quantization": ("tests/conformance",),
    "recipes": ("tests/test_contract.py",),
    "runtimes": ("tests/conformance",),
    "transforms": ("tests/test_golden.py", "tests/test_contract.py"),
}
COPIED = ("quantkit", "cli", "models", "tests", "assets")
COPIED_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "LICENSE")
# Number of test files that run for one fault, the most relevant ones.
MAX_FILES = 20
# Processor time and run time of the tests of one fault. An endless loop reaches the first limit.
MAX_CPU_SECONDS, MAX_SECONDS = 1200, 3600
# Name of the file to which pytest writes the first failure, when it loads this module as a plugin.
FAILURE_FILE = "QUANTKIT_FIRST_FAILURE"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _write_failure(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _write_failure(report)


def _write_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed and FAILURE_FILE in os.environ:
        with open(os.environ[FAILURE_FILE], "a") as file:
            file.write(f"{report.nodeid}\n")


@dataclass(frozen=True)
class Checkout:
    """Copy of this checkout, in which modules are changed.

    Attributes:
        folder: folder of the copy.
    """

    folder: Path

    @classmethod
    def create(cls, parent: Path) -> "Checkout":
        folder = parent / "checkout"
        folder.mkdir()
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for name in COPIED_FILES:
            shutil.copy(ROOT / name, folder)
        for name in ("cli", "models"):  # otherwise those of an editable installation are imported
            (folder / "quantkit" / name).symlink_to(folder / name)
        if (ROOT.parent / "shared").exists():
            (parent / "shared").symlink_to(ROOT.parent / "shared")
        return cls(folder)

    def modules(self) -> list[Path]:
        return sorted((self.folder / "quantkit").rglob("*.py"))

    def write(self, path: Path, source: bytes, number: int) -> None:
        """Write a module with a new modification time, such that Python compiles it again."""
        path.write_bytes(source)
        seconds = path.stat().st_mtime + 2 * number
        os.utime(path, (seconds, seconds))

    def tests_of(self, fault: Fault) -> list[str]:
        """Return the tests of the module with a fault, the most relevant ones first."""
        module = fault.path.relative_to(self.folder)
        package = module.parts[1].removesuffix(".py")
        name = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
        roots = [self.folder / "tests" / package, self.folder / "tests" / f"test_{package}.py"]
        roots += [self.folder / other for other in OTHER_TESTS.get(package, ())]
        folder = {path for root in roots for path in ([root] if root.is_file() else root.rglob("test_*.py"))}
        scores: dict[str, int] = {}
        for path in sorted((self.folder / "tests").rglob("test_*.py")):
            text = path.read_text()
            imports = bool(re.search(rf"\b{re.escape(name)}\b(?!\.)", text))
            if not imports:
                parent, _, stem = name.rpartition(".")
                imports = bool(re.search(rf"from {re.escape(parent)} import [^\n]*\b{stem}\b", text))
            if path not in folder and not imports:
                continue
            mentions = [
                4 * (path.stem == f"test_{module.stem}"),
                3 * imports,
                2 * bool(re.search(rf"\b{fault.function}\b", text)),
                bool(re.search(rf"\b{module.stem}\b", text)),
                bool(set(path.parent.parts) >= set(module.parts[1:-1])),
            ]
            scores[str(path.relative_to(self.folder))] = sum(mentions)
        files = sorted(scores, key=lambda path: (-scores[path], path))[:MAX_FILES]
        return [str(module), *files] if b">>> " in fault.path.read_bytes() else files

    def run(self, tests: Sequence[str], excluded: Sequence[str] = ()) -> tuple[str, bool, float]:
        """Run tests until one fails.

        Returns:
            The identifier of the test that failed, or an empty string; False if the tests did not end; seconds.
        """
        failure = self.folder.parent / "failure"
        failure.unlink(missing_ok=True)
        variables = {"PYTHONPATH": f"{self.folder}{os.pathsep}{HERE}", FAILURE_FILE: str(failure)}
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", "-p", "measure_faults"]
        command += [f"--deselect={test}" for test in excluded]
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, *tests],
            cwd=self.folder,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS)),
        )
        try:
            code = process.wait(MAX_SECONDS)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.monotonic() - start
        tests_failed = failure.read_text().splitlines() if failure.exists() else []
        if not tests_failed and code not in (0, 1, 5, -signal.SIGXCPU, -signal.SIGKILL):
            tests_failed = [f"pytest ended with {code}"]
        return tests_failed[0] if tests_failed else "", code >= 0, seconds


def measure(checkout: Checkout, fault: Fault, number: int, tests: Sequence[str]) -> dict[str, Any]:
    """Run the tests of a fault; return the row of the document."""
    source = fault.path.read_bytes()
    excluded: list[str] = []
    total = 0.0
    while True:
        checkout.write(fault.path, fault.apply(source), 1 + 2 * number)
        test, is_complete, seconds = checkout.run(tests, excluded)
        checkout.write(fault.path, source, 2 + 2 * number)
        total += seconds
        if not test or test.startswith("pytest ended") or not checkout.run([test])[0]:
            break
        excluded.append(test)  # it fails without the fault, too
        tests = [each for each in tests if each != test]
    module = fault.path.relative_to(checkout.folder)
    row = {"module": str(module), "line": fault.line, "function": fault.function, "kind": fault.kind}
    row |= {"before": fault.before, "after": fault.after, "found": bool(test) or not is_complete}
    row |= {"test": test or ("" if is_complete else "the tests do not end"), "seconds": round(total)}
    return row | ({"deselected": excluded} if excluded else {})


def find_again(checkout: Checkout, row: dict[str, Any]) -> Fault | None:
    """Return the fault of a row of the document in the present code, or None if its code is no longer there."""
    path = checkout.folder / row["module"]
    faults = find_faults(path) if path.exists() else []
    code = (row["function"], row["before"], row["after"])
    same = [fault for fault in faults if (fault.function, fault.before, fault.after) == code]
    return min(same, key=lambda fault: abs(fault.line - row["line"]), default=None)


def main() -> None:
    """Measure the faults, and write the document after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=50, help="number of faults (default: 50)")
    parser.add_argument("--seed", type=int, default=30, help="seed of the choice (default: 30)")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="numbers of the faults (default: all)")
    parser.add_argument("--again", action="store_true", help="run the tests that found the faults of the document")
    parser.add_argument("--save", type=Path, default=HERE / "faults.json", help="file to write")
    options = parser.parse_args()
    old = json.loads(options.save.read_text())["rows"] if options.save.exists() else []
    rows: list[dict[str, Any]] = []
    faults: list[Fault | None]
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout.create(Path(folder))
        if options.again:
            faults = [find_again(checkout, row) for row in old]
        else:
            faults = list(choose_faults(checkout.modules(), options.faults, options.seed))
        for number, fault in enumerate(faults):
            before = old[number] if options.again else {}
            if fault is None or (options.only and number not in options.only):
                rows += [before] if before else []
                continue
            tests = checkout.tests_of(fault)
            if options.again and "::" in before.get("test", ""):
                tests = [before["test"]]
            row = measure(checkout, fault, number, tests)
            if options.again:
                row["found_before"] = before.get("found_before", before["found"])
            if "note" in before and not row["found"]:
                row["note"] = before["note"]
            rows.append(row)
            print(f"{number}: {json.dumps(row)}", flush=True)
            if options.again or not options.only:
                save(options.save, options.seed, [*rows, *old[number + 1 :]] if options.again else rows)


def save(path: Path, seed: int, rows: Sequence[dict[str, Any]]) -> None:
    from quantkit.benchmark.host.machine import this_machine  # as a plugin, this module imports nothing with a fault

    document = {"schema": "quantkit.bench.faults/1", "machine": this_machine().to_json(), "seed": seed}
    document |= {"faults": len(rows), "found": sum(row["found"] for row in rows)}
    if any("found_before" in row for row in rows):
        document["found_before"] = sum(row.get("found_before", row["found"]) for row in rows)
    document |= {"equivalent": sum("note" in row for row in rows), "rows": list(rows)}
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
