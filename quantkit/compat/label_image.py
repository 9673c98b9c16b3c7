"""Flags of TensorFlow's ``label_image``: default files, default preprocessing and self test."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from quantkit.arguments import expand_user
from quantkit.errors import CheckError
from quantkit.ir.graph import Edge

# Folder of the tool's default files in TensorFlow's source tree, the directory that the tool is
# called from.
DATA = Path("tensorflow/examples/label_image/data")
IMAGE, GRAPH = "grace_hopper.jpg", "inception_v3_2016_08_28_frozen.pb"
LABELS = "imagenet_slim_labels.txt"
# Default mean and standard deviation: of the first releases, whose input is Mul, and of later
# releases.
EARLY_LAYER, EARLY, LATER = "Mul", (128.0, 128.0), (0.0, 255.0)
# Class index of the military uniform, which the default image shows, in the graph of 2015 and in
# later graphs.
UNIFORM = frozenset({866, 653})


@dataclass(frozen=True)
class LabelImageFlags:
    """Files and preprocessing of a call.

    Attributes:
        graph: graph file or name of a known model; None for the tool's default file.
        labels: label file; None for the labels of the model.
        images: image files; empty for the tool's default file.
        input_layer: name of the input; None for the input of the model.
        input_mean, input_std: mean and standard deviation of the input; None for the default.
    """

    graph: str | None = None
    labels: str | None = None
    images: tuple[str, ...] = ()
    input_layer: str | None = None
    input_mean: float | tuple[float, ...] | None = None
    input_std: float | tuple[float, ...] | None = None

    def with_default_files(self) -> Self:
        """Return the flags with the tool's default graph, labels and image."""
        return replace(
            self,
            graph=self.graph or str(DATA / GRAPH),
            labels=self.labels if self.graph else self.labels or str(DATA / LABELS),
            images=self.images or (str(DATA / IMAGE),),
        )

    def with_default_preprocessing(self) -> Self:
        """Return the flags with the tool's default mean and standard deviation of a named input."""
        if not self.input_layer:
            return self
        mean, std = EARLY if Edge.parse(self.input_layer).node == EARLY_LAYER else LATER
        return replace(
            self,
            input_mean=mean if self.input_mean is None else self.input_mean,
            input_std=std if self.input_std is None else self.input_std,
        )

    def in_folder(self, root: str) -> Self:
        """Return the flags with the paths of existing files in a root folder.

        Names of known models and absolute paths stay unchanged.
        """
        folder = expand_user(root)
        return replace(
            self,
            graph=self.graph and _find_file(folder, self.graph),
            labels=self.labels and _find_file(folder, self.labels),
            images=tuple(_find_file(folder, image) for image in self.images),
        )


def check_self_test(class_index: int) -> None:
    """Check that the first class is a military uniform.

    Raises:
        CheckError: the first class is another one.
    """
    if class_index not in UNIFORM:
        raise CheckError(
            "the first class is not a military uniform",
            hint="use --self_test with the default image of the tool",
        )


def _find_file(folder: Path, name: str) -> str:
    path = expand_user(name)
    return str(folder / path if (folder / path).exists() else path)
