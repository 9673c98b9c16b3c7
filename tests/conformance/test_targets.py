"""Promises of every target: the built-in ones, those of installed packages, and the toy target.

A package with a target runs the suite with ``pytest tests/conformance/test_targets.py -k NAME``.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from plugin_distribution import forget_plugins, write_distribution
from target_cases import Case, make_case

from quantkit import formats
from quantkit.errors import InputError, QuantkitError, UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.ops.roles import find_roles
from quantkit.quantization import Plan, Ranges, Scheme, annotate, calibrate, convert
from quantkit.quantization.report.census import census
from quantkit.quantization.targets import REGISTRY, Target, find_target, targets
from quantkit.quantization.targets.advice import advise_threads, find_faster_target, find_slow_reason
from quantkit.quantization.targets.base import DIALECTS, names_endpoints, splits_patterns
from quantkit.quantization.targets.capabilities import (
    FileChecks,
    KernelChecks,
    NeedsPackage,
    RuntimeRules,
    WrittenByConverter,
)
from quantkit.runtimes import open_session, runtimes
from quantkit.runtimes.session import Session, SessionOptions

ROOT = Path(__file__).parent.parent.parent
TOY = ROOT / "tests" / "support" / "toy_target"
TOY_NAME = "simulated"
# Problems of the installed plugins that cannot be loaded.
PLUGIN_PROBLEMS = REGISTRY.plugin_problems()
BUILT_IN = ("onnx", "tensorflow", "eightbit", "litert", "tensorrt")
CAPABILITIES = (NeedsPackage, WrittenByConverter, KernelChecks, RuntimeRules, FileChecks)


@pytest.fixture
def toy_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the toy target's distribution in a temporary folder."""
    entry_points = tomllib.loads((TOY / "pyproject.toml").read_text())["project"]["entry-points"]
    write_distribution(tmp_path, "toy_target", (TOY / "toy_target.py").read_text(), entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(REGISTRY)
    yield
    monkeypatch.undo()
    sys.modules.pop("toy_target", None)
    forget_plugins(REGISTRY)


@pytest.fixture(params=[*targets(), *PLUGIN_PROBLEMS, TOY_NAME])
def target(request: pytest.FixtureRequest) -> Target:
    if request.param in PLUGIN_PROBLEMS:
        pytest.fail(PLUGIN_PROBLEMS[request.param])
    if request.param not in targets():
        request.getfixturevalue("toy_target")
    return find_target(request.param)


@pytest.fixture(params=["digits", "residual"])
def case(request: pytest.FixtureRequest, target: Target) -> Case:
    return make_case(request.param, target)


@cache
def quantize_case(case: Case, target: Target) -> tuple[Plan, Ranges, Graph]:
    """Return the plan, the ranges and the quantized graph of a case, computed once for all tests."""
    scheme = Scheme.for_target(target.name)
    plan = annotate(case.graph, scheme)
    ranges = calibrate(case.graph, plan, case.batches(), runtime="reference")
    return plan, ranges, convert(case.graph, plan, ranges)


def available_runtimes(target: Target) -> list[str]:
    names = [name for name in target.runtimes if runtimes()[name].available().ok]
    if not names:
        pytest.skip(runtimes()[target.runtimes[0]].available().detail)
    return names


def write(target: Target, graph: Graph, folder: Path, *, weights_only: bool = False) -> Path:
    path = folder / f"model{target.suffixes[0]}"
    try:
        target.write(graph, path, weights_only=weights_only)
    except UnavailableError as error:
        pytest.skip(error.message)
    return path


def open_file(path: Path, case: Case, target: Target, runtime: str, options: SessionOptions) -> Session:
    graph = case.graph
    model = path if names_endpoints(target) else formats.load(path, graph.inputs, graph.outputs)
    return open_session(model, runtime, options)


def outputs_of(session: Session, images: Array) -> Array:
    (source,), (output,) = session.inputs, session.outputs
    return np.concatenate([session.run({source.name: image[None]})[output.name] for image in images])


def float_outputs(case: Case) -> Array:
    with open_session(case.graph, "reference") as session:
        return outputs_of(session, case.images)


def sqnr(expected: Array, actual: Array) -> float:
    """Return the signal-to-quantization-noise ratio in dB."""
    noise = np.square(actual.astype(np.float64) - expected).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / max(noise, 1e-30)))


def test_a_target_states_its_form(target: Target) -> None:
    assert target.name.isidentifier()
    assert target.dialect in DIALECTS
    assert target.suffixes
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in target.suffixes)
    assert target.runtimes
    assert set(target.runtimes) <= set(runtimes())
    assert isinstance(target.session_options(2), SessionOptions)
    threads = advise_threads(target, 2)
    assert threads.startswith(("keep the default", "intra-op 1", "as many threads as cores"))
    assert threads.count(" and ") <= 1, "a list of runtimes"
    assert bool(find_slow_reason(target)) == (find_faster_target(target) is not None)


