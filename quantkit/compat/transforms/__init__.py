"""Transforms of the original Graph Transform Tool, defects included.

Each transform is a function ``(nodes, context) -> nodes`` that `classic_transform` registers under
the name of quantkit's own transform. `quantkit.compat.driver.run_classic` runs them.
"""

from quantkit.compat.transforms.nodes import NodeDef
from quantkit.compat.transforms.table import (
    CLASSIC,
    ClassicContext,
    ClassicTransform,
    classic_transform,
    find_classic,
)
from quantkit.registry import import_modules

__all__ = ["CLASSIC", "ClassicContext", "ClassicTransform", "NodeDef", "classic_transform", "find_classic"]

import_modules(__name__)
