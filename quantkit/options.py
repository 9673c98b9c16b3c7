"""Options of verbs, each declared once: type, default value, check, documentation and flag.

    @dataclass(frozen=True)
    class SearchOptions(LoadingOptions):
        model: Annotated[Any, Declaration(doc="model, graph, path or card name")]
        _: KW_ONLY
        max_drop: float | None = option(None, require_fraction, help="largest drop, a fraction")

    @public
    @takes(SearchOptions)
    def search(options: SearchOptions) -> Result: ...

A call ``search("m.onnx", max_drop=0.01)`` checks the value. Signature and documentation of ``search`` list all fields,
and type checkers check calls: the parameters are those of the constructor. Each field with a help text has a flag on
the command line. Base classes are groups that several verbs share.
"""

import re
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import wraps
from inspect import Parameter, Signature, cleandoc
from textwrap import wrap
from typing import Any, NamedTuple, ParamSpec, TypeVar

from quantkit.arguments import require_choice, require_flag, require_path

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")
T = TypeVar("T")
WIDTH = 116
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")


@dataclass(frozen=True)
class Declaration:
    """Declaration of an option, next to its type and default value.

    Attributes:
        check: function that raises `UsageError` for ``check(name=value)`` with a wrong value (default: of the choices,
            or of True and False). None passes if it is the default value.
        help: help text of the flag; empty for an option without a flag.
        doc: text of the Python documentation (default: the help text).
        choices: all values, for the flag.
        metavar: name of the value in the help of the flag, or a function that returns it.
        is_required: True if the command line requires the flag; one without a default value is required anyway.
        convert: function from a checked value to the field.
    """

    check: Callable[..., object] | None = None
    help: str = ""
    doc: str = ""
    choices: Iterable[Any] = ()
    metavar: str | Callable[[], str] = ""
    is_required: bool = False
    convert: Callable[[Any], Any] | None = None


def option(default: T, *arguments: Any, **keywords: Any) -> T:
    """Return the field of an option with a default value.

    Args:
        default: default value.
        arguments, keywords: those of `Declaration`; or a `Declaration` that several classes share, and its changes.
    """
    shared = bool(arguments) and isinstance(arguments[0], Declaration)
    metadata = {"option": replace(arguments[0], **keywords) if shared else Declaration(*arguments, **keywords)}
    declared: T = field(default=default, metadata=metadata)
    return declared


class DeclaredOption(NamedTuple):
    """Field of a class of options, with its type without the option; `MISSING` stands for no default value."""

    name: str
    type: Any
    default: Any
    is_keyword: bool
    option: Declaration

    def parse(self, value: Any) -> Any:
        """Return the checked value of the field.

        Raises:
            UsageError: the value is not allowed.
        """
        option = self.option
        if value is None and self.default is None:
            return None
        if option.check is not None:
            option.check(**{self.name: value})
        elif option.choices:
            require_choice(option.choices, **{self.name: value})
        elif self.type is bool:
            require_flag(**{self.name: value})
        return value if option.convert is None else option.convert(value)


def declarations(options: Any) -> Iterator[DeclaredOption]:
    """Yield the options of a class: its own, then those of its groups, which keep their positions if they differ."""
    types, by_name = typing.get_type_hints(options), {each.name: each for each in fields(options)}
    names = [name for base in options.__mro__ for name in vars(base).get("__annotations__", ())]
    for name in reversed(dict.fromkeys(reversed(names))):
        if (declared := by_name.get(name)) is not None:
            annotated = next(iter(getattr(declared.type, "__metadata__", ())), Declaration())
            declaration = declared.metadata.get("option", annotated)
            yield DeclaredOption(name, types[name], declared.default, declared.kw_only is True, declaration)


def takes(options: Callable[P, Options]) -> Callable[[Callable[[Options], Result]], Callable[P, Result]]:
    """Return a decorator of a function of options, which makes each option an argument.

    Args:
        options: frozen dataclass, whose fields with a `Declaration` are checked and documented.
    """
    constructor: Any = options
    declared = {each.name: each for each in declarations(options)}
    parameters = [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY if each.is_keyword else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if each.default is MISSING else each.default,
            annotation=each.type,
        )
        for each in declared.values()
    ]
    parameters.sort(key=lambda parameter: parameter.kind)
    signature = Signature(parameters)

    def decorate(function: Callable[[Options], Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> Result:
            try:
                values = signature.bind(*arguments, **keywords).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(constructor(**{name: declared[name].parse(value) for name, value in values.items()}))

        result = function.__annotations__["return"]
        call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.type for each in declared.values()} | {"return": result}
        call.__doc__ = _with_arguments(function.__doc__ or "", declared.values())
        return call

    return decorate


def names_of(*groups: type) -> tuple[str, ...]:
    """Return the names of the options of groups."""
    return tuple(each.name for group in groups for each in declarations(group))


def values_of(group: type, options: Any) -> dict[str, Any]:
    """Return the values of the options of a group by name.

    Args:
        group: class of options.
        options: options of a class with the same fields.
    """
    return {name: getattr(options, name) for name in names_of(group)}


def path_or(*types: Any) -> Callable[..., None]:
    """Return the check of a path, or of an object in place of its file."""

    def check(**arguments: Any) -> None:
        require_path(**{name: value for name, value in arguments.items() if not isinstance(value, types)})

    return check


def _with_arguments(documentation: str, declared: Iterable[DeclaredOption]) -> str:
    """Return a docstring with a section for arguments, before the sections about results and errors."""
    lines = ["Args:"]
    for each in declared:
        text = each.option.doc or _FLAG.sub(lambda flag: f"``{flag[1].replace('-', '_')}``", each.option.help)
        entry = f"{each.name}: {text}."
        lines += wrap(entry, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
    text, *sections = re.split(r"^(?=Returns:|Raises:)", cleandoc(documentation), maxsplit=1, flags=re.MULTILINE)
    return "\n\n".join((text.rstrip(), "\n".join(lines), *sections))