def test_a_target_has_at_most_12_members() -> None:
    members = {name for name in {*vars(Target), *Target.__annotations__} if not name.startswith("_")}
    assert len(members) <= 12, sorted(members)
    # Methods of few targets are in the classes of capabilities, not in attributes of other objects.
    for target in map(find_target, BUILT_IN):
        own = {name for kind in type(target).__mro__[:-1] for name in vars(kind) if not name.startswith("_")}
        contract = members | {name for kind in CAPABILITIES for name in vars(kind) if not name.startswith("_")}
        assert own <= contract, f"{target.name}: {sorted(own - contract)}"


def test_the_default_scheme_is_supported(target: Target) -> None:
    names = {field.name for field in fields(Scheme)}
    assert names.issuperset([*target.defaults, *(name.partition(".")[0] for name in target.fixed)])
    scheme = Scheme.for_target(target.name)
    assert scheme.target == target.name
    assert Scheme.from_json(scheme.to_json()) == scheme


def test_a_scheme_that_the_target_does_not_support_is_rejected(target: Target) -> None:
    scheme = Scheme.for_target(target.name)
    checked = 0
    for name in (name.partition(".")[0] for name in target.fixed):
        supported = str(getattr(scheme, name))
        other = next(text for text in ("qint8 symmetric", "quint8 affine", "qint8 affine") if text != supported)
        with pytest.raises(UsageError, match=name) as caught:
            Scheme.from_json({**scheme.to_json(), name: other})
        assert caught.value.hint
        checked += 1
    if not splits_patterns(target):
        with pytest.raises(UsageError, match="split_patterns"):
            scheme.with_(split_patterns=True)
        checked += 1
    assert checked


def test_layers_are_quantized_and_the_rest_has_a_reason(case: Case, target: Target) -> None:
    plan, ranges, graph = quantize_case(case, target)
    reasons = target.missing_kernels(case.graph, plan, ranges) if isinstance(target, KernelChecks) else {}
    assert len(plan.patterns) - len(reasons) >= 5
    assert set(reasons) <= {*plan.pattern_of, *plan.pass_through}
    assert all({**plan.float_fallbacks, **reasons}.values())
    assert graph.dialect == target.dialect
    counts = census(case.graph, plan, graph)
    assert counts.int8_fraction is not None
    assert counts.int8_fraction > 0.8
    assert 2 <= counts.boundaries <= 9  # at least the input and the output


def test_the_file_opens_in_every_available_runtime_and_agrees_with_float(
    case: Case, target: Target, tmp_path: Path
) -> None:
    plan, ranges, graph = quantize_case(case, target)
    if isinstance(target, KernelChecks):
        try:
            target.check_host(case.graph, plan, ranges, graph, {})
        except UnavailableError as error:
            pytest.skip(error.message)
    path = write(target, graph, tmp_path)
    expected = float_outputs(case)
    runtimes = available_runtimes(target)
    if not runtimes:
        pytest.skip(f"no runtime of the target is installed: {', '.join(target.runtimes)}")
    for runtime in runtimes:
        with open_file(path, case, target, runtime, target.session_options(2)) as session:
            assert [info.name for info in session.outputs] == list(map(str, case.graph.outputs))
            actual = outputs_of(session, case.images)
        assert actual.shape == expected.shape
        assert sqnr(expected, actual) > case.min_sqnr, runtime
        assert np.mean(actual.argmax(-1) == expected.argmax(-1)) >= 0.95, runtime
        assert not np.array_equal(actual, expected), "the model is not quantized"


def test_plan_and_ranges_round_trip_through_files(case: Case, target: Target, tmp_path: Path) -> None:
    plan, ranges, graph = quantize_case(case, target)
    plan.save(tmp_path / "plan.json")
    ranges.save(tmp_path / "ranges.json")
    again = convert(case.graph, Plan.load(tmp_path / "plan.json"), Ranges.load(tmp_path / "ranges.json"))
    assert again.nodes.keys() == graph.nodes.keys()
    suffix = ".onnx" if target.dialect == "onnx" else ".pb"
    files = []
    for name, converted in (("first", graph), ("again", again)):
        formats.save(converted, tmp_path / f"{name}{suffix}")
        files.append((tmp_path / f"{name}{suffix}").read_bytes())
    assert files[0] == files[1]


