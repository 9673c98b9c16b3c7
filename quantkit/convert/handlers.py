"""Conversion of nodes one by one: handlers by op type, and errors that name every node without an equivalent."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from quantkit.errors import UnavailableError
from quantkit.ir.graph import Node
from quantkit.ops.shape_rules import Rules

Translator = TypeVar("Translator")
Handler = Callable[[Translator, Node], None]
# Op type and reason by the name of the node.
Failures = Mapping[str, tuple[str, str]]


class NodeConversionError(UnavailableError):
    """Error for nodes that cannot be converted.

    Attributes:
        dialect: dialect of the conversion's result, for the message.
        failures: op type and reason by the name of the node; empty if a node needs the output of such a node.
    """

    dialect: ClassVar[str]

    def __init__(self, failures: Failures) -> None:
        self.failures = dict(failures)
        super().__init__(_describe(self.failures, self.dialect), hint=self.choose_hint())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures,)

    def choose_hint(self) -> str:
        """Return the hint for the failures."""
        raise NotImplementedError


class Handlers(Rules[Handler[Translator]], Generic[Translator]):
    """Handler of each op type of a conversion.

    Args:
        error: class of the errors of the conversion.
    """

    def __init__(self, error: type[NodeConversionError]) -> None:
        super().__init__()
        self.error = error

    def convert(self, translator: Translator, node: Node) -> Failures | None:
        """Convert a node.

        Returns:
            None for a converted node, else the failures; empty if the node needs the output of such a node.
        """
        handler = self.get(node.op)
        try:
            if handler is None:
                raise self.error({node.name: (node.op, "the op is not supported")})
            handler(translator, node)
        except NodeConversionError as error:
            return error.failures
        except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
            return {node.name: (node.op, f"the node is invalid ({error})")}
        return None


def _describe(failures: Failures, dialect: str) -> str:
    """Return one clause for each op type and reason, with the names of all nodes."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, failure in failures.items():
        names.setdefault(failure, []).append(repr(name))
    clauses = [
        f"{', '.join(nodes)} ({op}) cannot be converted to {dialect}: {reason}" for (op, reason), nodes in names.items()
    ]
    return ("node " if len(failures) == 1 else f"{len(failures)} nodes: ") + "; ".join(clauses)
