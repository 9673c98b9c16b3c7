"""Ask the original Graph Transform Tool anew and record what it answers.

    python tests/compat/record_answers.py PYTHON [PART OF A CASE'S NAME]

PYTHON is one that has TensorFlow 2.12 or before, with the original inside; it needs nothing else.
"""

import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent.parent / "support"
sys.path.insert(0, str(SUPPORT))

import json  # noqa: E402

from classic_cases import ANSWERS, as_recorded, recorded_answers, write_answers  # noqa: E402
from classic_graphs import classic_cases  # noqa: E402


def main(python: str, part: str = "") -> None:
    asked = [case for case in classic_cases() if part in case.name]
    questions = "\n".join(case.question() for case in asked)
    command = [python, str(SUPPORT / "original_tool.py")]
    done = subprocess.run(command, input=questions, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if len(lines) != len(asked):
        raise SystemExit(f"{len(lines)} answers to {len(asked)} questions:\n{done.stderr[-2000:]}")
    found = {case.name: as_recorded(json.loads(line), case) for case, line in zip(asked, lines, strict=True)}
    before = recorded_answers() if part and ANSWERS.exists() else {}
    names = [case.name for case in classic_cases()]
    write_answers({name: (before | found)[name] for name in names if name in before | found})


if __name__ == "__main__":
    main(*sys.argv[1:])
