"""The order of transforms: a recipe as text and as a value, and running it."""

from quantkit.recipe.driver import run, transform
from quantkit.recipe.grammar import Step
from quantkit.recipe.recipe import Recipe, parse
from quantkit.recipe.trace import Record, Trace

__all__ = ["Recipe", "Record", "Step", "Trace", "parse", "run", "transform"]
