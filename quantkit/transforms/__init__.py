"""Graph to graph, one file for each transform; this list is the table of contents."""

from quantkit.transforms import (
    absorb_preprocessing,
    add_default_attributes,
    fold_batch_norms,
    fold_clamps,
    fold_constants,
    fold_old_batch_norms,
    fold_pads,
    merge_duplicate_nodes,
    merge_sibling_convolutions,
    pool_after_projection,
    quantize_nodes,
    quantize_weights,
    remove_nodes,
    round_weights,
    sort_by_execution_order,
    strip_unused_nodes,
)

__all__ = [
    "absorb_preprocessing",
    "add_default_attributes",
    "fold_batch_norms",
    "fold_clamps",
    "fold_constants",
    "fold_old_batch_norms",
    "fold_pads",
    "merge_duplicate_nodes",
    "merge_sibling_convolutions",
    "pool_after_projection",
    "quantize_nodes",
    "quantize_weights",
    "remove_nodes",
    "round_weights",
    "sort_by_execution_order",
    "strip_unused_nodes",
]
