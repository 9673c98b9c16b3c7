"""Options of verbs: a declaration gives the signature, the documentation, the check, the flag and the static type."""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Any

import pytest

import quantkit as qk
from quantkit.arguments import public, require_text
from quantkit.batch_inference.workflow import RunOptions
from quantkit.benchmark.profiling.verb import ProfileOptions, profile_layers
from quantkit.benchmark.sweep.workflow import SweepOptions
from quantkit.benchmark.workflow import BenchmarkOptions
from quantkit.evaluation.accuracy import EvaluateOptions
from quantkit.evaluation.classification import ClassifyOptions
from quantkit.evaluation.comparison import CompareOptions
from quantkit.optimize.verb import OptimizeOptions
from quantkit.options import Declaration, declarations, option, takes
from quantkit.quantization.workflow.options import Options
from quantkit.recipes.workflow import TransformOptions

ROOT = Path(__file__).parents[1]
VERBS: dict[Any, type] = {
    qk.benchmark: BenchmarkOptions,
    qk.classify: ClassifyOptions,
    qk.compare: CompareOptions,
    qk.evaluate: EvaluateOptions,
    qk.optimize: OptimizeOptions,
    profile_layers: ProfileOptions,
    qk.quantize: Options,
    qk.run: RunOptions,
    qk.sweep: SweepOptions,
    qk.transform: TransformOptions,
}


@dataclass(frozen=True)
class NotedOptions(Options):
    """The arguments of `quantize`, and one more."""

    _: KW_ONLY
    heading: str = option("", require_text, help="text that the report shows, as --trace does (default: none)")


@public
@takes(NotedOptions)
def quantize_with_note(options: NotedOptions) -> str:
    """Return the heading.

    Raises:
        UsageError: an argument is not valid.
    """
    return options.heading


def parser_of(options: type, **changes: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    import_module("quantkit.cli._arguments").add_options(parser, options, **changes)
    return parser


def test_a_declaration_is_an_argument_of_the_signature() -> None:
    parameters = signature(quantize_with_note).parameters
    heading = parameters["heading"]
    assert (heading.kind, heading.default, heading.annotation) == (Parameter.KEYWORD_ONLY, "", str)
    others = signature(qk.quantize).parameters
    assert {name: each for name, each in parameters.items() if name != "heading"} == dict(others)
    assert len(others) > 40


def test_a_declaration_is_documented() -> None:
    documentation = getdoc(quantize_with_note) or ""
    assert "    heading: text that the report shows, as ``trace`` does (default: none).\n" in documentation
    assert documentation.index("Args:") < documentation.index("    heading:") < documentation.index("Raises:")


def test_a_declaration_checks_the_value() -> None:
    assert quantize_with_note("model.onnx", heading="first") == "first"
    with pytest.raises(qk.UsageError, match="heading is an int, and must be a str"):
        quantize_with_note("model.onnx", heading=3)
    with pytest.raises(qk.UsageError) as caught:
        quantize_with_note("model.onnx", headign="first")  # type: ignore[call-arg]
    assert caught.value.hint == "did you mean 'heading'?"
    with pytest.raises(TypeError, match="missing a required argument: 'model'"):
        quantize_with_note()  # type: ignore[call-arg]


def test_a_declaration_is_a_flag() -> None:
    parser = parser_of(NotedOptions, output={"required": False})
    assert "text that the report shows, as --trace does" in " ".join(parser.format_help().split())
    args = parser.parse_args(["--heading", "first", "--limit", "8", "--weights-only", "--input-mean", "1,2,3"])
    assert (args.heading, args.limit, args.weights_only, args.input_mean) == ("first", 8, True, (1.0, 2.0, 3.0))
    assert (args.seed, args.runtime, args.calibration) == (0, "auto", None)
    options_of = import_module("quantkit.cli._arguments").options_of
    assert options_of(quantize_with_note, args).keys() >= {"heading", "limit", "weights_only", "input_mean"}


def test_a_shared_declaration_may_be_changed() -> None:
    shared = Declaration(require_text, help="text of all verbs")

    @dataclass(frozen=True)
    class NoteOptions:
        heading: str = option("", shared, help="text of one verb")

    (declared,) = declarations(NoteOptions)
    assert (declared.option.help, declared.option.check) == ("text of one verb", require_text)


def test_options_without_a_default_value_are_required_flags() -> None:
    with pytest.raises(SystemExit):
        parser_of(RunOptions).parse_args([])


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_every_option_is_documented(verb: Callable[..., Any]) -> None:
    options, documentation = VERBS[verb], getdoc(verb) or ""
    names = [each.name for each in declarations(options)]
    assert list(signature(verb).parameters) == sorted(names, key=lambda name: signature(verb).parameters[name].kind)
    assert [name for name in names if f"\n    {name}: " not in documentation] == []


def test_groups_keep_their_position_if_a_verb_declares_an_option_again() -> None:
    names = [each.name for each in declarations(EvaluateOptions)]
    assert names.index("isa") < names.index("precision") < names.index("min_top1")


WRONG = """import quantkit as qk
qk.quantize("m.onnx", "data", limit="8")
qk.quantize("m.onnx", "data", max_dorp=0.01)
qk.quantize(calibration="data")
qk.evaluate("m.onnx", "data", batch="8")
qk.compare("a.onnx", "b.onnx", limit="8")
qk.classify("a.png", top="3")
"""
RIGHT = """import quantkit as qk
from typing import assert_type
from quantkit.evaluation import Classification, ImagePredictions, LayerComparison
assert_type(qk.quantize(model="m.onnx", calibration="data", time_budget="2m", limit=8), qk.QuantizationResult)
assert_type(qk.compare("a.onnx", "b.onnx", structure=True).are_equal, bool)
assert_type(qk.compare("a.onnx", "b.onnx", "data", limit=8), LayerComparison)
assert_type(qk.classify("a.png", model="digits", top=3), ImagePredictions)
assert_type(qk.classify(["a.png"], top=3), Classification)
"""


def test_type_checkers_check_calls(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "calls.py").write_text(f"{RIGHT}\n{WRONG}")
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "calls.py")]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines = [int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line]
    first = len(RIGHT.splitlines()) + 3
    assert lines == list(range(first, first + len(WRONG.splitlines()) - 1)), output
