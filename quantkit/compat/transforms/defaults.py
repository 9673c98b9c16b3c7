"""Attributes that nodes may leave out."""

from collections.abc import Sequence

from quantkit.compat.transforms.nodes import NodeDef
from quantkit.compat.transforms.table import Context, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.functions import Library
from quantkit.ir.graph import Attr, Graph
from quantkit.ops.tensorflow.signatures import OpDef, find_op

# Attributes that ops got after the last release that held the original (TensorFlow 2.12).
LATER = frozenset(
    {
        *(f"{op}.{key}" for op in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3") for key in ("grad_x", "grad_y")),
        *("MatMul.grad_a", "MatMul.grad_b", "TopKV2.index_type", "TopKV2.Tk", "ConcatOffset.shape_type"),
        *("GatherNd.bad_indices_policy", "ScatterNd.bad_indices_policy", "VarHandleOp.debug_name"),
        *(f"SparseSegment{kind}.sparse_gradient" for kind in ("Mean", "Sum", "SqrtN")),
        *(f"SparseSegment{kind}WithNumSegments.sparse_gradient" for kind in ("Mean", "Sum", "SqrtN")),
        *(f"TensorScatter{kind}.bad_indices_policy" for kind in ("Add", "Max", "Min", "Sub", "Update")),
    }
)


@classic_transform(keeps_versions=True)
def add_default_attributes(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Nodes say what they left out."""
    return [with_defaults(node, context.library) for node in nodes]


def with_defaults(node: NodeDef, library: Library[Graph]) -> NodeDef:
    """A node with the attributes that have defaults.

    Raises:
        GraphError: neither TensorFlow nor the library has its op.
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
    """The signature of a node's op.

    Raises:
        GraphError: TensorFlow does not know it. (The original went on with the name of the machine.)
    """
    op = find_op(node.op)
    if op is None:
        raise GraphError(f"Op type not registered '{node.op}' in binary", hint=f"{node.name} is of that type")
    return op
