"""Golden files: texts of transformed graphs, and their outputs."""

from pathlib import Path

import pytest
from golden_cases import FOLDER, SECTIONS, Case, golden_cases, results

from quantkit.ir.check import verify
from quantkit.ir.text import from_text
from quantkit.recipes import parse
from quantkit.recipes.example import runnable
from quantkit.recipes.verify import Verifier
from quantkit.runtimes import find_runtime
from quantkit.transforms.registry import REGISTRY


@pytest.mark.parametrize("path", golden_cases(), ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_golden(path: Path, update_goldens: bool) -> None:
    case = Case.read(path)
    assert case.comments, "a golden file begins with a comment that describes the case"
    assert set(case.sections) <= set(SECTIONS)
    steps = [step.name for step in parse(" ".join(case.sections["recipe"])).steps]
    assert path.parent.name in {*REGISTRY}.intersection(steps), "the folder has the name of a transform of the recipe"
    before = case.before
    if "error" not in case.sections:
        verify(before)
    sections, after = results(case)
    if update_goldens:
        path.write_text(case.with_results(sections))
    else:
        assert sections == {name: case.sections[name] for name in ("after", "error", "skips") if name in case.sections}
    assert before == from_text("\n".join(case.sections["before"])), "the input graph was changed"
    if after is not None and "numbers" not in case.sections:
        Verifier(find_runtime("reference").open)(runnable(before), runnable(after), REGISTRY[steps[-1]])
