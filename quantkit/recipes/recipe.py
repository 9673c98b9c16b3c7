"""A recipe: an ordered list of transforms as a value, and its parser."""

from dataclasses import dataclass, field

from quantkit.arguments import public
from quantkit.errors import RecipeError
from quantkit.recipes.grammar import Step, parse_steps, point_at
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.registry import OptionError, Transform

IGNORE_ERRORS = "ignore_errors"


@dataclass(frozen=True)
class Recipe:
    """Steps in order; ``str(recipe)`` is the transforms string, and ``parse(str(recipe)) == recipe``.

    Attributes:
        steps: transforms with their options.
        inputs: input names of the model that the recipe is for; empty for those of the graph.
        outputs: output names, likewise.
        name: name for ``--recipe``; empty for a recipe without a name.
        purpose: one line about the result of the recipe.
    """

    steps: tuple[Step, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    name: str = field(default="", compare=False)
    purpose: str = field(default="", compare=False)

    def __str__(self) -> str:
        return " ".join(map(str, self.steps))


@public
def parse(text: str) -> Recipe:
    """Parse a transforms string; names and options are looked up at once.

    Raises:
        RecipeError: wrong grammar, an unknown transform or option, an unreadable value, or no transform at all.
    """
    recipe = Recipe(parse_steps(text))
    if not recipe.steps:
        raise RecipeError("You must specify at least one transform.", hint="quantkit transforms list shows all")
    for step in recipe.steps:
        try:
            read_options(step)
        except RecipeError as error:
            option = error.option if isinstance(error, OptionError) else ""
            column = step.positions.get(option, step.positions[""])
            raise RecipeError(point_at(error.message, text, column), error.hint) from None
    return recipe


def read_options(step: Step) -> tuple[Transform, bool]:
    """Return the transform of a step, and True if its errors are ignored.

    Raises:
        RecipeError: the transform or an option is unknown, or a value cannot be read.
    """
    transform = find_transform(step.name)
    texts = dict(step.options)
    ignore = "".join(texts.pop(IGNORE_ERRORS, ("false",))[:1]).lower()
    if ignore not in ("true", "false"):
        raise OptionError(
            f"{step.name}: ignore_errors should be true or false, found {ignore}",
            hint=f"write {step.name}(ignore_errors=true)",
            option=IGNORE_ERRORS,
        )
    transform.parse_options(texts)
    return transform, ignore == "true"
