"""``quantkit completion``: scripts that complete commands, flags and their values in a shell."""

import importlib
from argparse import ArgumentParser, Namespace, _SubParsersAction

import shtab

from quantkit.quantization.targets import targets
from quantkit.recipes.named import named_recipes
from quantkit.runtimes import AUTO, runtimes

from . import _app
from ._render import emit

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = ("quantkit completion bash", "quantkit completion fish")
DETAILS = """\
bash:  add this line to ~/.bashrc:  eval "$(quantkit completion bash)"
zsh:   add this line to ~/.zshrc:   eval "$(quantkit completion zsh)"
fish:  quantkit completion fish > ~/.config/fish/completions/quantkit.fish
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the name of the shell."""
    parser.add_argument("shell", choices=SHELLS, help="shell that runs the script")


def run(args: Namespace) -> int:
    """Print the script."""
    script = shtab.complete(_parser(), args.shell)
    emit(args, {"schema": "quantkit.completion/1", "shell": args.shell, "script": script}, script)
    return 0


def _parser() -> ArgumentParser:
    """Return the parser of all commands, with the names that plugins register as choices."""
    parser = ArgumentParser(prog="quantkit", description=_app.DESCRIPTION)
    commands = parser.add_subparsers(parser_class=_command_parser)  # type: ignore[call-overload]
    commands.add_parser("help", help="explain a command")
    for name, summary in _app.ALL.items():
        _complete_values(commands.add_parser(name, help=summary))
    return parser


def _command_parser(prog: str) -> ArgumentParser:
    """Return the parser of the command at the end of a program name."""
    name = prog.split()[-1]
    if name in _app.ALL:
        return _app.make_parser(name, importlib.import_module(f".{name}", __package__))
    parser = ArgumentParser(prog)
    parser.add_argument("command", choices=tuple(_app.ALL))
    return parser


def _complete_values(parser: ArgumentParser) -> None:
    """Complete values: registered names, and else files."""
    names = {"target": targets(), "runtime": (AUTO, *runtimes()), "recipe": named_recipes()}
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for leaf in action.choices.values():
                _complete_values(leaf)
        elif action.dest in names:
            action.choices = tuple(names[action.dest])
        elif action.choices is None and action.nargs != 0:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