def test_a_plan_without_layers_keeps_the_float_model(target: Target, tmp_path: Path) -> None:
    case = make_case("residual", target)
    layers = tuple(find_roles(case.graph).layer_ops & case.graph.op_counts.keys())
    plan = annotate(case.graph, Scheme.for_target(target.name, keep_float=layers))
    assert not plan.patterns
    graph = convert(case.graph, plan, Ranges({}))
    assert census(case.graph, plan, graph).boundaries == 0
    path = write(target, graph, tmp_path)
    with open_file(path, case, target, available_runtimes(target)[0], SessionOptions()) as session:
        actual = outputs_of(session, case.images[:8])
    np.testing.assert_allclose(actual, float_outputs(case)[:8], rtol=1e-3, atol=1e-4)


def test_weights_alone_are_smaller_and_near_float(case: Case, target: Target, tmp_path: Path) -> None:
    plan = annotate(case.graph, Scheme.for_target(target.name, weights_only=True))
    assert len(plan.weights) >= 5
    path = write(target, convert(case.graph, plan, Ranges({})), tmp_path, weights_only=True)
    num_bytes = sum(case.graph[name].value.num_bytes for name in plan.weights)
    if num_bytes > 100_000:  # below, the names of the nodes take more than the weights
        float_path = tmp_path / ("float.onnx" if case.graph.dialect == "onnx" else "float.pb")
        formats.save(case.graph, float_path)
        assert path.stat().st_size < float_path.stat().st_size - num_bytes / 2
    with open_file(path, case, target, available_runtimes(target)[0], SessionOptions()) as session:
        actual = outputs_of(session, case.images)
    assert sqnr(float_outputs(case), actual) > case.min_sqnr


def test_a_missing_range_is_an_error_that_names_the_edge(target: Target) -> None:
    case = make_case("residual", target)
    plan, ranges, _ = quantize_case(case, target)
    edge = plan.edges[-1]
    group = plan.group_of(edge)
    fewer = Ranges({other: limits for other, limits in ranges.ranges.items() if other not in group})
    with pytest.raises(InputError, match="there is no range of edge") as caught:
        convert(case.graph, plan, fewer)
    assert caught.value.hint


def test_a_plan_of_another_graph_is_an_error(target: Target) -> None:
    plan, _, _ = quantize_case(make_case("residual", target), target)
    other = make_case("digits", target).graph
    with pytest.raises(InputError, match="not in the graph") as caught:
        plan.require_nodes(other)
    assert caught.value.hint


def test_a_file_is_written_to_existing_folders_only(target: Target, tmp_path: Path) -> None:
    _, _, graph = quantize_case(make_case("residual", target), target)
    path = tmp_path / "missing" / f"model{target.suffixes[0]}"
    with pytest.raises(QuantkitError) as caught:
        target.write(graph, path)
    assert not path.exists()
    assert caught.value.hint


def test_the_guide_shows_the_files_of_the_toy_target() -> None:
    guide = (ROOT / "assets" / "guides" / "add-a-target.md").read_text()
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", guide, re.DOTALL)
    assert blocks == [(TOY / name).read_text() for name in ("toy_target.py", "pyproject.toml")]


def test_the_toy_target_is_found_while_it_is_installed(toy_target: None) -> None:
    assert list(targets())[-1] == TOY_NAME
    assert REGISTRY.problems() == ()
    assert Scheme.for_target(TOY_NAME).target == TOY_NAME


def test_the_toy_target_is_unknown_otherwise() -> None:
    with pytest.raises(UsageError, match=f"'{TOY_NAME}' is not a target") as caught:
        Scheme.for_target(TOY_NAME)
    assert "onnx" in caught.value.hint


