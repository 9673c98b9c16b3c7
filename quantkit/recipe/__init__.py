"""The order of transforms: a recipe as text and as a value, and running it."""

from quantkit.recipe.grammar import Step
from quantkit.recipe.recipe import Recipe, Record, Trace, parse, run, transform

__all__ = ["Recipe", "Record", "Step", "Trace", "parse", "run", "transform"]
