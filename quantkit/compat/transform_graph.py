"""The Graph Transform Tool: the verb ``transform`` with the grammar, the transforms and the driver of 2016."""

from functools import partial
from typing import Any

from quantkit.compat.driver import run_classic
from quantkit.compat.grammar import parse_classic
from quantkit.errors import RecipeError
from quantkit.model import Model, as_model
from quantkit.model.options import LoadingOptions
from quantkit.options import values_of
from quantkit.recipes.recipe import Recipe
from quantkit.recipes.workflow import TransformOptions, apply_recipe, check_conversion, choose_output


def transform_classic(
    model: Any,
    recipe: Recipe | str | None,
    inputs: str | None = None,
    outputs: str | None = None,
    **keywords: Any,
) -> Model:
    """Rewrite a model as the 2016 tool did, defects included.

    Args:
        model: see `quantkit.transform`.
        recipe: transforms string in the grammar of the tool, or a recipe; None if the model is only converted.
        inputs, outputs: comma-separated names, which are neither trimmed nor looked up.
        keywords: further keyword arguments of `quantkit.transform`.

    Raises:
        RecipeError: the string cannot be parsed or has no transforms.
        QuantkitError: see `quantkit.transform`.
    """
    options = TransformOptions(model, **keywords)
    file = choose_output(options)
    if recipe is None:
        check_conversion(model, options.checkpoint, file)
    steps = parse_steps(recipe) if isinstance(recipe, str) else recipe or Recipe(())
    endpoints = [text.split(",") if text else [] for text in (inputs, outputs)]
    runner = partial(run_classic, endpoints=(endpoints[0], endpoints[1]))
    loaded = as_model(model, **values_of(LoadingOptions, options), on_progress=options.on_progress)
    return apply_recipe(loaded, steps, options, file, runner)


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
