"""Intervals of medians and ratios, and bounds on percentiles, from plain numbers."""
