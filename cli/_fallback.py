"""``--max-drop``: the layers that must stay out of 8 bits for the answers to stay right."""

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from quantkit.errors import CheckError
from quantkit.quantization.fallback import Fallback, Loss, search

from ._answers import Answers
from ._conversion import Conversion
from ._judging import quality_of
from ._render import counting, log


def layers_to_keep(args: Namespace, conversion: Conversion, answers: Answers, output: Path) -> Fallback:
    """The layers that must stay float for the answers to stay within ``--max-drop``.

    Args:
        args: of the command.
        conversion: of all layers.
        answers: of the float graph.
        output: the file to be; what is known of an interrupted search is kept beside it.

    Raises:
        CheckError: there is nothing to tell the drop by.
    """
    _require_answers(args, conversion, answers)
    state = _state(conversion, answers, output)

    def measured(layers: frozenset[str]) -> Loss:
        tried = conversion.keeping(layers)
        with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
            file = Path(folder) / f"tried{output.suffix}"
            tried.write(file)
            return answers.loss(quality_of(file, tried, answers)[0])

    if state.exists():
        log(args, f"going on from what {state} keeps of an interrupted search")
    with counting(args, "searching") as shown, _keeping(args, state):
        found = search(
            [pattern.layer for pattern in conversion.plan.patterns],
            measured,
            max_drop=args.max_drop,
            seconds=args.time_budget,
            likely=_suspects(conversion),
            state=state,
            progress=lambda what, share: shown(round(1000 * share), 1000),
        )
    if found.is_complete:
        state.unlink(missing_ok=True)
    return found


@contextmanager
def _keeping(args: Namespace, state: Path) -> Iterator[None]:
    """Says what an interruption leaves."""
    try:
        yield
    except KeyboardInterrupt:
        if state.exists():
            log(args, f"{state} keeps what was measured: the same command goes on from there")
        raise


def _require_answers(args: Namespace, conversion: Conversion, answers: Answers) -> None:
    if not len(answers) or answers.are_broken:
        what = "holds NaN or infinity in every answer" if len(answers) else "has given no answers"
        raise CheckError(
            f"--max-drop {args.max_drop:g} can not be told: the float graph {what}",
            hint="; ".join(conversion.ranges.remarks) or "quantkit compare names the layer",
        )
    before = answers.top1
    by = "agreement with float" if before is None else f"top-1, in float {before}"
    what = f"that of {by}" if answers.give_classes else "the error of the outputs: 0.1 is 20 dB, 0.01 is 40 dB"
    log(args, f"the drop is {what}, on {answers.source}")


def _state(conversion: Conversion, answers: Answers, output: Path) -> Path:
    """A file of what was measured of this graph, with these ranges, on these pictures."""
    facts = conversion.ranges.provenance
    key = " ".join((facts.graph, facts.data, facts.scheme, answers.digest))
    return output.with_name(f"{output.name}.{blake2b(key.encode(), digest_size=8).hexdigest()}.fallback")


def _suspects(conversion: Conversion) -> list[str]:
    """Layers whose tensors calibration has remarked on."""
    remarked = {remark.partition(":")[0] for remark in conversion.ranges.remarks}
    return [
        pattern.layer for pattern in conversion.plan.patterns if remarked & {str(pattern.output), str(pattern.input)}
    ]
