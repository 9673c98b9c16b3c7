"""Recipes: ordered lists of transforms, as text and as values, and the verb that applies them."""

from quantkit.recipes.driver import as_recipe, rewrite, run
from quantkit.recipes.grammar import Step
from quantkit.recipes.recipe import Recipe, parse
from quantkit.recipes.trace import Record, Trace
from quantkit.recipes.workflow import transform

__all__ = ["Recipe", "Record", "Step", "Trace", "as_recipe", "parse", "rewrite", "run", "transform"]
