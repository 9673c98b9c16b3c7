"""``quantkit label_image``: the flags and the output of TensorFlow's tool; `classify` is the present command."""

from argparse import ArgumentParser, Namespace

from . import classify
from ._arguments import add_boolean

EXAMPLES = (
    "quantkit label_image --image=panda.jpg --graph=graph.pb --labels=labels.txt --input_layer=Mul "
    "--output_layer=softmax --input_mean=128 --input_std=128",
)


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
    from quantkit.compat.label_image import LabelImageFlags, check_self_test

    args.classic = True
    flags = LabelImageFlags(
        args.graph or args.model,
        args.labels,
        (*args.images, *args.image),
        args.input_layer,
        args.input_mean,
        args.input_std,
    )
    flags = flags.with_default_files().with_default_preprocessing().in_folder(args.root_dir)
    if args.model and not args.graph:
        args.model = flags.graph
    else:
        args.graph = flags.graph
    args.labels, args.images, args.image = flags.labels, [], [*flags.images]
    args.input_mean, args.input_std = flags.input_mean, flags.input_std
    first = classify.classify_and_print(args)[0]
    if args.self_test:
        check_self_test(first[0].index)
    return 0
