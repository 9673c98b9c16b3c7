"""Recipes by name, and recipes in files.

A recipe file is TOML: a list of steps, each with its transform and its options; optionally a purpose, and for a recipe
of one model its inputs and outputs.

    purpose = "prepare the 2015 network"
    inputs = ["Mul"]
    outputs = ["softmax"]

    [[step]]
    transform = "remove_nodes"
    op = ["Identity", "CheckNumerics"]

An installed distribution registers a recipe by an entry point of the group ``quantkit.recipes``; its value is a
`Recipe`, a transforms string, or the path of a recipe file (``importlib.resources.files("my_package") / "my.toml"``).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.errors import RecipeError, did_you_mean
from quantkit.formats.documents import read_toml
from quantkit.recipes.grammar import Step
from quantkit.recipes.recipe import Recipe, parse, read_options
from quantkit.registry import Registry
from quantkit.transforms.registry import REGISTRY

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CLEAN = "strip_unused_nodes remove_nodes(op=Identity, op=CheckNumerics, op=StopGradient) fold_constants"
FOLD = "fold_batch_norms fold_old_batch_norms"
NO_OPS = "op=Identity, op=IdentityN, op=CheckNumerics, op=StopGradient"
MODERN = (
    "strip_unused_nodes inline_functions remove_dead_branches remove_dropout "
    f"remove_nodes({NO_OPS}) fold_constants simplify_arithmetic fold_constants"
)
# Ops that runtimes then fuse with the layer before them.
FUSE = "fold_pads fold_clamps fold_biases"
TIDY = "strip_unused_nodes sort_by_execution_order"

# Purpose and steps of the built-in recipes.
RECIPES = {
    name: replace(parse(steps), name=name, purpose=purpose)
    for name, purpose, steps in (
        (
            "inference",
            "make the graph smaller and faster without changing its outputs",
            f"{MODERN} {FOLD} {FUSE} merge_duplicate_nodes fuse_activations_and_norms "
            f"remove_unused_functions clean_functions({NO_OPS}) remove_unused_functions ensure_input_shapes "
            f"remove_metadata {TIDY}",
        ),
        ("deploy", "remove unused nodes and no-ops, fold constants and batch norms", f"{CLEAN} {FOLD}"),
        (
            "shrink",
            "like deploy, with weights stored as 8-bit quantized values: a quarter of the size",
            f"{CLEAN} {FOLD} quantize_weights {TIDY}",
        ),
        (
            "eight_bit",
            "use the classic 8-bit ops, with ranges computed at run time; quantkit quantize is faster",
            f"add_default_attributes {CLEAN} {FOLD} quantize_weights quantize_nodes {TIDY}",
        ),
        (
            "mobile",
            "for an app bundle: like shrink, with short node names; "
            "for the 8-bit kernels of phones use quantkit quantize --target litert",
            f"{CLEAN} {FOLD} {FUSE} merge_duplicate_nodes quantize_weights obfuscate_names {TIDY}",
        ),
    )
}
KEYS = ("inputs", "outputs", "purpose", "step")

USAGE = 'write [[step]], and transform = "remove_nodes" below it'


class RecipeRegistry(Registry[Recipe]):
    """Registry of recipes; an entry point may also be a transforms string or the path of a recipe file."""

    def _load(self, entry: "EntryPoint") -> Recipe:
        value = entry.load()
        if isinstance(value, str):
            value = parse(value)
        elif isinstance(value, Traversable) and not isinstance(value, Recipe):
            value = read_recipe(Path(str(value)))
        if not isinstance(value, Recipe):
            raise RecipeError(f"the value is of type {type(value).__name__}, not Recipe, str or Path")
        owner = f" of the package {entry.dist.name}" if entry.dist else ""
        return replace(value, name=value.name or entry.name, purpose=value.purpose or f"recipe{owner}")


RECIPE_REGISTRY = RecipeRegistry("recipe", Recipe, RECIPES.values())


def named_recipes() -> Mapping[str, Recipe]:
    """Return all recipes by name: the built-in ones, then those of installed distributions."""
    return RECIPE_REGISTRY.objects()


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a name, or of a TOML file.

    Args:
        name: name of a recipe, or path of a file that ends in ``.toml``.

    Raises:
        RecipeError: no recipe has that name, or the file lists no valid steps.
        InputError: the file cannot be read.
    """
    if name in RECIPES:
        return RECIPES[name]
    if Path(name).suffix == ".toml" or os.sep in name:
        return read_recipe(Path(name))
    recipes = named_recipes()
    if name in recipes:
        return recipes[name]
    if re.split(r"[\s(]", name.strip())[0] in REGISTRY:
        raise RecipeError(f"no recipe is named {name!r}", hint="to apply transforms, use --transforms")
    problems = RECIPE_REGISTRY.problems()
    raise RecipeError(
        f"no recipe is named {name!r}",
        hint=did_you_mean(name, recipes)
        or (problems[0] if problems else f"the recipes are {', '.join(recipes)}; a file ends in .toml"),
    )


def parse_transforms(text: str) -> Recipe:
    """Return the recipe of a transforms string.

    Raises:
        RecipeError: the string cannot be parsed, or is the name of a recipe.
    """
    name = text.strip()
    if name in named_recipes():
        raise RecipeError(f"{name} is a recipe, not a transform", hint=f"give it as --recipe {name}")
    return parse(text)


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of a TOML file.

    Raises:
        InputError: the file cannot be read or is not TOML.
        RecipeError: the file has no steps or an unknown key, or a step is wrong.
    """
    document = read_toml(path, USAGE)
    steps = document.get("step")
    if not isinstance(steps, list) or not steps:
        raise RecipeError(f"{path} contains no steps", hint=USAGE)
    for key in document:
        if key not in KEYS:
            raise RecipeError(f"{path} has the unknown key {key!r}", hint=did_you_mean(key, KEYS) or USAGE)
    recipe = Recipe(
        tuple(_step(fields, path, number) for number, fields in enumerate(steps, start=1)),
        _names(document, "inputs", path),
        _names(document, "outputs", path),
        purpose=str(document.get("purpose", "")),
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
                f"{path}: step {number}: {key} is neither a value nor a list of values", hint=f'write {key} = "..."'
            )
        texts = tuple(_text(item) for item in items)
        options[key] = (",".join(texts),) if _are_sizes(fields["transform"], key, items) else texts
    return Step(fields["transform"], options)


def _are_sizes(transform: str, key: str, items: list[Any]) -> bool:
    """Return True if a list of integers is the single text of an option: ``shape = [1, 299, 299, 3]``."""
    if transform not in REGISTRY or key not in REGISTRY[transform].options:
        return False
    option = REGISTRY[transform].options[key]
    return option.kind is str and not option.is_list and all(type(item) is int for item in items)


def _names(document: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    names = document.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{path}: {key} is not a list of names", hint=f'write {key} = ["Mul"]')
    return tuple(names)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
