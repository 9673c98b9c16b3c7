"""Faults for the measurement of the tests: one expression of a module changes, and equal seeds give equal faults."""

from pathlib import Path

import pytest
from seeded_faults import KINDS, choose_faults, find_faults

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "quantkit" / "drawing").glob("*.py"))


@pytest.mark.parametrize(
    ("kind", "code", "changed"),
    [
        ("comparison", "return a <= b", "return (a >= b)"),
        ("comparison", "return a is not b", "return (a is b)"),
        ("constant", "return a[-1]", "return a[-2]"),
        ("call", "ä.b(1,\n   a)", "pass"),
        ("condition", "return b if a else a", "return b if (not (a)) else a"),
        ("condition", "return [b for b in a if b]", "return [b for b in a if (not (b))]"),
        ("operands", "return a ** b * a", "return (b ** a) * a"),
    ],
)
def test_fault_changes_one_expression(kind: str, code: str, changed: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"ä = 1\n\n\ndef f(a: int, b: int) -> int:\n    {code}\n")
    (fault,) = (fault for fault in find_faults(path) if fault.kind == kind)
    assert (fault.function, fault.line, fault.before in code) == ("f", 5, True)
    assert fault.apply(path.read_bytes()).decode() == path.read_text().replace(code, changed)


@pytest.mark.parametrize("code", ["return a + b", "return 17", "return f'{a < 1}'", "return a < b < 100"])
def test_code_without_a_fault(code: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"x = 1 < 2\n\n\ndef f(a: int, b: int) -> int:\n    {code}\n")
    assert find_faults(path) == []


def test_chosen_faults_are_of_all_kinds_and_compile() -> None:
    faults = choose_faults(MODULES, 20, seed=1)
    assert [fault.kind for fault in faults] == [*KINDS] * 4
    assert len(set(faults)) == 20
    for fault in faults:
        compile(fault.apply(fault.path.read_bytes()), fault.path, "exec")
    assert faults == choose_faults(MODULES, 20, seed=1) != choose_faults(MODULES, 20, seed=2)
