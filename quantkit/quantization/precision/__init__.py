"""Precision of each layer of a model, decided by its error and its time."""
