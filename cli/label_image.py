"""``quantkit label_image``: TensorFlow's tool of that name, called as it was; `classify` is the same in our words."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from quantkit.errors import CheckError

from . import classify
from ._arguments import add_boolean

EXAMPLES = (
    "quantkit label_image --image=panda.jpg --graph=graph.pb --labels=labels.txt --input_layer=Mul "
    "--output_layer=softmax --input_mean=128 --input_std=128",
)
# Where the tool's own files lie in TensorFlow's sources, which it was called from.
DATA = Path("tensorflow/examples/label_image/data")
PICTURE, GRAPH, LABELS = "grace_hopper.jpg", "inception_v3_2016_08_28_frozen.pb", "imagenet_slim_labels.txt"
# What the tool took off the pixels and divided them by: in its first releases, whose graph begins at Mul, and later.
EARLY_LAYER, EARLY, LATER = "Mul", (128.0, 128.0), (0.0, 255.0)
# The military uniform on its own picture, as the graph of 2015 and later ones number classes.
UNIFORM = {866, 653}


def add_arguments(parser: ArgumentParser) -> None:
    """The tool's flags; those of `classify` are taken, too."""
    classify.add_arguments(parser)
    parser.add_argument("--root-dir", default="", help="folder that the names of picture, graph and labels begin in")
    add_boolean(parser, "--self-test", "exit 1 unless the first class is a military uniform (false)")


def run(args: Namespace) -> int:
    """Classify, and say it in the old words.

    Raises:
        CheckError: the self test fails.
    """
    args.classic = True
    root = Path(args.root_dir).expanduser()
    if not (args.graph or args.model):
        args.graph, args.labels = str(DATA / GRAPH), args.labels or str(DATA / LABELS)
    args.graph = args.graph and str(_below(root, args.graph))
    args.labels = args.labels and str(_below(root, args.labels))
    args.image = [str(_below(root, name)) for name in args.image or ([] if args.images else [str(DATA / PICTURE)])]
    if args.input_layer:
        mean, std = EARLY if args.input_layer.partition(":")[0] == EARLY_LAYER else LATER
        args.input_mean = mean if args.input_mean is None else args.input_mean
        args.input_std = std if args.input_std is None else args.input_std
    first = classify.classify_and_print(args)[0]
    if args.self_test and first[0].index not in UNIFORM:
        raise CheckError("the first class is no military uniform", hint="--self_test is for the tool's own picture")
    return 0


def _below(root: Path, name: str) -> Path:
    """A file of the root folder; names of cards, and paths from the root of the disk, are what they are."""
    path = Path(name).expanduser()
    return root / path if (root / path).exists() else path
