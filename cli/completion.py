"""``quantkit completion``: scripts that complete commands, flags and their values in a shell."""

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import NamedTuple

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
BASH = """\
_quantkit() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" completions=""
    if [[ $COMP_CWORD == 1 ]]; then
        completions="COMMANDS"
    elif [[ $COMP_CWORD == 2 && ${COMP_WORDS[1]} == help ]]; then
        completions="COMMANDS"
    else
        case "${COMP_WORDS[1]} $previous" in
CASES
        esac
        case "$current" in
            -*) case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
FLAGS
            esac;;
        esac
    fi
    COMPREPLY=($(compgen -W "$completions" -- "$current"))
}
complete -o default -F _quantkit quantkit"""
ZSH = "autoload -U +X compinit bashcompinit && compinit -u && bashcompinit"


class Completions(NamedTuple):
    """Completions of one command or subcommand.

    Attributes:
        flags: help by flag.
        values: values by flag.
        subcommands: help by name.
    """

    flags: Mapping[str, str]
    values: Mapping[str, tuple[str, ...]]
    subcommands: Mapping[str, str]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the name of the shell."""
    parser.add_argument("shell", choices=SHELLS, help="shell that runs the script")


def run(args: Namespace) -> int:
    """Print the script."""
    commands = dict(_completions())
    script = "\n".join(_fish(commands)) if args.shell == "fish" else _bash(commands)
    script = f"{ZSH}\n{script}" if args.shell == "zsh" else script
    document = {"shell": args.shell, "script": script}
    emit(args, "quantkit.completion/1", document, script)
    return 0


def _completions() -> Iterator[tuple[str, Completions]]:
    """Yield the completions of each command, and of each subcommand under ``COMMAND SUBCOMMAND``."""
    for name in _app.ALL:
        parser = _app.make_parser(name, importlib.import_module(f".{name}", __package__))
        yield name, _completions_of(parser)
        for action in parser._actions:
            for subcommand, leaf in action.choices.items() if isinstance(action.choices, dict) else ():
                yield f"{name} {subcommand}", _completions_of(leaf)


def _completions_of(parser: ArgumentParser) -> Completions:
    registered = {
        "--target": tuple(targets()),
        "--runtime": (AUTO, *runtimes()),
        "--recipe": tuple(named_recipes()),
    }
    flags = {flag: action.help or "" for action in parser._actions for flag in action.option_strings}
    values = {flag: names for flag, names in registered.items() if flag in flags}
    subcommands: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action.choices, dict):
            subcommands = {name: leaf.description or "" for name, leaf in action.choices.items()}
        elif action.choices:
            choices = tuple(map(str, action.choices))
            values |= dict.fromkeys(action.option_strings or [""], choices)
    return Completions(flags, values, subcommands)


def _bash(commands: Mapping[str, Completions]) -> str:
    cases, flags = [], []
    for name, completions in commands.items():
        command, _, subcommand = name.partition(" ")
        follows = subcommand or command
        names = [*completions.subcommands, *completions.values.get("", ())]
        if names:
            cases.append(f'            "{command} {follows}") completions="{" ".join(names)}";;')
        cases += [
            f'            "{command} {flag}") completions="{" ".join(values)}";;'
            for flag, values in completions.values.items()
            if flag
        ]
        pattern = f'"{name}"' if subcommand else f'"{command} "*'
        flags.append(f'                {pattern}) completions="{" ".join(completions.flags)}";;')
    # The pattern of a command also matches its subcommands, whose patterns come first.
    flags.sort(key=lambda line: line.count("*"))
    script = BASH.replace("CASES", "\n".join(dict.fromkeys(cases))).replace("FLAGS", "\n".join(flags))
    return script.replace("COMMANDS", " ".join((*_app.ALL, "help")))


def _fish(commands: Mapping[str, Completions]) -> Iterator[str]:
    yield "complete -c quantkit -n __fish_use_subcommand -f -a help -d 'explain a command'"
    for name, completions in commands.items():
        command, _, subcommand = name.partition(" ")
        condition = f"__fish_seen_subcommand_from {command}"
        if subcommand:
            condition += f"; and __fish_seen_subcommand_from {subcommand}"
        else:
            summary = _quote(_app.ALL[command])
            yield f"complete -c quantkit -n __fish_use_subcommand -f -a {command} -d {summary}"
        for current in (*completions.subcommands, *completions.values.get("", ())):
            yield f"complete -c quantkit -n '{condition}' -f -a {current}"
        for flag, text in completions.flags.items():
            option = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            choices = f" -x -a '{' '.join(completions.values[flag])}'" if flag in completions.values else ""
            yield f"complete -c quantkit -n '{condition}' {option}{choices} -d {_quote(text)}"


def _quote(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'") + "'"
