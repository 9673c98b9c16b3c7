"""Roles of nodes in the quantizer, one table for each dialect.

A plan of a quantization is made by these roles: the same decisions apply to the ops of both dialects.
"""

from quantkit.ir.graph import Graph
from quantkit.ops.roles.base import Roles
from quantkit.ops.roles.onnx import OnnxRoles
from quantkit.ops.roles.tensorflow import TensorFlowRoles

_ROLES: dict[str, Roles] = {"tensorflow": TensorFlowRoles(), "onnx": OnnxRoles()}

__all__ = ["Roles", "find_roles"]


def find_roles(graph: Graph) -> Roles:
    """Return the roles of the nodes of a graph."""
    return _ROLES[graph.dialect]
