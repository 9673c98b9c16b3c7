"""``python -m quantkit``."""

import importlib
import sys

try:
    command_line = importlib.import_module("quantkit.cli")
except ModuleNotFoundError:
    sys.exit("quantkit: the command line is not installed: run 'pip install -e .' in the repository first")

sys.exit(command_line.main())
