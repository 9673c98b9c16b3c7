"""``python -m quantkit``."""

import importlib
import sys

try:
    command_line = importlib.import_module("quantkit.cli")
except ModuleNotFoundError as error:
    if error.name != "quantkit.cli":
        raise
    sys.exit(
        "quantkit: the folder quantkit of the repository has no command line: start Python in another folder, or run "
        "'pip install -e .' in the repository"
    )

sys.exit(command_line.main())
