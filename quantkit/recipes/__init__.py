"""The order of transforms: a recipe as text and as a value, and running it."""

from quantkit.recipes.driver import run, transform
from quantkit.recipes.grammar import Step
from quantkit.recipes.recipe import Recipe, parse
from quantkit.recipes.trace import Record, Trace

__all__ = ["Recipe", "Record", "Step", "Trace", "parse", "run", "transform"]
