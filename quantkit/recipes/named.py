"""Recipes by name, and recipes in files.

A recipe file is TOML: a list of steps, each with its transform and its options, and, where the recipe is for one model,
what is fed and what is asked for.

    inputs = ["Mul"]
    outputs = ["softmax"]

    [[step]]
    transform = "remove_nodes"
    op = ["Identity", "CheckNumerics"]
"""

import os
import re
from pathlib import Path
from typing import Any

from quantkit.errors import RecipeError, did_you_mean
from quantkit.formats.documents import read_toml
from quantkit.recipes.grammar import Step
from quantkit.recipes.recipe import Recipe, parse, read_options
from quantkit.transforms.registry import REGISTRY

CLEAN = "strip_unused_nodes remove_nodes(op=Identity, op=CheckNumerics, op=StopGradient) fold_constants"
FOLD = "fold_batch_norms fold_old_batch_norms"
PASSING = "op=Identity, op=IdentityN, op=CheckNumerics, op=StopGradient"
MODERN = (
    "strip_unused_nodes inline_functions remove_dead_branches remove_dropout "
    f"remove_nodes({PASSING}) fold_constants simplify_arithmetic fold_constants"
)
# What engines then fuse with the layer before it.
FUSE = "fold_pads fold_clamps fold_biases"
TIDY = "strip_unused_nodes sort_by_execution_order"

# What a recipe is for, and its steps.
NAMED = {
    "inference": f"{MODERN} {FOLD} {FUSE} merge_duplicate_nodes "
    f"remove_unused_functions clean_functions({PASSING}) remove_unused_functions ensure_input_shapes {TIDY}",
    "deploy": f"{CLEAN} {FOLD}",
    "shrink": f"{CLEAN} {FOLD} quantize_weights {TIDY}",
    "eight_bit": f"add_default_attributes {CLEAN} {FOLD} quantize_weights quantize_nodes {TIDY}",
    "mobile": f"{CLEAN} {FOLD} {FUSE} merge_duplicate_nodes quantize_weights obfuscate_names {TIDY}",
}
PURPOSES = {
    "inference": "everything that makes a graph smaller and faster and keeps its answers",
    "deploy": "the classic cleaning and folding, no more",
    "shrink": "the same, and weights as 8-bit codes: a quarter of the size, decoded when the graph runs",
    "eight_bit": "the classic 8-bit ops, with ranges computed in each run; quantkit quantize makes faster ones",
    "mobile": "for an app's bundle: folded, weights as 8-bit codes, short names that tell nothing; "
    "quantkit quantize --target litert makes what a phone's 8-bit kernels run",
}
KEYS = ("inputs", "outputs", "step")

FORM = 'write [[step]], and transform = "remove_nodes" below it'


def find_recipe(word: str) -> Recipe:
    """The recipe of a name, or of a TOML file.

    Raises:
        RecipeError: no recipe has that name, or the file lists no valid steps.
        InputError: the file can not be read.
    """
    if word in NAMED:
        return parse(NAMED[word])
    if Path(word).suffix == ".toml" or os.sep in word:
        return read_recipe(Path(word))
    if re.split(r"[\s(]", word.strip())[0] in REGISTRY:
        raise RecipeError(f"no recipe is named {word!r}", hint="those are transforms: give them with --transforms")
    raise RecipeError(
        f"no recipe is named {word!r}",
        hint=did_you_mean(word, NAMED) or f"the recipes are {', '.join(NAMED)}; a file ends in .toml",
    )


def read_recipe(path: Path) -> Recipe:
    """The recipe of a TOML file.

    Raises:
        InputError: the file can not be read or is no TOML.
        RecipeError: it lists no steps, says what no recipe says, or a step is wrong.
    """
    document = read_toml(path, FORM)
    steps = document.get("step")
    if not isinstance(steps, list) or not steps:
        raise RecipeError(f"{path} lists no steps", hint=FORM)
    for key in document:
        if key not in KEYS:
            raise RecipeError(f"{path} says {key!r}, which no recipe does", hint=did_you_mean(key, KEYS) or FORM)
    recipe = Recipe(
        tuple(_step(fields, path, number) for number, fields in enumerate(steps, start=1)),
        _names(document, "inputs", path),
        _names(document, "outputs", path),
    )
    for number, step in enumerate(recipe.steps, start=1):
        try:
            read_options(step)
        except RecipeError as error:
            raise RecipeError(f"{path}: step {number}: {error.message}", error.hint) from None
    return recipe


def _step(fields: Any, path: Path, number: int) -> Step:
    if not isinstance(fields, dict) or not isinstance(fields.get("transform"), str):
        raise RecipeError(f"{path}: step {number} names no transform", hint='write transform = "fold_constants"')
    options = {}
    for key, value in fields.items():
        if key == "transform":
            continue
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict | list) for item in items):
            raise RecipeError(
                f"{path}: step {number}: {key} is no value, nor a list of values", hint=f'write {key} = "..."'
            )
        words = tuple(_word(item) for item in items)
        options[key] = (",".join(words),) if _are_sizes(fields["transform"], key, items) else words
    return Step(fields["transform"], options)


def _are_sizes(transform: str, key: str, items: list[Any]) -> bool:
    """Whether a list of numbers is the one text of an option: ``shape = [1, 299, 299, 3]``."""
    if transform not in REGISTRY or key not in REGISTRY[transform].options:
        return False
    option = REGISTRY[transform].options[key]
    return option.kind is str and not option.is_list and all(type(item) is int for item in items)


def _names(document: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    names = document.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{path}: {key} is no list of names", hint=f'write {key} = ["Mul"]')
    return tuple(names)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
