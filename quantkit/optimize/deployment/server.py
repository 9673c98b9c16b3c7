"""A server as one object: the files and runtimes that it runs, and the function that writes its folder."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantkit.errors import UsageError
from quantkit.formats.kinds import KINDS, kind_of
from quantkit.optimize.deployment.served_model import Deployment, ServedModel
from quantkit.registry import FUNCTION, TITLE, check_fields
from quantkit.runtimes import find_runtime


@dataclass(frozen=True)
class Server:
    """Inference server.

    Attributes:
        name: name on the command line: ``triton``.
        title: name in messages: ``Triton``.
        files: name of the model file in the folder by runtime and kind of file (a key of `quantkit.formats.KINDS`).
        write: function that writes model and configuration to a folder, and returns a sentence for each setting that
            the server has no parameter for.
        start: function that returns the commands that start the server, as Markdown.
        url: address of the server after these commands.
        takes_scalars: True if inputs may have no dimension; otherwise scalars are sent as vectors of one element.
    """

    name: str
    title: str
    files: Mapping[str, Mapping[str, str]]
    write: Callable[[ServedModel, Path], tuple[str, ...]]
    start: Callable[[ServedModel], str]
    url: str = "http://localhost:8000"
    takes_scalars: bool = True

    def check(self, deployment: Deployment, servers: "Iterable[Server]") -> None:
        """Check that the server runs a file in a runtime.

        Args:
            deployment: model file and runtime.
            servers: all servers, for the hint.

        Raises:
            UsageError: the server does not run it; the hint names servers that do.
            InputError: the file is missing or broken.
        """
        runtime, kind = find_runtime(deployment.runtime), kind_of(deployment.file)
        if not self.runs(runtime.name, kind):
            others = [server.name for server in servers if server.runs(runtime.name, kind)]
            raise UsageError(
                f"{self.title} does not run {deployment.file.name}, {KINDS[kind]}, in {runtime.title}",
                hint=f"use --server {' or '.join(others)}" if others else "convert the model to ONNX",
            )

    def runs(self, runtime: str, kind: str) -> bool:
        """Return True if the server runs a kind of file in a runtime."""
        return kind in self.files.get(runtime, {})

    def file_name(self, model: ServedModel) -> str:
        """Return the name of the model file in the folder."""
        return self.files[model.deployment.runtime][model.kind]


def check_server(server: Server) -> None:
    """Check the fields of a server that a plugin registers.

    Raises:
        UsageError: a field has a value that is not allowed; the message names the field and the allowed values.
    """
    check_fields(
        server,
        {
            "title": TITLE,
            "files": ("a mapping of runtimes to mappings", lambda value: isinstance(value, Mapping)),
            "write": FUNCTION,
            "start": FUNCTION,
        },
    )
