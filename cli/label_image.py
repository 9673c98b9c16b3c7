"""``quantkit label_image``: the flags and the output of TensorFlow's tool; `classify` is the present command."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from quantkit.errors import CheckError

from . import classify
from ._arguments import add_boolean

EXAMPLES = (
    "quantkit label_image --image=panda.jpg --graph=graph.pb --labels=labels.txt --input_layer=Mul "
    "--output_layer=softmax --input_mean=128 --input_std=128",
)
# Folder of the tool's default files in TensorFlow's source tree, the directory that the tool is called from.
DATA = Path("tensorflow/examples/label_image/data")
IMAGE, GRAPH, LABELS = "grace_hopper.jpg", "inception_v3_2016_08_28_frozen.pb", "imagenet_slim_labels.txt"
# Default mean and standard deviation: of the first releases, whose input is Mul, and of later releases.
EARLY_LAYER, EARLY, LATER = "Mul", (128.0, 128.0), (0.0, 255.0)
# Class index of the military uniform, which the default image shows, in the graph of 2015 and in later graphs.
UNIFORM = {866, 653}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the tool to those of `classify`."""
    classify.add_arguments(parser)
    parser.add_argument("--root-dir", default="", help="folder that contains the image, graph and label files")
    add_boolean(parser, "--self-test", "exit 1 unless the first class is a military uniform (default: false)")


def run(args: Namespace) -> int:
    """Classify, and print the output of the tool.

    Raises:
        CheckError: the self test fails.
    """
    args.classic = True
    root = Path(args.root_dir).expanduser()
    if not (args.graph or args.model):
        args.graph, args.labels = str(DATA / GRAPH), args.labels or str(DATA / LABELS)
    args.graph = args.graph and str(_inside(root, args.graph))
    args.labels = args.labels and str(_inside(root, args.labels))
    args.image = [str(_inside(root, name)) for name in args.image or ([] if args.images else [str(DATA / IMAGE)])]
    if args.input_layer:
        mean, std = EARLY if args.input_layer.partition(":")[0] == EARLY_LAYER else LATER
        args.input_mean = mean if args.input_mean is None else args.input_mean
        args.input_std = std if args.input_std is None else args.input_std
    first = classify.classify_and_print(args)[0]
    if args.self_test and first[0].index not in UNIFORM:
        raise CheckError(
            "the first class is not a military uniform", hint="use --self_test with the default image of the tool"
        )
    return 0


def _inside(root: Path, name: str) -> Path:
    """Return the path of a file in the root folder; names of model cards and absolute paths stay unchanged."""
    path = Path(name).expanduser()
    return root / path if (root / path).exists() else path
