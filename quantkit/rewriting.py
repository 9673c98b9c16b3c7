"""Public names for rules and transforms of your own.

A rule is a pattern and a function of the nodes that the pattern binds; `transform` registers it by its name for
recipes, ``--explain``, ``--verify`` and ``quantkit transforms``:

    @transform
    @rule(op("Mul")(op("MatMul", "layer")(any_("x"), const("weights")), const("factor")))
    def fold_factor(graph: Graph, root: Node, layer: Node, weights: Node, factor: Node) -> list[Node] | Skip: ...

The guide ``assets/guides/write-a-transform.md`` builds a transform and a rule step by step.
"""

from quantkit.errors import CheckError, GraphError, QuantkitError, RecipeError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, Use, constant
from quantkit.ir.pattern import Pattern, any_, commutative, const, op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name, rule, sharing_reason
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ir.text import from_text, to_text
from quantkit.ops.shape_inference import infer_shapes
from quantkit.transforms.registry import Transform, transform

__all__ = [
    "Array",
    "CheckError",
    "DType",
    "Draft",
    "Edge",
    "Graph",
    "GraphError",
    "Node",
    "Outcome",
    "Pattern",
    "QuantkitError",
    "RecipeError",
    "Rule",
    "Shape",
    "Skip",
    "Tensor",
    "Transform",
    "Use",
    "any_",
    "apply_rules",
    "commutative",
    "const",
    "constant",
    "free_name",
    "from_text",
    "infer_shapes",
    "op",
    "rule",
    "sharing_reason",
    "to_text",
    "transform",
]
