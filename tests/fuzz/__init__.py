"""Fuzzer of the commands; it also uses the modules of the folder ``support``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
