"""The Graph Transform Tool: the verb ``transform`` with the grammar, the transforms and the driver of 2016."""

from functools import partial
from typing import Any

from quantkit.compat.driver import run_classic
from quantkit.compat.grammar import parse_classic
from quantkit.errors import RecipeError
from quantkit.model import Model, as_model
from quantkit.recipes.recipe import Recipe
from quantkit.recipes.workflow import apply_recipe, check_conversion, choose_output

LOAD_OPTIONS = ("signature", "tags", "checkpoint", "random_weights", "offline", "on_progress")


def transform_classic(
    model: Any,
    recipe: Recipe | str | None,
    inputs: str | None = None,
    outputs: str | None = None,
    **options: Any,
) -> Model:
    """Rewrite a model as the 2016 tool did, defects included.

    Args:
        model: see `quantkit.transform`.
        recipe: transforms string in the grammar of the tool, or a recipe; None if the model is only converted.
        inputs, outputs: comma-separated names, which are neither trimmed nor looked up.
        options: further keyword arguments of `quantkit.transform`.

    Raises:
        RecipeError: the string cannot be parsed or has no transforms.
        QuantkitError: see `quantkit.transform`.
    """
    file = choose_output(**options)
    if recipe is None:
        check_conversion(model, options.get("checkpoint"), file)
    steps = parse_steps(recipe) if isinstance(recipe, str) else recipe or Recipe(())
    load_options: dict[str, Any] = {name: options[name] for name in LOAD_OPTIONS if name in options}
    endpoints = [text.split(",") if text else [] for text in (inputs, outputs)]
    runner = partial(run_classic, endpoints=(endpoints[0], endpoints[1]))
    others = {name: value for name, value in options.items() if name not in LOAD_OPTIONS[:-1]}
    return apply_recipe(as_model(model, **load_options), steps, file, runner, **others)


def parse_steps(text: str) -> Recipe:
    """Parse a transforms string, with the error messages of the tool.

    Raises:
        RecipeError: the string cannot be parsed, or has no transforms.
    """
    try:
        recipe = parse_classic(text)
    except RecipeError as error:
        error.message = f"Failed to parse --transform argument, error was {error.message}"
        raise
    if not recipe.steps:
        raise RecipeError(
            "You must specify at least one transform.", hint="run quantkit transforms list to see all names"
        )
    return recipe
