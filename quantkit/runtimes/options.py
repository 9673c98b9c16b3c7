"""Options of verbs that open a runtime."""

from dataclasses import dataclass

from quantkit.arguments import require_positive, require_text
from quantkit.options import Declaration, option
from quantkit.runtimes.runtime import ISAS
from quantkit.runtimes.session import PRECISIONS, SessionOptions

RUNTIME_NAME = Declaration(
    require_text,
    help="runtime for models without @RUNTIME (default: that of the receipt, else the fastest one)",
    doc="runtime for models without ``@RUNTIME``; ``auto``: see `quantkit.open_session`",
)


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """Arithmetic of a runtime."""

    precision: str | None = option(
        None,
        choices=PRECISIONS,
        help="lowest precision that the runtime may compute in (default: float32)",
    )
    options: SessionOptions = option(
        SessionOptions(),
        doc="threads, device and precision in one value; the other arguments override it",
    )


@dataclass(frozen=True, kw_only=True)
class ThreadOptions:
    """Thread counts of a runtime."""

    intra_op: int | None = option(
        None, require_positive, help="number of threads within one op (default: the runtime's choice)"
    )
    inter_op: int | None = option(
        None, require_positive, help="number of ops that run in parallel (default: the runtime's choice)"
    )


@dataclass(frozen=True, kw_only=True)
class IsaOptions:
    """Instruction set of oneDNN."""

    isa: str | None = option(
        None,
        choices=ISAS,
        help="limit OpenVINO and TensorFlow to the kernels of this instruction set (default: all of the processor)",
        doc="instruction set, ``avx2`` or ``avx512``, of the kernels of OpenVINO and TensorFlow (oneDNN), as on "
        "another processor. All models then run in another process",
    )
