"""Timed calls in worker processes: candidates, rounds, and the processes themselves."""
