"""Faults of a quantized file, of any tool, in the runtimes of a target, and its layers after a compilation."""

from dataclasses import asdict, dataclass
from typing import Any

# Values of `Finding.effect`, the gravest first.
REFUSED, WRONG, SLOW = "refused", "wrong values", "slow"
EFFECTS = (REFUSED, WRONG, SLOW)


@dataclass(frozen=True)
class Finding:
    """Node that the runtimes of a target refuse, compute with wrong values, or do not compute as one int8 kernel.

    Attributes:
        kind: identifier of the rule, such as ``zero_point``.
        effect: `REFUSED`, `WRONG` or `SLOW`.
        node: name of the node.
        op: its op type.
        reason: description of the fault.
        fix: change that removes the fault.
    """

    kind: str
    effect: str
    node: str
    op: str
    reason: str
    fix: str

    def to_json(self) -> dict[str, str]:
        """Return plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.node} ({self.op}): {self.reason}; {self.fix}"


@dataclass(frozen=True)
class Build:
    """Compilation of a quantized file.

    Attributes:
        compiler: name and version of the compiler.
        problem: message of the compiler that refused the file; empty for a compiled file.
        planned: layers of the file with int8 operands.
        kernels: layers that int8 kernels compute.
        num_layers: number of layers of the file.
    """

    compiler: str
    problem: str
    planned: frozenset[str]
    kernels: frozenset[str]
    num_layers: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "compiler": self.compiler,
            "problem": self.problem or None,
            "layers": self.num_layers,
            "planned": len(self.planned),
            "int8_kernels": len(self.planned & self.kernels),
            "not_int8": sorted(self.planned - self.kernels),
            "not_planned": sorted(self.kernels - self.planned),
        }

    def __str__(self) -> str:
        if self.problem:
            return f"refused by {self.compiler}: {self.problem}"
        count = f"{len(self.planned & self.kernels)} of {len(self.planned)} int8 layers are int8 kernels"
        others = sorted(self.planned ^ self.kernels)
        return f"built by {self.compiler}: {count}" + (f"; different: {', '.join(others)}" if others else "")
