"""A runtime as one object: its name, the models and options that it supports, and its `open`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit.arguments import require_choice
from quantkit.cores import cpu_flags, restricted_threads
from quantkit.errors import UnavailableError, UsageError
from quantkit.formats.kinds import KINDS, kind_of
from quantkit.ir.graph import Graph
from quantkit.registry import FUNCTION, TITLE, check_fields, is_text, is_texts
from quantkit.runtimes.availability import Availability, require
from quantkit.runtimes.fixed_sizes import explainer
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.session import PRECISIONS, Session, SessionOptions

# Limits of the instructions that oneDNN may use: a processor with a lower one may run at a higher clock.
ONEDNN_ISAS = ("AVX2", "AVX512_CORE", "AVX512_CORE_VNNI")
# Environment variable with the limit.
ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
# Instruction sets without dot products of 8-bit integers: the limit, and the features that a processor needs for it.
ISAS = {
    "avx2": ("AVX2", frozenset({"avx2"})),
    "avx512": ("AVX512_CORE", frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})),
}


def isa_environment(isa: str) -> dict[str, str]:
    """Return the environment variables that limit the kernels of oneDNN to an instruction set.

    Raises:
        UsageError: there is no such instruction set.
        UnavailableError: the processor does not have it.
    """
    require_choice(tuple(ISAS), isa=isa)
    limit, features = ISAS[isa]
    if not features <= cpu_flags():
        others = [name for name, (_, flags) in ISAS.items() if flags <= cpu_flags()]
        hint = f"use --isa {others[0]}, or a processor with {isa}" if others else "omit --isa"
        raise UnavailableError(f"this processor has no {isa} instructions", hint=hint)
    return {ISA_VARIABLE: limit}


def is_limited(isa: str) -> bool:
    """Return True if the process was started with the limit of an instruction set for the kernels of oneDNN."""
    return isa in ISAS and os.environ.get(ISA_VARIABLE) == ISAS[isa][0]


@dataclass(frozen=True)
class Runtime:
    """Inference runtime that opens models in sessions.

    Attributes:
        name: name on the command line: ``onnxruntime``.
        title: name in messages: ``ONNX Runtime``.
        available: function that returns the installed version, or the reason why the runtime is missing; it imports
            nothing heavy.
        open_model: function that opens a checked model with checked options. It imports the runtime, and may raise
            `UnavailableError`, `InputError` or `GraphError`.
        load: function that imports the runtime, without an effect on later sessions.
        find_int8_nodes: function that returns the names of the nodes that compute in int8 after the runtime's own
            rewrites of a graph; None if the runtime does not show them.
        kinds: kinds of files (keys of `quantkit.formats.KINDS`) that the runtime opens itself.
        own_kinds: the kinds of them that are made for the runtime: ``auto`` prefers it for such a file, as others
            compute some of its int8 layers with much larger errors.
        dialects: dialects of the graphs that `open_model` takes.
        native_dialect: the one of them that runs without a conversion; empty if all graphs are converted.
        keeps_tensors: True if each tensor of a graph can be an output and has the value that the graph defines; False
            if compilation changes or removes intermediate tensors.
        devices: ``cpu``, ``gpu`` or both.
        precisions: arithmetic that the runtime can use, as in `SessionOptions.precision`.
        has_threads: True if the runtime has thread options (``intra_op``, ``inter_op``).
        has_inter_op: True if ops run in parallel in threads of their own; False if ``inter_op`` only enlarges the pool.
        can_omit_optimizer: True if sessions can compute the nodes without rewrites (`SessionOptions.optimized`).
        tunables: further settings with an effect on the latency, and the values to measure: the session
            option ``spinning`` and environment variables.
        native_options: function that returns the options of a session as code for the runtime's own API, given the
            options and the path of the file as an expression of the code.
        decodes_images: True if the runtime has kernels for ops such as DecodeJpeg.
        traces_ops: True if its sessions measure the time of each op: see `SessionOptions.profile`.
        fuses_float_ops: True if an int8 convolution and the float ops after it, such as SiLU, are one kernel.
        transposes_convolutions: True if the runtime has an int8 kernel of transposed convolutions.
        op_domains: operator sets of the runtime itself, next to those of ONNX.
        has_custom_op: function that returns True if a library of the user adds an op type to the runtime.
        compiles_sizes: the first call with new sizes of the inputs compiles kernels, for many times the time of a call.
        weight_copies: copies of the weights in memory while a model is loaded, for memory estimates.
        describe_build: function that returns facts about the build: versions, providers, devices.
        describe_telemetry: function that returns the state of the usage reports of the package in this process.
        package: Python package with the libraries of the runtime.
        variables: environment variables with an effect on the runtime, next to those of OpenMP.
        priority: rank for ``auto``; the runtime with the highest one is tried first.
    """

    name: str
    title: str
    available: Callable[[], Availability]
    open_model: Callable[[Graph | Path, SessionOptions], Session]
    load: Callable[[], object] = lambda: None
    find_int8_nodes: Callable[[Graph], frozenset[str]] | None = None
    kinds: tuple[str, ...] = ()
    own_kinds: tuple[str, ...] = ()
    dialects: tuple[str, ...] = ()
    native_dialect: str = ""
    keeps_tensors: bool = False
    devices: tuple[str, ...] = ("cpu",)
    precisions: tuple[str, ...] = ("float32",)
    has_threads: bool = True
    has_inter_op: bool = False
    can_omit_optimizer: bool = False
    tunables: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    native_options: Callable[[SessionOptions, str], str] | None = None
    decodes_images: bool = False
    traces_ops: bool = False
    fuses_float_ops: bool = False
    transposes_convolutions: bool = False
    op_domains: tuple[str, ...] = ()
    has_custom_op: Callable[[str], bool] = lambda op: False
    compiles_sizes: bool = False
    weight_copies: int = 4
    describe_build: Callable[[], tuple[str, ...]] = tuple
    describe_telemetry: Callable[[], str] = lambda: "unknown"
    package: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    priority: int = 10

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        """Open a session.

        Args:
            model: a graph of one of `dialects`, or a file of one of `kinds`.
            options: threads, device and precision.

        Raises:
            UnavailableError: the runtime is not installed, does not support the model, the device or the precision, or
                runs threads on CPUs that this process may not use.
            UsageError: the device is not a device name.
            InputError: the file is missing or broken.
            GraphError: the runtime rejects the graph.
        """
        self._check_model(model)
        require(self.available())
        self._check_options(options)
        with restricted_threads():
            session = self.open_model(model, options)
        self._check_session(session)
        if isinstance(session, FunctionSession):
            session.explain = explainer(model, session.inputs)
        return session

    def opens(self, model: Graph | Path) -> bool:
        """Return True if the dialect of a graph or the kind of a file is one of this runtime."""
        return model.dialect in self.dialects if isinstance(model, Graph) else kind_of(model) in self.kinds

    def check_isa(self, isa: str | None) -> None:
        """Check that the runtime can be held to an instruction set; None for no limit.

        Raises:
            UnavailableError: the runtime has no switch.
        """
        if isa is not None and ISA_VARIABLE not in self.tunables:
            raise UnavailableError(
                f"{self.title} has no switch for the instruction set", hint="use --runtime openvino or tensorflow"
            )

    def _check_options(self, options: SessionOptions) -> None:
        self.check_isa(options.isa)
        if options.isa is not None and not is_limited(options.isa):
            raise UsageError(
                f"{self.title} reads the limit of the instruction set when it is loaded",
                hint=f"start the process with {ISA_VARIABLE}={ISAS[options.isa][0]}",
            )
        if options.gpu_index is not None and "gpu" not in self.devices:
            raise UnavailableError(f"{self.title} runs on the CPU only", hint="use --device cpu, or another --runtime")
        if options.gpu_index is None and "cpu" not in self.devices:
            raise UnavailableError(f"{self.title} computes on GPUs only", hint="use --device gpu")
        if options.precision not in self.precisions:
            raise UnavailableError(
                f"{self.title} does not support the precision {options.precision!r}",
                hint=f"use --precision {' or '.join(self.precisions)}, or another --runtime",
            )
        if not options.optimized and not self.can_omit_optimizer:
            raise UnavailableError(f"{self.title} always optimizes graphs", hint="use --runtime onnxruntime")
        if options.spinning is not None and "spinning" not in self.tunables:
            raise UnavailableError(
                f"the threads of {self.title} have no option for spinning",
                hint="omit --spinning, or use --runtime onnxruntime",
            )

    def _check_session(self, session: Session) -> None:
        """Check that a session of a plugin has all members; their values may take a run."""
        missing = [name for name in _SESSION_MEMBERS if not hasattr(type(session), name) and name not in vars(session)]
        if missing:
            raise UnavailableError(
                f"the sessions of {self.title} have no {', '.join(missing)}",
                hint="inherit the class of the session from quantkit.runtimes.Session, which has defaults",
            )

    def _check_model(self, model: Graph | Path) -> None:
        if self.opens(model):
            return
        message = (
            f"{self.title} opens {' and '.join(self.dialects)} graphs, not {model.dialect} graphs"
            if isinstance(model, Graph)
            else f"{self.title} cannot open {model.name}, which is {KINDS[kind_of(model)]}"
        )
        raise UnavailableError(message, hint="quantkit doctor lists the installed runtimes")


_SESSION_MEMBERS = tuple(name for name in vars(Session) if not name.startswith("_"))
_DIALECTS = ("tensorflow", "onnx")
_DEVICES = ("cpu", "gpu")


def check_runtime(runtime: Runtime) -> None:
    """Check the fields of a runtime that a plugin registers.

    Raises:
        UsageError: a field has a value that is not allowed; the message names the field and the allowed values.
    """
    dialects = ", ".join(map(repr, _DIALECTS))
    check_fields(
        runtime,
        {
            "name": ("a text without '@' and not 'auto'", _is_name),
            "title": TITLE,
            "available": FUNCTION,
            "open_model": FUNCTION,
            "load": FUNCTION,
            "find_int8_nodes": ("a function or None", lambda value: value is None or callable(value)),
            "kinds": (f"a tuple of {', '.join(KINDS)}", lambda value: is_texts(value, KINDS)),
            "own_kinds": ("a tuple of values of the field 'kinds'", lambda value: is_texts(value, runtime.kinds)),
            "dialects": (f"a tuple of {dialects}", lambda value: is_texts(value, _DIALECTS)),
            "native_dialect": ("one of the field 'dialects', or ''", lambda value: value in ("", *runtime.dialects)),
            "devices": ("'cpu', 'gpu' or both", lambda value: bool(value) and is_texts(value, _DEVICES)),
            "precisions": (
                f"a tuple of at least one of {', '.join(PRECISIONS)}",
                lambda value: bool(value) and is_texts(value, PRECISIONS),
            ),
            "tunables": (
                "a mapping of texts to tuples",
                lambda value: isinstance(value, Mapping) and all(isinstance(item, tuple) for item in value.values()),
            ),
            "native_options": ("a function or None", lambda value: value is None or callable(value)),
            "op_domains": ("a tuple of texts", lambda value: isinstance(value, tuple) and all(map(is_text, value))),
            "has_custom_op": FUNCTION,
            "weight_copies": ("an integer", lambda value: isinstance(value, int)),
            "describe_build": FUNCTION,
            "describe_telemetry": FUNCTION,
            "package": ("a text", lambda value: isinstance(value, str)),
            "variables": (
                "a mapping of texts to texts",
                lambda value: isinstance(value, Mapping) and is_texts((*value, *filter(None, value.values()))),
            ),
            "priority": ("an integer", lambda value: isinstance(value, int)),
        },
    )


def _is_name(value: Any) -> bool:
    return is_text(value) and "@" not in value and value != "auto"
