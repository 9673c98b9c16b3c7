"""The guide for runtimes: its code is the toy runtime, which an entry point registers."""

import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from conformance_cases import CASES
from plugin_distribution import forget_plugins, write_distribution

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.runtimes import REGISTRY, Runtime, find_runtime, runtimes, split_runtime
from quantkit.runtimes.reference import RUNTIME
from quantkit.runtimes.runtime import check_runtime

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "assets" / "guides" / "add-a-runtime.md").read_text()
TOY = ROOT / "tests" / "support" / "toy_runtime" / "toy_runtime.py"


def test_guide_shows_the_toy_runtime() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert code == TOY.read_text()


def test_entry_point_of_the_guide_registers_the_toy_runtime(toy_distribution: Path) -> None:
    (entry,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    assert entry == '[project.entry-points."quantkit.runtimes"]\ntoy = "toy_runtime:RUNTIME"\n'
    assert Path(find_runtime("toy").open_model.__code__.co_filename).parent == toy_distribution
    assert list(runtimes())[-1] == "toy"
    assert REGISTRY.problems() == ()


def test_library_opens_the_toy_runtime_by_name() -> None:
    pytest.importorskip("onnx", reason="pip install onnx")
    case = CASES["dense"]
    feeds = case.feeds(2)
    with qk.open_session(case.graph, "toy") as session:
        np.testing.assert_allclose(session.run(feeds)["y"], case.expected(feeds)["y"], rtol=1e-5)


def test_command_line_accepts_the_name() -> None:
    assert split_runtime("model.onnx@toy") == ("model.onnx", "toy")


@pytest.mark.parametrize(
    ("field", "value", "texts"),
    [
        ("name", "my@runtime", ("'name'", "without '@'")),
        ("kinds", ("onxx",), ("'kinds'", "'onxx'", "onnx")),
        ("dialects", "onnx", ("'dialects'", "a tuple of 'tensorflow', 'onnx'")),
        ("native_dialect", "onxx", ("'native_dialect'", "one of the field 'dialects'")),
        ("devices", (), ("'devices'", "'cpu', 'gpu' or both")),
        ("precisions", ("int8",), ("'precisions'", "float32")),
        ("open_model", None, ("'open_model'", "a function")),
        ("keeps_tensors", "no", ("'keeps_tensors'", "True or False")),
        ("transposes_convolutions", "yes", ("'transposes_convolutions'", "True or False")),
        ("priority", "high", ("'priority'", "an integer")),
    ],
)
def test_runtime_with_a_wrong_field_is_skipped_with_the_allowed_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object, texts: tuple[str, ...]
) -> None:
    lines = ["from dataclasses import replace", "from quantkit.runtimes.reference import RUNTIME as BASE"]
    lines += [f"RUNTIME = replace(BASE, **{ {'name': 'wrong', field: value}!r})"]
    write_distribution(tmp_path, "wrong", "\n".join(lines), {"quantkit.runtimes": {"wrong": "wrong:RUNTIME"}})
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(REGISTRY)
    try:
        (problem,) = REGISTRY.problems()
        assert problem.startswith("runtime plugin wrong:RUNTIME of wrong cannot be loaded: the field ")
        assert all(text in problem for text in texts)
    finally:
        monkeypatch.undo()
        sys.modules.pop("wrong", None)
        forget_plugins(REGISTRY)


@pytest.mark.parametrize("field", [each.name for each in fields(Runtime)])
def test_each_field_of_a_runtime_is_checked(field: str) -> None:
    with pytest.raises(UsageError, match=f"the field '{field}' has the value"):
        check_runtime(replace(RUNTIME, **{field: 0.5}))
