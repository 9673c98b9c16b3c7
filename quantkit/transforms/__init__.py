"""Graph to graph, one file for each transform, in a folder for each purpose."""

from quantkit.registry import import_modules

for group in ("cleanup", "folding", "functions", "fusion", "layout", "metadata", "precision"):
    import_modules(f"{__name__}.{group}")
