"""How many blocks and warps of a kernel an SM can hold at once, and what the limit is.

The sizes of an SM are in the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming
Guide; how registers and shared memory are handed out is what NVIDIA's `cuda_occupancy.h` computes, with which this
module is compared in a test.
"""

from dataclasses import dataclass

from sovereign_lab.devices.device import WARP
from sovereign_lab.errors import LabError

MAX_THREADS = 1024
MAX_REGISTERS = 255
REGISTERS_PER_SM = 65_536
REGISTER_GRANULARITY = 256  # a warp's registers come in steps of so many
PARTITIONS = 4  # each with a quarter of the registers, and warps that it keeps


@dataclass(frozen=True)
class SM:
    """What one streaming multiprocessor of a compute capability has; shared memory in bytes.

    `shared_per_block` is the most that a block may ask for (above 48 KiB only if its launch opts in), `reserved` what
    the driver takes for itself in each block.
    """

    arch: int
    warps: int
    blocks: int
    shared: int
    shared_per_block: int
    shared_granularity: int
    reserved: int


SMS = {
    sm.arch: sm
    for sm in (
        SM(75, 32, 16, 64 << 10, 64 << 10, 256, 0),
        SM(80, 64, 32, 164 << 10, 163 << 10, 128, 1 << 10),
        SM(86, 48, 16, 100 << 10, 99 << 10, 128, 1 << 10),
        SM(89, 48, 24, 100 << 10, 99 << 10, 128, 1 << 10),
        SM(90, 64, 32, 228 << 10, 227 << 10, 128, 1 << 10),
        SM(120, 48, 24, 100 << 10, 99 << 10, 128, 1 << 10),
    )
}


@dataclass(frozen=True)
class Card:
    """A GPU by the name it is sold under: its compute capability, its SMs, and where these figures are from."""

    name: str
    arch: int
    sms: int
    origin: str


CARDS = (
    Card("RTX 2080 Ti", 75, 68, "NVIDIA Turing GPU Architecture white paper"),
    Card("T4", 75, 40, "NVIDIA Turing GPU Architecture white paper"),
    Card("A100", 80, 108, "NVIDIA A100 Tensor Core GPU Architecture white paper"),
    Card("RTX 3090", 86, 82, "NVIDIA Ampere GA102 GPU Architecture white paper"),
    Card("RTX 4090", 89, 128, "NVIDIA Ada GPU Architecture white paper"),
    Card("H100 SXM", 90, 132, "NVIDIA H100 Tensor Core GPU Architecture white paper"),
    Card("H200", 90, 132, "what the driver reports of an H200"),
    Card("RTX 5060 Ti", 120, 36, "data sheet: 4,608 CUDA cores, 128 an SM"),
    Card("RTX 5090", 120, 170, "NVIDIA RTX Blackwell GPU Architecture white paper"),
)


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that an SM holds at once; `share` is the warps' part of the most it can hold, 0 to 1.

    `limited_by` names what allows no more blocks: "warps", "blocks", "registers" or "shared memory"; several where
    they allow equally many. No block at all means that the kernel cannot be launched.
    """

    blocks: int
    warps: int
    share: float
    limited_by: tuple[str, ...]


def occupancy(registers: int, shared_bytes: int, threads: int, arch: int) -> Occupancy:
    """The occupancy of a kernel with `registers` a thread, `shared_bytes` (static and dynamic) and `threads` a block.

    `arch` is a compute capability as in sm_90: 90. The launch is taken to opt in to as much shared memory as the
    block needs, the SM to give all it has to shared memory rather than to L1, and a block to use no barrier but that
    of `__syncthreads`. Raises LabError for an arch that is not in `SMS` and for figures that no compiler gives or no
    launch may have.

    Registers are given a warp at a time, in steps of 256, within one of four partitions of 16,384:
    warps = floor(16384 / roundup(32 registers, 256)) * 4. Shared memory is given a block at a time, in steps.
    """
    sm = sm_of(arch)
    if not 1 <= threads <= MAX_THREADS:
        raise LabError(
            f"A block has 1 to {MAX_THREADS:,} threads; got {threads}. Launch more blocks instead."
        )
    if not 1 <= registers <= MAX_REGISTERS:
        raise LabError(
            f"A thread has 1 to {MAX_REGISTERS} registers; got {registers}. Take the compiler's own figure."
        )
    if shared_bytes < 0:
        raise LabError(f"A block has 0 or more bytes of shared memory; got {shared_bytes}.")
    warps = -(-threads // WARP)
    limits = {
        "warps": sm.warps // warps,
        "registers": _blocks_by_registers(registers, warps),
        "shared memory": _blocks_by_shared(shared_bytes, sm),
        "blocks": sm.blocks,
    }
    blocks = min(limits.values())
    limited_by = tuple(name for name, most in limits.items() if most == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / sm.warps, limited_by)


def more_blocks_with(registers: int, shared_bytes: int, threads: int, arch: int) -> int | None:
    """The most registers a thread with which an SM would hold more blocks; None where fewer registers would not help.

    Arguments and errors as `occupancy`.
    """
    now = occupancy(registers, shared_bytes, threads, arch).blocks
    return next(
        (
            fewer
            for fewer in range(registers - 1, 0, -1)
            if occupancy(fewer, shared_bytes, threads, arch).blocks > now
        ),
        None,
    )


def sm_of(arch: int) -> SM:
    """The SM of a compute capability; raises LabError with those that are known."""
    if arch not in SMS:
        known = ", ".join(map(str, SMS))
        raise LabError(f"There is no table for sm_{arch}; the compute capabilities are {known}.")
    return SMS[arch]


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _blocks_by_registers(registers: int, warps: int) -> int:
    a_warp = _round_up(registers * WARP, REGISTER_GRANULARITY)
    # At a launch the hardware takes a block's warps as if they were spread evenly over the partitions.
    if a_warp * _round_up(warps, PARTITIONS) > REGISTERS_PER_SM:
        return 0
    return REGISTERS_PER_SM // PARTITIONS // a_warp * PARTITIONS // warps


def _blocks_by_shared(shared_bytes: int, sm: SM) -> int:
    block = _round_up(shared_bytes + sm.reserved, sm.shared_granularity)
    if block > sm.shared_per_block + sm.reserved:
        return 0
    return sm.shared // max(block, 1)  # no shared memory: no limit
