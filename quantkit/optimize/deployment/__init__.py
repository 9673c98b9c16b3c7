"""Folders that serve a model: the model in the layout of a server, its configuration, and a client.

    FOLDER/
      README.md         how to start the server, and settings that it has no parameter for
      models/           model repository of the server (python: the model file)
      deployment.json   inputs, outputs, preprocessing, runtime and settings
      labels.txt        one class per line, if the labels are known
      client.py         sends an image, prints the best classes; --check compares the outputs with expected.npz
      images.py         preprocessing of `quantkit classify`, as functions of NumPy and Pillow
      example.png       sample of the check; example.npz for inputs that take no images

An installed distribution adds a server through an entry point of the group ``quantkit.servers``.
"""

import os
from pathlib import Path

from quantkit.arguments import expand_user, public, require_path, require_text
from quantkit.formats import check_folder, whole_folder
from quantkit.optimize.deployment import kserve, openvino_model_server, python, triton
from quantkit.optimize.deployment.client import write_client
from quantkit.optimize.deployment.served_model import Deployment, read_model
from quantkit.optimize.deployment.server import Server, check_server
from quantkit.registry import Registry

__all__ = ["SERVERS", "Deployment", "Server", "deploy"]

SERVERS: Registry[Server] = Registry(
    "server", Server, (module.SERVER for module in (triton, openvino_model_server, kserve, python)), check_server
)


@public
def deploy(deployment: Deployment, folder: str | os.PathLike[str], server: str = "python") -> Path:
    """Write a folder that serves a model; it appears complete or not at all.

    The model runs once, so that the folder has a sample with its expected outputs.

    Args:
        deployment: model file, its name in the server, runtime and settings.
        folder: output folder; it does not exist or is empty.
        server: name of a server.

    Returns:
        The folder.

    Raises:
        UsageError: the server is unknown or does not run this file in this runtime, or the folder is not empty.
        InputError: the model is missing or broken, or the folder cannot be written.
        UnavailableError: the runtime is not installed.
    """
    require_text(server=server)
    require_path(folder=folder)
    target, folder = SERVERS.find(server), expand_user(folder)
    check_folder(folder)
    target.check(deployment, SERVERS.objects().values())
    model = read_model(deployment)
    with whole_folder(folder) as temporary:
        notes = target.write(model, temporary)
        write_client(model, target, notes, temporary)
    return folder
