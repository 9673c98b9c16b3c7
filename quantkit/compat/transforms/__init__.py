"""The Graph Transform Tool as it was: its transforms, defects included, for those who compare with old results.

Each is a function ``(nodes, context) -> nodes`` registered with `classic_transform` under the name of ours; the list
below is the table of contents. `quantkit.compat.driver.run_classic` runs them.
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
from quantkit.compat.transforms.table import CLASSIC, ClassicTransform, Context, classic_transform, find_classic

__all__ = [
    "CLASSIC",
    "ClassicTransform",
    "Context",
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
