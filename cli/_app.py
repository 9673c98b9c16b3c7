"""The parser, and what turns errors into sentences and exit codes.

Each command is a module of this folder with `EXAMPLES`, `add_arguments(parser)` and `run(args) -> int`. Only the
module of the command that is called is imported.
"""

import errno
import importlib
import os
import re
import sys
import traceback
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, NoReturn

from quantkit.errors import InputError, QuantkitError, UsageError, did_you_mean

INTERRUPTED = 130
A_BUG = 70

# The one line of each command's help lives here, so that `quantkit --help` imports none of them.
COMMANDS = {
    "transform": "rewrite a frozen graph with a recipe of transforms",
    "quantize": "make a graph 8-bit with calibrated ranges, and say what came of it",
    "classify": "say what is on pictures",
    "benchmark": "compare the latency of models and engines, side by side",
    "evaluate": "top-1, top-5, agreement with a reference, and KL over many pictures",
    "compare": "two versions of one model layer by layer: signal to noise, worst first",
    "summarize": "inputs, outputs, op counts, size, and what to do next",
    "models": "list, fetch and locate known models",
    "transforms": "the reference of every transform",
    "doctor": "what this machine and installation can run",
}
# TensorFlow's tools by the names that scripts call: the same flags, and what they printed.
OLD_TOOLS = {
    "transform_graph": "transform, by its old name",
    "summarize_graph": "what is in a graph, in the old words",
    "compare_graphs": "whether two graphs have the same nodes",
    "freeze_graph": "constants in the place of variables, by TensorFlow's own tool",
    "label_image": "what is on a picture, in the old words",
    "benchmark_model": "how long a graph takes in TensorFlow, node by node",
}
ALL = COMMANDS | OLD_TOOLS
DESCRIPTION = "Rewrite trained networks, make them 8-bit, and prove that the result is faster and still right."


class Parser(ArgumentParser):
    """Reports a wrong command line the way all errors are reported."""

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            near = did_you_mean(choice[1], re.findall(r"'(.*?)'", choice[2]))
        elif message.startswith("unrecognized"):
            flags = [flag for action in self._actions for flag in action.option_strings]
            near = did_you_mean(message.removeprefix("unrecognized arguments: ").split()[0].split("=")[0], flags)
        else:
            near = ""
        raise UsageError(message, hint=near or f"{self.prog} --help lists the flags")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the value is the exit code."""
    words = _called() if arguments is None else list(arguments)
    debug = "--debug" in words
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may have letters that the terminal lacks
    try:
        code = _run([word for word in words if word != "--debug"])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("quantkit: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (head, less): nothing is wrong, and nothing is left to say.
        _forget_output()
        return 0
    except Exception as error:
        return _reported(error, debug=debug)
    return code


def _called() -> list[str]:
    """The words of the command line; a link that has an old tool's name is that tool."""
    name = os.path.basename(sys.argv[0])
    return [name, *sys.argv[1:]] if name in OLD_TOOLS else sys.argv[1:]


def _reported(error: Exception, *, debug: bool) -> int:
    """Say what went wrong; the value is the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _forget_output()
        what = f"the disk is full: {error.filename or 'the output'} can not be written"
        error = InputError(what, hint="make room, or write to another disk")
    if isinstance(error, QuantkitError):
        print(f"quantkit: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    print(f"quantkit: a bug: {type(error).__name__}: {error}", file=sys.stderr)
    print("hint: run the same with --debug and report what it prints", file=sys.stderr)
    return A_BUG


def _forget_output() -> None:
    """Drop what is left to print: Python would try it once more, and fail, as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"quantkit {version('quantkit')}")
        return 0
    name = words[0]
    if name not in ALL:
        raise UsageError(
            f"{name!r} is not a command", hint=did_you_mean(name, ALL) or "quantkit --help lists the commands"
        )
    command = importlib.import_module(f".{name}", __package__)
    parser = _parser(name, command)
    try:
        args = parser.parse_args(_kebab(words[1:], parser))
    except SystemExit as leave:  # --help
        return int(leave.code or 0)
    return int(command.run(args))


def _parser(name: str, command: Any) -> Parser:
    parser = Parser(
        prog=f"quantkit {name}",
        description=ALL[name][0].upper() + ALL[name][1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in command.EXAMPLES),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    for one in _leaves(parser):
        one.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        one.add_argument("-q", "--quiet", action="store_true", help="no progress and no remarks")
        one.add_argument("-v", "--verbose", action="store_true", help="more remarks")
        one.add_argument("--debug", action="store_true", default=SUPPRESS, help="show the traceback of an error")
    return parser


def _leaves(parser: ArgumentParser) -> list[ArgumentParser]:
    """The parsers that take the flags: those of subcommands where there are any."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            return list(action.choices.values())
    return [parser]


def _kebab(words: list[str], parser: ArgumentParser) -> list[str]:
    """Flags as the parser knows them: ``--in_graph=G`` is ``--in-graph=G``."""
    known = {flag for one in (parser, *_leaves(parser)) for action in one._actions for flag in action.option_strings}
    found = []
    for word in words:
        flag, equals, value = word.partition("=")
        kebab = "--" + flag[2:].replace("_", "-")
        found.append(kebab + equals + value if flag.startswith("--") and kebab in known else word)
    return found


def _overview() -> str:
    width = max(map(len, ALL))
    lines, old = ([f"  {name:<{width}}  {line}" for name, line in one.items()] for one in (COMMANDS, OLD_TOOLS))
    return "\n".join(
        [
            "usage: quantkit COMMAND ...",
            "",
            DESCRIPTION,
            "",
            "commands:",
            *lines,
            "",
            "TensorFlow's tools, with the flags that they had:",
            *old,
            "",
            "quantkit COMMAND --help explains one; quantkit --version.",
        ]
    )
