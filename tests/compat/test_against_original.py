"""Classic mode against the recorded answers of the original tool, and our own transforms against the truth."""

import contextlib

import numpy as np
import pytest
from classic_cases import ClassicCase, first_difference, names_of, recorded_answers
from classic_graphs import classic_cases

from quantkit.errors import GraphError, QuantkitError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.tensor import Array
from quantkit.recipes import parse, run
from quantkit.recipes.verify import Verifier
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import TensorInfo
from quantkit.transforms import registry

ANSWERS = recorded_answers()
# They change what a graph computes, as they are told to.
EDITS = ("rename_op", "rename_attribute", "remove_attribute", "op=Relu", "op=Mul", "op=Add", 'op="*"', "op=Split")
NETWORKS = (
    "random/",
    *(f"quirk/{kind}/" for kind in ("remove", "merge", "factors", "norms", "joined_norms")),
    *(f"quirk/{kind}/" for kind in ("eight_bit", "trained_ranges", "constants", "shapes")),
)
# The seed of the inputs on which answers are compared.
SEED = 3


@pytest.mark.parametrize("case", classic_cases(), ids=lambda case: case.name)
def test_classic_mode_does_what_the_original_did(case: ClassicCase) -> None:
    recorded = ANSWERS.get(case.name)
    if recorded is None or recorded["digest"] != case.digest:
        anew = f"record it with python tests/compat/record_answers.py PYTHON {case.name}"
        if case.name.startswith("golden/"):
            pytest.skip(f"the golden file is newer than the original's answer; {anew}")
        pytest.fail(f"the original was not asked this; {anew}")
    wanted = {key: value for key, value in recorded.items() if key != "digest"}
    found = case.answer()
    names = [node[0] for node in wanted.get("nodes", ())]
    if "died" in wanted:
        sentence = "the original never ends" if wanted["died"] == "it never ends" else "the original crashes"
        assert found["error"].startswith(sentence)
    elif len(set(names)) < len(names):
        assert found["error"].startswith("two nodes are named"), "nobody could load what the original made"
    else:
        assert not first_difference(found, wanted), f"{case}\n{first_difference(found, wanted)}"


def test_enough_is_compared() -> None:
    compared = [case for case in classic_cases() if case.name in ANSWERS]
    assert len(compared) >= 700
    assert sum("nodes" in ANSWERS[case.name] for case in compared) >= 550
    assert sum(case.name.startswith("random/") for case in compared) >= 200


def has_answers_to_keep(case: ClassicCase) -> bool:
    """Whether a case is a network whose answers its recipe should keep; golden ones are compared elsewhere."""
    return case.name.startswith(NETWORKS) and not any(word in case.transforms for word in EDITS)


def feeds_of(inputs: tuple[TensorInfo, ...]) -> dict[str, Array]:
    """Numbers for the inputs; where a shape is not known, a vector of two."""
    random = np.random.default_rng(SEED)
    feeds = {}
    for info in inputs:
        sizes = (2,) if info.shape.dims is None else tuple(size or 1 for size in info.shape.dims)
        feeds[info.name] = random.uniform(-1, 1, sizes).astype(info.dtype.numpy)
    return feeds


KEEPING = [case for case in classic_cases() if has_answers_to_keep(case)]


@pytest.mark.parametrize("case", KEEPING, ids=lambda case: case.name)
def test_without_classic_answers_stay(case: ClassicCase) -> None:
    try:
        graph = case.graph.with_endpoints(names_of(case.inputs), names_of(case.outputs))
        verify(graph)
        recipe = parse(case.transforms)
    except QuantkitError:
        pytest.skip("without classic mode this call is refused")
    try:
        with np.errstate(all="ignore"):
            check = Verifier(find_runtime("reference").open, feeder=feeds_of)
            check(graph, graph, registry.find_transform("remove_device"))
    except (QuantkitError, ValueError, KeyError) as error:
        pytest.skip(f"the reference engine does not run this graph: {error}")
    with np.errstate(all="ignore"), contextlib.suppress(GraphError, RecipeError):
        run(recipe, graph, check=check)  # a CheckError, which says that answers changed, is not suppressed
