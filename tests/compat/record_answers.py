"""Run the original Graph Transform Tool and record its results.

    python tests/compat/record_answers.py PYTHON [CASE]

PYTHON has TensorFlow 2.12 or older, which contains the original; it needs no other package. CASE is
a part of the names of the cases to record; other recorded results stay. The results are compressed in
`answers.json.gz`; the script prints those that change.
"""

import json
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent.parent / "support"
sys.path.insert(0, str(SUPPORT))

from classic_cases import RESULTS_FILE, record_of, recorded_results, write_results  # noqa: E402
from classic_graphs import classic_cases  # noqa: E402


def main(python: str, part: str = "") -> None:
    cases = [case for case in classic_cases() if part in case.name]
    lines = "\n".join(case.to_json() for case in cases)
    command = [python, str(SUPPORT / "original_tool.py")]
    process = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    outputs = process.stdout.splitlines()
    if len(outputs) != len(cases):
        raise SystemExit(f"{len(outputs)} results of {len(cases)} cases:\n{process.stderr[-2000:]}")
    earlier = recorded_results() if RESULTS_FILE.exists() else {}
    recorded = {case.name: record_of(json.loads(output), case) for case, output in zip(cases, outputs, strict=True)}
    names = {case.name for case in classic_cases()}
    results = {name: result for name, result in ((earlier if part else {}) | recorded).items() if name in names}
    write_results(results)
    for name in sorted(results.keys() | earlier.keys()):
        if results.get(name) != earlier.get(name):
            print(f"{name}\n- {earlier.get(name)}\n+ {results.get(name)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
