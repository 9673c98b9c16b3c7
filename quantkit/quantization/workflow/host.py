"""Facts about this processor that decisions of the workflow depend on."""

from quantkit.benchmark.host.machine import this_machine

# Instructions with bfloat16 operands, fastest first.
BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")


def count_cores() -> int:
    """Return the number of physical cores that this process may use."""
    machine = this_machine()
    return min(machine.physical_cores or machine.logical_cores, len(machine.affinity) or machine.logical_cores)


def find_bfloat16_instruction() -> str:
    """Return the fastest bfloat16 instruction set of this processor; empty without bfloat16 arithmetic."""
    isa = this_machine().isa
    return next((name for name in BFLOAT16 if name in isa), "")
