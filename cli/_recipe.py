"""The recipe that the flags of ``quantkit transform`` ask for, as far as it suits the model."""

from argparse import Namespace
from dataclasses import replace

from quantkit.errors import RecipeError, UsageError
from quantkit.ir.graph import Graph
from quantkit.model import Model
from quantkit.recipes import Recipe, parse
from quantkit.recipes.named import find_recipe, named_recipes
from quantkit.transforms.registry import REGISTRY, find_transform, names_for

from ._render import log

# What makes the constants that the outputs need take less room.
SHRINKING = frozenset({"convert_precision", "extract_subgraph", "quantize_nodes", "quantize_weights"})


def chosen_recipe(args: Namespace, *, converts: bool) -> Recipe:
    """The recipe of ``--recipe`` or ``--transforms``.

    Args:
        args: of the command.
        converts: whether writing what was read is work enough, so that no recipe is one of no steps.

    Raises:
        UsageError: both flags are given.
        RecipeError: neither is, or it can not be read.
        InputError: its file can not be read.
    """
    if args.transforms is not None and args.recipe:
        raise UsageError("--transforms and --recipe name two recipes", hint="give one of them")
    if converts and args.transforms is None and not args.recipe:
        return Recipe(())
    if not args.transforms and not args.recipe:
        raise RecipeError(
            "You must specify at least one transform.",
            hint="--recipe inference is a good first recipe; quantkit transforms list names all for --transforms",
        )
    if args.recipe:
        return find_recipe(args.recipe)
    try:
        if not args.classic and args.transforms.strip() in named_recipes():
            name = args.transforms.strip()
            raise RecipeError(f"{name} is a recipe, not a transform", hint=f"give it as --recipe {name}")
        recipe = _parsed(args.transforms, classic=args.classic)
    except RecipeError as error:
        if args.classic:
            error.message = f"Failed to parse --transform argument, error was {error.message}"
        raise
    if not recipe.steps:
        raise RecipeError("You must specify at least one transform.", hint="quantkit transforms list names them all")
    return recipe


def _parsed(text: str, *, classic: bool) -> Recipe:
    if not classic:
        return parse(text)
    from quantkit.compat import parse_classic

    return parse_classic(text)


def suited(args: Namespace, recipe: Recipe, model: Model, graph: Graph) -> Recipe:
    """The recipe as this graph of the model takes it."""
    return _shaped(_known(args, recipe, graph), model, graph)


def may_shrink(recipe: Recipe) -> bool:
    """Whether weights may take less room afterwards; what plugins do is not known."""
    names = {step.name for step in recipe.steps if step.name in REGISTRY}
    return any(name in SHRINKING or not find_transform(name).is_built_in for name in names)


def _known(args: Namespace, recipe: Recipe, graph: Graph) -> Recipe:
    """A named recipe without the steps that do not know such graphs; one that was written out stays as it is."""
    known = names_for(graph.dialect)
    left_out = [step.name for step in recipe.steps if step.name not in known]
    if not recipe.name or not left_out:
        return recipe
    log(args, f"left out of {args.recipe}: {', '.join(left_out)}: they do not rewrite graphs of {graph.dialect}")
    return replace(recipe, steps=tuple(step for step in recipe.steps if step.name in known))


def _shaped(recipe: Recipe, model: Model, graph: Graph) -> Recipe:
    """The recipe whose strip_unused_nodes knows the card's type and shape of the input, which may be cut free by it."""
    if model.card is None or len(model.card.inputs) != 1:
        return recipe
    card_input = model.card.inputs[0]
    if graph.inputs != graph.with_endpoints([card_input.name], None).inputs:
        return recipe
    shape = {"type": (card_input.dtype.value,), "shape": (",".join(map(str, card_input.shape)),)}
    steps = (
        replace(step, options={**shape, **step.options}) if step.name == "strip_unused_nodes" else step
        for step in recipe.steps
    )
    return replace(recipe, steps=tuple(steps))
