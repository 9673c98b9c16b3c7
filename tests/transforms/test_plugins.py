"""Transforms from files and from write_plugin distributions."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import main

import quantkit.transforms  # noqa: F401  (fills the _restore_registry)
from quantkit.errors import RecipeError
from quantkit.ir.text import from_text
from quantkit.recipes import parse, rewrite, run
from quantkit.transforms.plugins import find_transform, load_file, load_installed
from quantkit.transforms.registry import REGISTRY

GRAPH = from_text('inputs: x\noutputs: y\nx = Placeholder[2]()\ny = Neg(x, T=float) @"/cpu:0"')
GOOD = '''
from quantkit.rewriting import transform

@transform
def drop_devices(graph, *, keep: str = ""):
    """Remove the device strings of nodes.

    Before:  y = Neg(x) @"/cpu:0"
    After:   y = Neg(x)

    Options:
        keep: device string that stays.

    Skips when no node was placed.

    Example:
        drop_devices
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x) @"/cpu:0"
    """
    return graph.with_nodes(n if n.device == keep else n.with_(device="") for n in graph.nodes.values())
'''


@pytest.fixture(autouse=True)
def _restore_registry() -> Iterator[None]:
    before, modules = dict(REGISTRY), set(sys.modules)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)
    for name in set(sys.modules) - modules:
        if "plugin" in name:
            del sys.modules[name]


def test_a_file_that_changes_within_a_second_is_reloaded_and_leaves_no_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    for name in ("drop_devices", "omit_devices"):
        file.write_text(GOOD.replace("drop_devices", name))
        os.utime(file, (0, 0))
        assert [transform.name for transform in load_file(file)] == [name]
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(GOOD)
    return tmp_path / "mine.py"


def write_plugin(folder: Path, name: str, code: str, value: str | None = None) -> None:
    """Write a distribution: a module, and its metadata with an entry point."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[quantkit.transforms]\n{name} = {value or name}\n")


def test_file_registers_a_transform(plugin: Path) -> None:
    (plugin_transform,) = load_file(plugin)
    assert (plugin_transform.name, plugin_transform.is_built_in) == ("drop_devices", False)
    assert rewrite(GRAPH, "drop_devices")["y"].device == ""
    assert rewrite(GRAPH, 'drop_devices(keep="/cpu:0")') == GRAPH


def test_file_may_be_loaded_twice(plugin: Path) -> None:
    load_file(plugin)
    assert [each.name for each in load_file(plugin)] == ["drop_devices"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = (\n", "line 1: SyntaxError: '(' was never closed"),
        ("import quantkit\n\ndef f():\n    nope()\nf()\n", "line 4: NameError: name 'nope' is not defined"),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("x = 1\n", "registers no transform"),
        (
            GOOD.replace("drop_devices", "fold_pads"),
            "two transforms are named 'fold_pads': quantkit.transforms.folding.fold_pads",
        ),
        (GOOD.replace("*, keep", "keep"), "parameter 'keep' must be keyword-only"),
    ],
)
def test_errors_have_file_and_line(tmp_path: Path, code: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(code)
    before = dict(REGISTRY)
    with pytest.raises(RecipeError) as caught:
        load_file(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message
    assert caught.value.exit_code == 2
    assert before == REGISTRY


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        load_file(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('return {}["x"]', "line 5: KeyError: 'x'"),
        ("return None", "crash returns NoneType"),
        ("return graph.with_nodes(1)", "line 5: TypeError"),
    ],
)
def test_exception_of_a_plugin_is_one_message(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from quantkit.rewriting import transform\n\n@transform\ndef crash(graph):\n    {body}\n")
    load_file(path)
    with pytest.raises(RecipeError) as caught:
        rewrite(GRAPH, "crash")
    assert message in caught.value.message
    assert str(path) in caught.value.message


RULE = """from quantkit.rewriting import Edge, any_, op, rule, transform

@transform
@rule(op("Neg")({pattern}))
def drop_negation(graph, root, x):
    return [root.with_(op="Identity", inputs=({edge},))]
"""


@pytest.mark.parametrize("edge", ["x", "Edge([])"])
def test_exception_in_the_rule_driver_names_the_rule_of_the_plugin(tmp_path: Path, edge: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RULE.format(pattern='any_("x")', edge=edge))
    load_file(path)
    with pytest.raises(RecipeError) as caught:
        rewrite(GRAPH, "drop_negation")
    assert f"{path}, line 3: " in caught.value.message


def test_unbound_parameter_of_a_plugin_is_an_error_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RULE.format(pattern="any_()", edge="x"))
    with pytest.raises(RecipeError) as caught:
        load_file(path)
    assert caught.value.message == (
        f"plugin {path}, line 3: the pattern does not bind parameter 'x' of rule 'drop_negation'"
    )


def test_exception_of_a_plugin_may_be_ignored_but_a_wrong_option_may_not(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from quantkit.rewriting import transform\n\n@transform\ndef crash(graph, *, k: int = 1):\n    1 / 0\n"
    )
    load_file(path)
    graph, trace = run(parse("crash(ignore_errors=true)"), GRAPH)
    assert graph == GRAPH
    assert "ZeroDivisionError" in trace.records[0].ignored
    with pytest.raises(RecipeError, match="has no option 'n'"):
        rewrite(GRAPH, "crash(ignore_errors=true, n=2)")


def test_changes_of_a_plugin_are_computed(plugin: Path) -> None:
    load_file(plugin)
    assert run(parse("drop_devices"), GRAPH)[1].records[0].changes == ("y (Neg) changed",)


def test_installed_distributions_register_transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path, "good_plugin", GOOD, "good_plugin:drop_devices")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_transform("drop_devices").function.__module__ == "good_plugin"
    assert rewrite(GRAPH, "drop_devices")["y"].device == ""
    assert load_installed() == ()


