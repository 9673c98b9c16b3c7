"""Measurements, their comparison, and the report."""
