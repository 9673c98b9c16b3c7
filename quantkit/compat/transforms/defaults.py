"""Attributes with default values."""

from collections.abc import Sequence

from quantkit.compat.transforms.nodes import NodeDef
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.functions import Library
from quantkit.ir.graph import Attr, Graph
from quantkit.ops.tensorflow.signatures import OpDef, find_op

# Attributes added to ops after TensorFlow 2.12, the last release with the original.
LATER = frozenset(
    {
        *(f"{op}.{key}" for op in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3") for key in ("grad_x", "grad_y")),
        *(
            "MatMul.grad_a",
            "MatMul.grad_b",
            "TopKV2.index_type",
            "TopKV2.Tk",
            "ConcatOffset.shape_type",
        ),
        *("GatherNd.bad_indices_policy", "ScatterNd.bad_indices_policy", "VarHandleOp.debug_name"),
        *(f"SparseSegment{kind}.sparse_gradient" for kind in ("Mean", "Sum", "SqrtN")),
        *(f"SparseSegment{kind}WithNumSegments.sparse_gradient" for kind in ("Mean", "Sum", "SqrtN")),
        *(f"TensorScatter{kind}.bad_indices_policy" for kind in ("Add", "Max", "Min", "Sub", "Update")),
    }
)


@classic_transform(keeps_versions=True)
def add_default_attributes(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Add the default values of missing attributes."""
    return [with_defaults(node, context.library) for node in nodes]


def with_defaults(node: NodeDef, library: Library[Graph]) -> NodeDef:
    """Return the node with the default values of its missing attributes.

    Raises:
        GraphError: the op type is neither TensorFlow's nor a function of the library.
    """
    if node.op in library:
        return node
    op = op_of(node)
    missing: dict[str, Attr] = {
        name: attr.default
        for name, attr in op.attrs.items()
        if attr.default is not None and name not in node.attrs and f"{node.op}.{name}" not in LATER
    }
    return node.with_attrs(**missing) if missing else node


def op_of(node: NodeDef) -> OpDef:
    """Return the signature of the node's op.

    Raises:
        GraphError: the op type is not TensorFlow's. The original appended the host name to this
            message.
    """
    op = find_op(node.op)
    if op is None:
        raise GraphError(
            f"Op type not registered '{node.op}' in binary",
            hint=f"omit add_default_attributes: node {node.name!r} has this op type",
        )
    return op
