"""Parser of the command line, error messages and exit codes.

Each command is a module of this folder with `EXAMPLES`, `add_arguments(parser)` and `run(args) -> int`; `DETAILS`, if
present, is an explanation in its help. Only the module of the requested command is imported.
"""

import errno
import importlib
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn

from quantkit.errors import FallbackWarning, QuantkitError, UsageError, as_input_error, did_you_mean
from quantkit.limits import limits

from ._arguments import add_output_flags
from ._render import write_document, write_line
from ._streams import discard, tolerant_streams

INTERRUPTED = 130
BUG = 70

# The summary of each command is here, so that `quantkit --help` imports none of them.
COMMANDS = {
    "optimize": "find the fastest file and settings inside an accuracy bound",
    "transform": "rewrite a graph with a recipe of transforms",
    "quantize": "quantize a model to int8, and report accuracy and latency",
    "receipt": "print how a quantized file was made, and check it",
    "classify": "classify images",
    "benchmark": "compare the latency of models and runtimes",
    "monitor": "find the bottleneck of a running job",
    "evaluate": "measure accuracy and agreement with a reference model",
    "compare": "compare two versions of a model layer by layer",
    "run": "run a model on a dataset with several workers",
    "data": "pack datasets; profile and optimize pipelines",
    "summarize": "print inputs, outputs, ops and size, and the next step",
    "models": "list, download and locate known models",
    "transforms": "list, explain and check transforms",
    "doctor": "report runtimes and processor features of this machine",
    "completion": "print a completion script for bash, zsh or fish",
}
# TensorFlow's tools under the names that scripts call, with the same flags and output.
TENSORFLOW_TOOLS = {
    "transform_graph": "rewrite a graph (the same as transform)",
    "summarize_graph": "print a summary in the format of the original tool",
    "compare_graphs": "compare the nodes of two graphs",
    "freeze_graph": "freeze variables into constants",
    "label_image": "classify one image, with the output of the original tool",
    "benchmark_model": "measure the latency of a graph in TensorFlow, node by node",
}
ALL = COMMANDS | TENSORFLOW_TOOLS
DESCRIPTION = "Rewrite trained networks, quantize them to int8, and verify accuracy and speed."
OVERVIEW = """usage: quantkit COMMAND ...

{}

commands:
{}

TensorFlow tools, with their original flags:
{}

quantkit help COMMAND explains a command; quantkit --version prints the version."""
# Flags of the first release, with their present names.
RENAMED_FLAGS = {"--half-range": "--reduce-range", "--pixels": "--uint8-input"}


class Parser(ArgumentParser):
    """Argument parser that raises UsageError for a wrong command line."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> Namespace:
        """Parse a command line; for an unknown flag, the hint is about the flags of the given subcommand."""
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            leaves = {leaf.prog: leaf for leaf in _leaves(self)}
            leaf = leaves.get(f"{self.prog} {getattr(values, 'action', '')}", self)
            leaf.error(f"unrecognized arguments: {' '.join(unknown)}")
        return values

    def error(self, message: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings]
        data = next((name for name in ("--calibration", "--data") if name in flags), "")
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            near = did_you_mean(choice[1], re.findall(r"'(.*?)'", choice[2]))
        elif message.startswith("unrecognized"):
            flag = message.removeprefix("unrecognized arguments: ").split()[0].split("=")[0]
            renamed = RENAMED_FLAGS.get(flag.replace("_", "-"))
            near = f"did you mean {renamed!r}?" if renamed in flags else did_you_mean(flag, flags)
            near = f"data is a flag: {data} {flag}" if data and not flag.startswith("-") else near
        else:
            # A missing flag is reported before data without a flag.
            is_missing = data and data in re.findall(r"--[\w-]+", message.partition(" are required: ")[2])
            near = f"data is a flag: {data} DATA" if is_missing else ""
        raise UsageError(message, hint=near or f"{self.prog} --help lists the flags")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        arguments: command and flags; None if those of the process are used.
    """
    arguments = _read_arguments() if arguments is None else list(arguments)
    with tolerant_streams(), _clean_termination():
        return _exit_code(arguments)


@contextmanager
def _clean_termination() -> Iterator[None]:
    """End with `SystemExit` on SIGTERM and SIGHUP, so that temporary files and folders are removed."""

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # the removal is not interrupted
        raise SystemExit(128 + number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names] if current_thread() is main_thread() else []
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit_code(arguments: list[str]) -> int:
    """Run a command line, print its error, and return the exit code."""
    flags = _before_separator(arguments)
    debug, as_json = "--debug" in flags, "--json" in flags
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")  # of libraries, for example about overflows
            warnings.simplefilter("ignore" if {"-q", "--quiet"} & set(flags) else "always", FallbackWarning)
            warnings.showwarning = lambda message, *_: write_line(f"warning: {message}", sys.stderr)
            code = _run([flag for flag in flags if flag != "--debug"] + arguments[len(flags) :])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _print_error("KeyboardInterrupt", "interrupted", "", INTERRUPTED, as_json=as_json)
    except Exception as error:
        return _report(error, debug=debug, as_json=as_json)
    return code


