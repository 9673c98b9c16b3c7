"""Reference of the transforms and recipes, from their docstrings, as text and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from quantkit.errors import CheckError
from quantkit.recipes.contract import PromiseCheck, Status, check_transform
from quantkit.recipes.example import Example, run_examples
from quantkit.recipes.named import named_recipes
from quantkit.recipes.recipe import Recipe
from quantkit.transforms.registry import REGISTRY, Option, Transform

SCHEMA = "quantkit.transforms/2"


@dataclass(frozen=True)
class Overview:
    """All transforms and recipes, with a summary of each.

    Attributes:
        transforms: transforms in the order of their names.
        recipes: named recipes.
    """

    transforms: Sequence[Transform]
    recipes: Sequence[Recipe]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "transforms": [transform.to_json() for transform in self.transforms],
            "recipes": [
                {"name": recipe.name, "purpose": recipe.purpose, "steps": str(recipe)} for recipe in self.recipes
            ],
        }

    def __str__(self) -> str:
        width = max(len(transform.name) for transform in self.transforms)
        lines = []
        for transform in self.transforms:
            summary = next(iter(transform.doc.splitlines()), "")
            lines += _in_columns(transform.name, f"{summary}{'' if transform.is_built_in else ' (plugin)'}", width)
        lines += ["", "Recipes, by --recipe NAME:"]
        for recipe in self.recipes:
            lines += [*_in_columns(recipe.name, recipe.purpose, width), *_in_columns("", f"  {recipe}", width)]
        return "\n".join(lines)


@dataclass(frozen=True)
class TransformPage:
    """Documentation of one transform.

    Attributes:
        transform: the transform.
        examples: examples of its docstring, with the graphs that it returned.
    """

    transform: Transform
    examples: Sequence[Example]

    def to_json(self) -> dict[str, Any]:
        examples = [example.to_json() for example in self.examples]
        return {"schema": SCHEMA, **self.transform.to_json(), "examples": examples}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        transform = self.transform
        yield f"{transform.name}\n"
        yield transform.doc
        for example in self.examples:
            yield "\nExample, run now:\n"
            yield from (f"    {line}".rstrip() for line in str(example).splitlines())
        if not self.examples:
            yield f"\n{transform.name} has no example."
        yield "\nSignature:"
        yield from (f"    {option.name}={_signature(option)}" for option in transform.options.values())
        if not transform.options:
            yield "    no options"
        yield "    ignore_errors=bool, for every transform\n"
        if transform.is_exact:
            yield "The model outputs stay equal up to float32 rounding."
        else:
            yield "The model outputs change by design."


@dataclass(frozen=True)
class ContractReport:
    """Results of the contract checks of transforms.

    Attributes:
        checks: result of each promise, by transform.
    """

    checks: Mapping[str, Sequence[PromiseCheck]]

    def to_json(self) -> dict[str, Any]:
        transforms = [
            {"name": name, "promises": [check.to_json() for check in promises]}
            for name, promises in self.checks.items()
        ]
        return {"schema": SCHEMA, "transforms": transforms}

    def __str__(self) -> str:
        lines = []
        for name, promises in self.checks.items():
            lines.append(name)
            for check in promises:
                lines.append(f"  {check.status.value:<15}{check.promise}")
                if check.reason:
                    lines.append(f"  {'':<15}  {check.reason}")
        return "\n".join(lines)

    def check(self) -> None:
        """Check that no promise is broken, and that each one was exercised.

        Raises:
            CheckError: a transform breaks or does not exercise a promise.
        """
        for status, verb in ((Status.BROKEN, "breaks"), (Status.NOT_EXERCISED, "does not exercise")):
            failures = [
                (name, check) for name, promises in self.checks.items() for check in promises if check.status is status
            ]
            for name, check in failures:
                others = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
                message = f"{name} {verb} the promise {check.promise!r}{others}: {check.reason}"
                raise CheckError(message, hint=check.hint)


def list_transforms() -> Overview:
    """Return the registered transforms and the named recipes."""
    return Overview([REGISTRY[name] for name in sorted(REGISTRY)], list(named_recipes().values()))


def document_transform(transform: Transform) -> TransformPage:
    """Return the documentation of a transform; its examples are run."""
    return TransformPage(transform, run_examples(transform) if transform.examples else ())


def check_transforms(transforms: Sequence[Transform]) -> ContractReport:
    """Check the promises of transforms."""
    return ContractReport({transform.name: check_transform(transform) for transform in transforms})


def _in_columns(name: str, text: str, width: int) -> list[str]:
    """Return a name and a text next to it, in lines of at most 80 characters."""
    return fill(text, 80, initial_indent=f"{name:<{width}}  ", subsequent_indent=" " * (width + 4)).splitlines()


def _signature(option: Option) -> str:
    kind = option.type_text + (", may be repeated" if option.is_list else "")
    if option.is_required:
        return f"{kind}; required"
    return f"{kind}; default {option.default_text}" if option.default_text else kind
