"""What is to be quantized, and how: the scheme and the plan that the flags of ``quantkit quantize`` ask for."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from quantkit.benchmark.machine import this_machine
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.quantization import Plan, Scheme, annotate
from quantkit.quantization.ranges import graph_digest

from ._render import log

# Targets whose engines multiply u8 with s8 codes.
SATURATING = ("onnx", "tensorflow")
# Instructions that add products of codes in 32 bits.
DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"})


def chosen_scheme(args: Namespace) -> Scheme:
    """The scheme of ``--plan`` or ``--scheme``, or what suits the target, with what other flags say of it.

    Raises:
        UsageError: flags contradict one another.
        InputError: a file can not be read.
    """
    scheme = _named_scheme(args)
    if args.target and args.target != scheme.target:
        given = args.plan or args.scheme
        raise UsageError(f"--target is {args.target}, and {given} is for {scheme.target}", hint="leave one out")
    if args.observer:
        scheme = scheme.with_(observer=args.observer)
    if args.weights_only:
        scheme = scheme.with_(weights_only=True)
    if args.reduce_range and scheme.target not in SATURATING:
        raise UsageError(
            f"--reduce-range is for --target {' or '.join(SATURATING)}: {scheme.target} has weights of its own",
            hint="leave it out",
        )
    is_needed = not args.plan and not args.reduce_range and not scheme.weights_only and _saturates(scheme)
    if is_needed:
        log(args, "this processor adds products of codes in 16 bits: weights take 7 bits, which it can not overflow")
    return (
        scheme.with_(weights=replace(scheme.weights, reduce_range=True)) if args.reduce_range or is_needed else scheme
    )


def chosen_plan(args: Namespace, graph: Graph, scheme: Scheme) -> Plan:
    """The plan of ``--plan``, or a new one; it goes to ``--save-plan``.

    Args:
        args: of the command.
        graph: in float, prepared.
        scheme: as `chosen_scheme` has it.

    Raises:
        InputError: the plan can not be read, or speaks of what is not in the graph.
    """
    if args.plan:
        plan = Plan.load(Path(args.plan).expanduser())
        plan.require_nodes(graph)
        if plan.graph and plan.graph != graph_digest(graph):
            log(args, "the plan was made for another graph, which has nodes of the same names")
    else:
        plan = annotate(graph, scheme)
    save_plan(args, graph, plan)
    return plan


def save_plan(args: Namespace, graph: Graph, plan: Plan) -> None:
    """Write ``--save-plan``, where it is asked for."""
    if args.save_plan:
        replace(plan, graph=graph_digest(graph)).save(Path(args.save_plan).expanduser())


def _named_scheme(args: Namespace) -> Scheme:
    if args.plan:
        for flag in ("scheme", "observer", "reduce_range", "weights_only", "max_drop"):
            given = getattr(args, flag)
            if given is not None and given is not False:
                raise UsageError(
                    f"--{flag.replace('_', '-')} decides anew what --plan has decided",
                    hint="leave one out; what is to be 8 bits can be edited in the plan",
                )
        return Plan.load(Path(args.plan).expanduser()).scheme
    if args.scheme:
        return Scheme.load(Path(args.scheme).expanduser())
    return Scheme.for_target(args.target or "onnx")


def _saturates(scheme: Scheme) -> bool:
    """Whether this processor adds pairs of u8 x s8 products in 16 bits, which full weights overflow."""
    isa = set(this_machine().isa)
    return scheme.target in SATURATING and "avx2" in isa and not DOT_PRODUCTS & isa