def _before_separator(arguments: list[str]) -> list[str]:
    """Return the arguments before ``--``; those after it are never flags of quantkit."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _read_arguments() -> list[str]:
    """Return the arguments of the process; a link named like a TensorFlow tool runs that tool."""
    name = os.path.basename(sys.argv[0])
    return [name, *sys.argv[1:]] if name in TENSORFLOW_TOOLS else sys.argv[1:]


def _report(error: Exception, *, debug: bool, as_json: bool) -> int:
    """Print an error and return its exit code."""
    if debug:
        write_line("".join(traceback.format_exception(error)).rstrip(), sys.stderr)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            discard(sys.stdout)
        error = as_input_error(error) or error
    kind = type(error).__name__
    if isinstance(error, QuantkitError):
        return _print_error(kind, error.message, error.hint, error.exit_code, as_json=as_json)
    hint = "run the command again with --debug and report its output"
    return _print_error(kind, f"a bug: {kind}: {error}", hint, BUG, as_json=as_json)


def _print_error(kind: str, message: str, hint: str, code: int, *, as_json: bool) -> int:
    """Print an error to stderr, and as the JSON document if there is no other one; return the exit code."""
    write_line(f"quantkit: {_join_lines(message)}", sys.stderr)
    if hint:
        write_line(f"hint: {_join_lines(hint)}", sys.stderr)
    if as_json and not getattr(sys.stdout, "is_used", False):
        write_document(
            {"schema": "quantkit.error/1", "error": kind, "message": message, "hint": hint, "exit_code": code}
        )
        sys.stdout.flush()
    return code


def _join_lines(text: str) -> str:
    """Return a text on one line: names and messages of other programs may have several."""
    return re.sub(r"\s*[\n\t]\s*", " ", text.strip())


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        write_line(_overview())
        return 0
    if arguments[0] == "--version":
        from quantkit.distribution import installed_version

        write_line(f"quantkit {installed_version()}")
        return 0
    name = arguments[0]
    if name not in ALL:
        raise UsageError(
            f"{name!r} is not a command", hint=did_you_mean(name, ALL) or "quantkit --help lists the commands"
        )
    command = importlib.import_module(f".{name}", __package__)
    parser = make_parser(name, command)
    try:
        args = parser.parse_args(_kebab(arguments[1:], parser))
        args.command_line = shlex.join(("quantkit", *arguments))
    except SystemExit as leave:  # --help
        return int(leave.code or 0)
    if plugins := getattr(args, "plugin", None):
        from quantkit.transforms.plugins import load_file

        args.plugin_transforms = [transform for file in plugins for transform in load_file(Path(file))]
    names = ("max_nodes", "max_constant_bytes")
    with ExitStack() as stack:
        stack.enter_context(limits(**{name: getattr(args, name, None) for name in names}))
        if libraries := getattr(args, "custom_op_library", None):
            from quantkit.runtimes import custom_op_library

            stack.enter_context(custom_op_library(*libraries))
        return int(command.run(args))


def make_parser(name: str, command: Any) -> Parser:
    """Return the parser of a command.

    Args:
        name: name of the command.
        command: its module.
    """
    details = [f"{command.DETAILS}\n"] if hasattr(command, "DETAILS") else []
    parser = Parser(
        prog=f"quantkit {name}",
        description=ALL[name][0].upper() + ALL[name][1:] + ".",
        epilog="\n".join([*details, "examples:", *(f"  {line}" for line in command.EXAMPLES)]),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    for leaf in _leaves(parser):
        add_output_flags(leaf)
    return parser


def _leaves(parser: ArgumentParser) -> list[ArgumentParser]:
    """Return the parsers of the subcommands; of a command without subcommands, its own."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            return list(action.choices.values())
    return [parser]


def _kebab(arguments: list[str], parser: ArgumentParser) -> list[str]:
    """Rewrite known snake_case flags in kebab case: ``--in_graph=G`` to ``--in-graph=G``."""
    own = _before_separator(arguments)
    parsers = (parser, *_leaves(parser))
    flags = {flag for each in parsers for action in each._actions for flag in action.option_strings}
    rewritten = []
    for argument in own:
        flag, equals, value = argument.partition("=")
        kebab = "--" + flag[2:].replace("_", "-")
        is_known = flag.startswith("--") and kebab in flags
        rewritten.append(kebab + equals + value if is_known else argument)
    return rewritten + arguments[len(own) :]


def _overview() -> str:
    width = max(map(len, ALL))
    commands, tools = (
        "\n".join(f"  {name:<{width}}  {summary}" for name, summary in group.items())
        for group in (COMMANDS, TENSORFLOW_TOOLS)
    )
    return OVERVIEW.format(DESCRIPTION, commands, tools)
