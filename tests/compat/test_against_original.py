"""Classic mode against recorded results of the original; quantkit's own transforms against inference."""

import contextlib

import numpy as np
import pytest
from classic_cases import ClassicCase, first_difference, names_of, recorded_results
from classic_graphs import classic_cases

from quantkit.errors import CheckError, GraphError, QuantkitError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.recipes import parse, run
from quantkit.recipes.verify import Verifier
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import TensorInfo
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.registry import Transform

RESULTS = recorded_results()
# Recipes with these texts change the outputs on purpose.
EDITS = (
    *("rename_op", "rename_attribute", "remove_attribute"),
    *("op=Relu", "op=Mul", "op=Add", 'op="*"', "op=Split"),
)
NETWORKS = (
    "random/",
    *(f"quirk/{kind}/" for kind in ("remove", "merge", "factors", "norms", "joined_norms")),
    *(f"quirk/{kind}/" for kind in ("eight_bit", "trained_ranges", "constants", "shapes")),
)
# Seed of the inputs on which outputs are compared.
SEED = 3


def is_recorded(case: ClassicCase) -> bool:
    """Return True if the original ran exactly this case."""
    return RESULTS.get(case.name, {}).get("digest") == case.digest


def find_difference(case: ClassicCase) -> str:
    """Return the difference between classic mode and the result of the original, or an empty string."""
    expected = {key: value for key, value in RESULTS[case.name].items() if key != "digest"}
    actual = case.run()
    names = [node[0] for node in expected.get("nodes", ())]
    if "died" in expected:
        message = "the original never ends" if expected["died"] == "it never ends" else "the original crashes"
    elif len(set(names)) < len(names):
        message = "two nodes are named"  # duplicate names cannot be loaded
    else:
        return first_difference(actual, expected)
    return "" if actual.get("error", "").startswith(message) else f"{actual} instead of the error {message!r}"


def test_classic_mode_equals_the_original() -> None:
    differences = {
        str(case): difference for case in classic_cases() if is_recorded(case) and (difference := find_difference(case))
    }
    assert not differences, "\n\n".join(f"{case}\n{difference}" for case, difference in differences.items())


def test_the_original_has_run_every_case() -> None:
    names = [case.name for case in classic_cases() if not is_recorded(case)]
    assert [name for name in names if not name.startswith("golden/")] == []
    if names:
        pytest.skip(f"golden files newer than the results of the original: {', '.join(names)}")


def test_hundreds_of_cases_are_compared_with_the_original() -> None:
    compared = [case for case in classic_cases() if is_recorded(case)]
    assert len(compared) >= 900
    assert sum("nodes" in RESULTS[case.name] for case in compared) >= 700
    assert sum("error" in RESULTS[case.name] for case in compared) >= 150
    assert sum(case.name.startswith("random/") for case in compared) >= 200


def keeps_outputs(case: ClassicCase) -> bool:
    """Return True for a network whose recipe keeps its outputs; golden cases are tested elsewhere."""
    return case.name.startswith(NETWORKS) and not any(text in case.transforms for text in EDITS)


def random_feeds(inputs: tuple[TensorInfo, ...]) -> list[dict[str, Array]]:
    """Return random values for the inputs of one run; an input of unknown shape gets a vector of two."""
    random = np.random.default_rng(SEED)
    feeds = {}
    for info in inputs:
        sizes = (2,) if info.shape.dims is None else tuple(size or 1 for size in info.shape.dims)
        feeds[info.name] = random.uniform(-1, 1, sizes).astype(info.dtype.numpy)
    return [feeds]


def num_compared_steps(case: ClassicCase) -> int:
    """Run quantkit's own transforms on a case, and compare the outputs before and after each step.

    Returns:
        Number of compared steps; 0 if quantkit rejects the call or cannot run the graph.

    Raises:
        CheckError: a step changes the outputs.
    """
    try:
        graph = case.graph.with_endpoints(names_of(case.inputs), names_of(case.outputs))
        verify(graph)
        recipe = parse(case.transforms)
    except QuantkitError:
        return 0
    verifier = Verifier(find_runtime("reference").open, feeder=random_feeds)
    steps = 0

    def check(before: Graph, after: Graph, transform: Transform) -> str:
        nonlocal steps
        result = verifier(before, after, transform)
        steps += 1
        return result

    with np.errstate(all="ignore"):
        try:
            verifier(graph, graph, find_transform("remove_device"))
        except (QuantkitError, ValueError, KeyError):
            return 0
        with contextlib.suppress(GraphError, RecipeError):
            run(recipe, graph, check=check)
    return steps


def test_outputs_stay_without_classic_mode() -> None:
    compared, wrong = 0, []
    for case in filter(keeps_outputs, classic_cases()):
        try:
            compared += num_compared_steps(case) > 0
        except CheckError as error:
            wrong.append(f"{case}\n{error}")
    assert not wrong, "\n\n".join(wrong)
    assert compared >= 350
