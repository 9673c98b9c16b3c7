"""Transforms of the original Graph Transform Tool, defects included.

Each transform is a function ``(nodes, context) -> nodes`` that `classic_transform` registers under
the name of quantkit's own transform. `quantkit.compat.driver.run_classic` runs them.
"""

from quantkit.compat.transforms import (
    defaults,
    editors,
    flatten_atrous_conv,
    fold_batch_norms,
    fold_constants,
    fold_old_batch_norms,
    fused_convolutions,
    inline_partitionedcall,
    logging,
    merge_duplicate_nodes,
    quantize_nodes,
    remove_nodes,
    sparsify_gather,
    strip_unused_nodes,
    weights,
)
from quantkit.compat.transforms.nodes import NodeDef
from quantkit.compat.transforms.table import (
    CLASSIC,
    ClassicContext,
    ClassicTransform,
    classic_transform,
    find_classic,
)

__all__ = [
    "CLASSIC",
    "ClassicContext",
    "ClassicTransform",
    "NodeDef",
    "classic_transform",
    "defaults",
    "editors",
    "find_classic",
    "flatten_atrous_conv",
    "fold_batch_norms",
    "fold_constants",
    "fold_old_batch_norms",
    "fused_convolutions",
    "inline_partitionedcall",
    "logging",
    "merge_duplicate_nodes",
    "quantize_nodes",
    "remove_nodes",
    "sparsify_gather",
    "strip_unused_nodes",
    "weights",
]