def test_broken_distribution_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plugin(tmp_path, "bad_plugin", "import nothing_of_this_name\n")
    write_plugin(tmp_path, "good_plugin", GOOD)
    write_plugin(tmp_path, "idle_plugin", "x = 1\n")
    write_plugin(tmp_path, "stolen_plugin", GOOD.replace("drop_devices", "fold_pads"))
    monkeypatch.syspath_prepend(tmp_path)
    assert find_transform("drop_devices").is_built_in is False
    bad, idle, stolen = load_installed()
    assert bad.startswith("plugin 'bad_plugin' of bad_plugin cannot be loaded: ")
    assert f"{tmp_path / 'bad_plugin.py'}, line 1: ModuleNotFoundError" in bad
    assert idle.startswith("plugin 'idle_plugin' of idle_plugin registers no transform")
    assert "two transforms are named 'fold_pads'" in stolen
    assert find_transform("fold_pads").is_built_in
    with pytest.raises(RecipeError, match="'zzzz' not recognized") as caught:
        find_transform("zzzz")
    assert "bad_plugin" in caught.value.hint
    assert main(["transforms", "list"]) == 0
    out, err = capsys.readouterr()
    assert "Remove the device strings of nodes. (plugin)" in out
    assert "bad_plugin" in err


def test_commands_take_plugins(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transforms", "show", "drop_devices", "--plugin", str(plugin)]) == 0
    shown = capsys.readouterr().out
    assert "+ y = Neg(x)" in shown
    assert "keep=str" in shown
    assert main(["transforms", "check", "--plugin", str(plugin), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    statuses = [each["status"] for each in document["transforms"][0]["promises"]]
    assert statuses == ["exercised"] * 8 + ["not applicable"]
    arguments = [
        "--transforms",
        "drop_devices",
        "--plugin",
        str(plugin),
        "--explain",
        "--verify",
        "--runtime",
        "reference",
    ]
    assert main(["transform", "digits", "-o", str(tmp_path / "out.pb"), *arguments]) == 0
    assert "drop_devices: 235 -> 235 nodes" in capsys.readouterr().out


def test_broken_promises_of_a_plugin_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        'from quantkit.rewriting import transform\n@transform\ndef mine(graph):\n    """Do."""\n    return graph\n'
    )
    assert main(["transforms", "check", "mine", "--plugin", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "  broken         has examples that it rewrites" in out
    assert "  not exercised  returns well-formed graphs" in out
    assert "mine breaks the promise 'documents its effect, its options and its skips' and 1 more" in err
    assert main(["transforms", "check"]) == 2
