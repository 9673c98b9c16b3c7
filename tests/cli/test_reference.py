"""`cli/README.md` is the command reference, made of the parsers."""

from importlib import import_module
from pathlib import Path

README = Path(__file__).parent.parent.parent / "cli" / "README.md"
TOP = """# The command line

One short module for each command, with `EXAMPLES`, `add_arguments(parser)` and `run(args) -> exit code`; `_app.py`
makes the parser and turns errors into sentences and exit codes, `_render.py` prints. Results go to stdout, progress
and remarks to stderr. Flags in snake_case are accepted wherever the kebab form is. Every command takes `--json`,
`--quiet`, `--verbose` and `--debug`.

This page is made by `pytest tests/cli --update-goldens`.
"""


def reference() -> str:
    app = import_module("quantkit.cli._app")
    lines = [TOP]
    for name, sentence in app.ALL.items():
        command = import_module(f"quantkit.cli.{name}")
        lines += [
            f"## quantkit {name}",
            "",
            sentence[0].upper() + sentence[1:] + ".",
            "",
            "```sh",
            *command.EXAMPLES,
            "```",
            "",
        ]
        parser = app._parser(name, command)
        for leaf in app._leaves(parser):
            if leaf is not parser:
                lines += [f"`{leaf.prog}`", ""]
            rows = [
                (", ".join(action.option_strings) or action.metavar or action.dest, action.help.replace("|", "\\|"))
                for action in leaf._actions
                if action.dest not in ("help", "json", "quiet", "verbose", "debug")
            ]
            lines += (
                ["| argument | |", "|---|---|", *(f"| `{words}` | {text} |" for words, text in rows), ""]
                if rows
                else []
            )
    return "\n".join(lines).rstrip() + "\n"


def test_the_reference_is_up_to_date(update_goldens: bool) -> None:
    if update_goldens:
        README.write_text(reference())
    assert README.read_text() == reference(), "run pytest tests/cli --update-goldens"
