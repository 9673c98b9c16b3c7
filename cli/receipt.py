"""``quantkit receipt``: print how a quantized file was made, and check it."""

from argparse import ArgumentParser, Namespace

from quantkit.model.receipt import receipt

from ._render import emit

EXAMPLES = (
    "quantkit receipt digits.int8.onnx",
    "quantkit receipt digits.int8.onnx --sign key.pem",
    "quantkit receipt digits.int8.onnx --verify-key public.pem --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", metavar="FILE", help="quantized file or SavedModel folder")
    parser.add_argument("--sign", metavar="KEY", help="sign the file with this private key (PEM) into FILE.sig")
    parser.add_argument("--verify-key", metavar="KEY", help="verify FILE.sig with this public key (PEM)")


def run(args: Namespace) -> int:
    """Print the receipt, and check that graph and weights are those of the receipt."""
    result = receipt(args.model, sign=args.sign, verify_key=args.verify_key)
    emit(args, result)
    result.check()
    return 0