def test_a_target_of_a_taken_name_is_skipped_and_both_origins_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (TOY / "toy_target.py").read_text().replace(f'"{TOY_NAME}"', '"onnx"')
    write_distribution(tmp_path, "second_onnx", source, {REGISTRY.group: {"onnx": "second_onnx:TARGET"}})
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(REGISTRY)
    try:
        assert "onnx" in targets()
        assert type(find_target("onnx")).__module__ == "quantkit.quantization.targets.onnx"
        (problem,) = REGISTRY.problems()
        assert "second_onnx:TARGET" in problem
        assert "the name 'onnx' is registered by quantkit" in problem
    finally:
        monkeypatch.undo()
        sys.modules.pop("second_onnx", None)
        forget_plugins(REGISTRY)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that installs a target "derived", whose class body it takes, from OnnxTarget."""

    def write_target(body: str) -> None:
        lines = ["from quantkit.quantization.targets import OnnxTarget", "class DerivedTarget(OnnxTarget):"]
        lines += [f"    {line}" for line in ('name = "derived"', *body.splitlines())]
        source = "\n".join([*lines, "TARGET = DerivedTarget()"])
        write_distribution(tmp_path, "derived_target", source, {REGISTRY.group: {"derived": "derived_target:TARGET"}})
        forget_plugins(REGISTRY)

    monkeypatch.syspath_prepend(tmp_path)
    yield write_target
    monkeypatch.undo()
    sys.modules.pop("derived_target", None)
    forget_plugins(REGISTRY)


def test_the_derived_target_of_the_guide_has_its_own_scheme(install: Callable[[str], None]) -> None:
    guide = (ROOT / "assets" / "guides" / "add-a-target.md").read_text()
    (source,) = re.findall(r"```py\n(.*?)```", guide, re.DOTALL)
    body = re.findall(r"^    (.*)\n", source, re.MULTILINE)
    install("\n".join(line for line in body if not line.startswith("name =")))
    target = find_target("derived")
    scheme = Scheme.for_target("derived")
    assert str(scheme.activations) == "qint8 affine"
    assert target.runtimes == ("onnxruntime",)
    assert scheme.with_(target="onnx") == Scheme.for_target("onnx", activations="qint8 affine")
    case = make_case("residual", target)
    _, _, graph = quantize_case(case, target)
    assert graph.dialect == "onnx"


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ('name = "onnx-s8"', ("'name'", "'onnx-s8'", "identifier")),
        ('dialect = "onxx"', ("'dialect'", "'onxx'", "'tensorflow' or 'onnx'")),
        ('suffixes = ".onnx"', ("'suffixes'", "a tuple of lower-case suffixes such as ('.onnx',)")),
        ("suffixes = ()", ("'suffixes'", "a tuple of lower-case suffixes")),
        ('runtimes = ("nosuch",)', ("'runtimes'", "'nosuch'", "onnxruntime")),
        ('runtimes = "openvino"', ("'runtimes'", "a tuple of at least one of")),
        ('defaults = {"activations": "int8"}', ("'defaults'", "'int8'", "qint8")),
        ('defaults = {"activations": 8}', ("'defaults'", "'activations'", '"quint8 affine"')),
        ('defaults = {"activation": "qint8 affine"}', ("'defaults'", "'activation'", "activations")),
        ('defaults = {"equalize": "yes"}', ("'defaults'", "'equalize'", "true or false")),
        ("defaults = None", ("'defaults'", "a mapping", "activations")),
        ('fixed = ("activation",)', ("'fixed'", "'activation'", "activations")),
        ('fixed = "weights"', ("'fixed'", "a tuple of weights")),
    ],
)
def test_a_target_with_a_wrong_field_is_skipped_with_the_allowed_values(
    install: Callable[[str], None], body: str, texts: tuple[str, ...]
) -> None:
    install(body)
    (problem,) = REGISTRY.problems()
    assert problem.startswith("target plugin derived_target:TARGET of derived_target cannot be loaded: the field ")
    assert all(text in problem for text in texts)
    with pytest.raises(UnavailableError) as caught:
        find_target("derived")
    assert caught.value.message == problem


def test_a_target_without_a_required_field_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (TOY / "toy_target.py").read_text().replace('    suffixes = (".pb", ".pbtxt")\n', "")
    write_distribution(tmp_path, "no_suffix", source, {REGISTRY.group: {TOY_NAME: "no_suffix:TARGET"}})
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(REGISTRY)
    try:
        assert "the field 'suffixes' is missing" in REGISTRY.plugin_problems()[TOY_NAME]
    finally:
        monkeypatch.undo()
        sys.modules.pop("no_suffix", None)
        forget_plugins(REGISTRY)


def test_this_suite_fails_for_a_target_that_cannot_be_loaded(tmp_path: Path) -> None:
    source = "from quantkit.quantization.targets import OnnxTarget\nTARGET = OnnxTarget\n"
    write_distribution(tmp_path, "broken", source, {REGISTRY.group: {"broken": "broken:TARGET"}})
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "states_its_form and broken",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "target plugin broken:TARGET of broken cannot be loaded" in result.stdout


def test_no_other_file_compares_the_name_of_a_target() -> None:
    """Outside `targets/`, only dialects are compared with strings that are also names of targets."""
    names = set(targets())
    checked = 0
    for path in [*ROOT.glob("quantkit/quantization/**/*.py"), *ROOT.glob("cli/*.py")]:
        if "targets" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                checked += 1
                constants = {child.value for child in ast.walk(node) if isinstance(child, ast.Constant)}
                text = ast.unparse(node)
                assert not names & constants or "dialect" in text, f"{path}, line {node.lineno}: {text}"
            elif isinstance(node, ast.Dict):
                keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                assert len(names & keys) < 2, f"{path}, line {node.lineno}: a table of targets"
    assert checked > 100
