"""Conversion of graphs between the dialects, without a runtime."""
