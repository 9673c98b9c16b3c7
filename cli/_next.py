"""Commands that go on where ``quantkit quantize`` ends, as they can be copied: with the files that it was given."""

import shlex
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Next:
    """What to run next.

    Attributes:
        model: as it was named.
        output: what was written.
        source: where ranges come from, as flags.
        pictures: what answers are compared on.
        given: flags that say what is fed, and how.
        pixels: those of them that say what is done to pixels.
    """

    model: str
    output: Path
    source: tuple[str, ...] = ("--calibration", "PICTURES")
    pictures: str = "PICTURES"
    given: tuple[str, ...] = ()
    pixels: tuple[str, ...] = ()

    @classmethod
    def after(cls, args: Namespace, model: str, output: Path) -> Self:
        """After a command with these flags."""
        source = cls.source
        if args.calibration:
            source = ("--calibration", args.calibration, "--limit", str(args.limit))
        elif args.ranges:
            source = ("--ranges", args.ranges)
        pixels = _flags(args, "input_mean", "input_std")
        given = (*_flags(args, "inputs", "outputs", "recipe"), *pixels)
        return cls(model, output, source, args.held_out or args.calibration or cls.pictures, given, pixels)

    def quantize(self, target: str, *more: str, output: Path | None = None) -> str:
        """Once more, for a target, with other flags."""
        words = ("-o", str(output or self.output), "--target", target, *self.source, *more, *self.given)
        return _command("quantize", self.model, *words)

    def fused(self) -> str:
        """The same for TensorFlow's fused ops, beside what was written."""
        return self.quantize("tensorflow", output=self.output.with_stem(f"{self.output.stem}_tensorflow"))

    def benchmark(self, engine: str, *more: str) -> str:
        """The float model beside what was written."""
        return _command("benchmark", f"{self.model}@{engine}", f"{self.output}@{engine}", *more)

    def evaluate(self, engine: str, *more: str) -> str:
        """How far the float model is from itself, under other conditions."""
        words = ("--reference", self.model, "--data", self.pictures, *self.pixels, *more)
        return _command("evaluate", f"{self.model}@{engine}", *words)

    def summarize(self) -> str:
        """What the float model is made of."""
        return _command("summarize", self.model)


def _command(*words: str) -> str:
    return shlex.join(("quantkit", *words))


def _flags(args: Namespace, *names: str) -> tuple[str, ...]:
    """The words of the flags that were given."""
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    words = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in given.items()}
    return tuple(word for name, text in words.items() for word in (f"--{name.replace('_', '-')}", text))
