"""A recipe is an ordered list of transforms, as a value and read from text."""

from dataclasses import dataclass

from quantkit.errors import RecipeError
from quantkit.recipes.grammar import Step, parse_steps, pointed
from quantkit.transforms import registry
from quantkit.transforms.registry import OptionError, Transform

IGNORE_ERRORS = "ignore_errors"


@dataclass(frozen=True)
class Recipe:
    """Steps in order; ``str(recipe)`` is the classic string, and ``parse(str(recipe)) == recipe``.

    Attributes:
        steps: transforms with their options.
        inputs, outputs: of the model that the recipe is for; empty: those of the graph. Text has no word for them.
    """

    steps: tuple[Step, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.steps))


def parse(text: str) -> Recipe:
    """Parse a transforms string; names and options are looked up at once.

    Raises:
        RecipeError: bad grammar, an unknown transform or option, an unreadable value, or no transform at all.
    """
    recipe = Recipe(parse_steps(text))
    if not recipe.steps:
        raise RecipeError("You must specify at least one transform.", hint="quantkit transforms list names them all")
    for step in recipe.steps:
        try:
            read_options(step)
        except RecipeError as error:
            option = error.option if isinstance(error, OptionError) else ""
            at = step.places.get(option, step.places[""])
            raise RecipeError(pointed(error.message, text, at), error.hint) from None
    return recipe


def read_options(step: Step) -> tuple[Transform, bool]:
    """The transform of a step, and whether its errors are ignored.

    Raises:
        RecipeError: no such transform or option, or a value that can not be read.
    """
    transform = registry.find_transform(step.name)
    words = dict(step.options)
    ignore = words.pop(IGNORE_ERRORS, ("false",))[0].lower()
    if ignore not in ("true", "false"):
        raise OptionError(
            f"{step.name}: ignore_errors should be true or false, found {ignore}",
            hint=f"write {step.name}(ignore_errors=true)",
            option=IGNORE_ERRORS,
        )
    transform.parse_options(words)
    return transform, ignore == "true"
