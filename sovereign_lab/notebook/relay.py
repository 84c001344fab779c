"""Blocks that wait for one another within a launch: chapter 22's kernel in miniature, and exercise 22.1.

Every block adds up, step by step, the words that all blocks have brought, and reads a note that its neighbour has left
in ordinary memory. `BARRIERS` does it with two barriers of the grid a step.
"""

from typing import Any

import numpy as np

from sovereign_lab.devices.signature import without_comments
from sovereign_lab.devices.simt.device import KernelFault, SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.measure.sanitizer import sanitize

THREADS = 32
SLOTS = 3
NOT_YET = 0xFFFFFFFF
# Grids and steps that the check tries: more blocks than one, more steps than slots.
SIZES = ((4, 12), (7, 20), (1, 5))

BARRIERS = """\
#include <cooperative_groups.h>
#include "messages.cuh"
#include "warp.cuh"

// Step by step every block adds up what all have brought, and reads its neighbour's note.
extern "C" __global__ void relay(unsigned* words,  // [3, blocks], NOT_YET everywhere
                                 unsigned* notes,  // [steps, blocks]
                                 unsigned* sums,   // [steps, blocks]
                                 int steps) {
  int lane = lane_index(), blocks = gridDim.x, me = blockIdx.x;
  unsigned sum = 0;
  for (int step = 0; step < steps; step++) {
    if (lane == 0) {
      notes[step * blocks + me] = sum % 1000 + me;
      words[me] = sum % 1000 + 7 * me + step;
    }
    cooperative_groups::this_grid().sync();  // all have brought theirs
    unsigned word = lane < blocks ? words[lane] : 0;
    __syncwarp();
    for (int mask = 16; mask > 0; mask /= 2) word += __shfl_xor_sync(FULL_WARP, word, mask);
    sum = word + notes[step * blocks + (me + 1) % blocks];
    if (lane == 0) sums[step * blocks + me] = sum;
    cooperative_groups::this_grid().sync();  // all have read: the next step may write
  }
}
"""

# The same without notes, by messages; with two slots it hangs.
AGREE = """\
#include "messages.cuh"
#include "warp.cuh"

#define SLOTS 2

// Step by step every block adds up what all have brought. A slot of words is used again SLOTS steps later.
extern "C" __global__ void agree(unsigned* words,  // [SLOTS, blocks], NOT_YET everywhere
                                 unsigned* sums,   // [steps, blocks]
                                 int steps) {
  int lane = lane_index(), blocks = gridDim.x, me = blockIdx.x;
  unsigned sum = 0;
  for (int step = 0; step < steps; step++) {
    unsigned *now = words + step % SLOTS * blocks, *next = words + (step + 1) % SLOTS * blocks;
    if (lane == 0) {
      say(next + me, NOT_YET);
      __threadfence();  // who sees the word has seen the poison
      say(now + me, sum % 1000 + 7 * me + step);
    }
    unsigned word = lane < blocks ? await(now + lane) : 0;
    __syncwarp();
    for (int mask = 16; mask > 0; mask /= 2) word += __shfl_xor_sync(FULL_WARP, word, mask);
    sum = word;
    if (lane == 0) sums[step * blocks + me] = sum;
  }
}
"""


def agree(slots: int, source: str = AGREE, blocks: int = 4, steps: int = 12) -> str:
    """What the SIMT device says of `AGREE` with so many slots: the last sums, or who waits where in block 0."""
    device = SimtDevice()
    try:
        args = device.arguments(
            {
                "words": np.full((slots, blocks), NOT_YET, np.uint32),
                "sums": np.zeros((steps, blocks), np.uint32),
                "steps": steps,
            }
        )
        kernel = device.compile(source.replace("SLOTS 2", f"SLOTS {slots}"), name="agree.cu")
        device.launch(kernel, blocks, THREADS, list(args.values()), cooperative=True)
        return f"{steps} steps; the last sums: {device.to_host(args['sums'])[-1].tolist()}"
    except KernelFault as error:
        return str(error).split("\ndeadlock in block (1")[0]
    finally:
        device.close()


def arguments(blocks: int, steps: int) -> dict[str, Any]:
    """The kernel's arguments by name: the words poisoned, the rest zeros."""
    return {
        "words": np.full((SLOTS, blocks), NOT_YET, np.uint32),
        "notes": np.zeros((steps, blocks), np.uint32),
        "sums": np.zeros((steps, blocks), np.uint32),
        "steps": steps,
    }


def expected(blocks: int, steps: int) -> np.ndarray:
    """The sums [steps, blocks] that it must give."""
    sums, me = np.zeros(blocks, np.int64), np.arange(blocks)
    found = []
    for step in range(steps):
        notes, words = sums % 1000 + me, sums % 1000 + 7 * me + step
        sums = words.sum() + np.roll(notes, -1)
        found.append(sums)
    return np.array(found, np.uint32)


def run(source: str, blocks: int = 4, steps: int = 12, name: str = "yours.cu") -> np.ndarray:
    """The sums [steps, blocks] that a relay gives on the SIMT device. Raises LabError, KernelFault where it hangs."""
    device = SimtDevice()
    try:
        args = device.arguments(arguments(blocks, steps))
        kernel = device.compile(source, name=name)
        device.launch(kernel, blocks, THREADS, list(args.values()), cooperative=True)
        return device.to_host(args["sums"])
    finally:
        device.close()


def traced(source: str, blocks: int = 4, steps: int = 12) -> Trace:
    """Every access of a relay."""
    return trace(
        source, blocks, THREADS, arguments(blocks, steps), name="yours.cu", cooperative=True
    )


def barriers(source: str) -> int:
    """Barriers that a block's warp passes in 12 steps."""
    return sum(row.barriers for row in traced(source).flow) // 4


# ---- exercise 22.1: messages in place of barriers ----


def fault(source: str) -> str | None:
    """What is wrong with a relay: None for nothing. Raises LabError where it does not compile or does not run."""
    for blocks, steps in SIZES:
        where = f"{blocks} blocks, {steps} steps"
        try:
            got = run(source, blocks, steps)
        except KernelFault as error:
            if "deadlock" not in str(error):
                raise
            first = str(error).splitlines()[0]
            return (
                f"{where}: the grid hangs. Someone waits for a word that is never said, or that was poisoned again "
                f"before all had read it: who may still be waiting for a word when it is poisoned? {first}"
            )
        wrong = np.argwhere(got != expected(blocks, steps))
        if len(wrong):
            step, block = wrong[0]
            return (
                f"{where}: in step {step} block {block} has the sum {got[step, block]}, and should have "
                f"{expected(blocks, steps)[step, block]}. A word that still holds an earlier step's value looks as if "
                "it had been said."
            )
    code = without_comments(source)
    counts = traced(source)
    if passed := sum(row.barriers for row in counts.flow):
        return f"The sums are right, but the warps of 4 blocks pass {passed} barriers in 12 steps; messages need none."
    if counts.requests("atomic"):
        return "The sums are right, but a counter that all blocks add to is a barrier too; messages need none."
    report = sanitize(
        source, 4, THREADS, arguments(4, 12), name="yours.cu", outputs=["sums"], cooperative=True
    )
    for finding in report.findings:
        if finding.kind == "race":
            return (
                "The sums are right here, but nothing orders a note and the word that announces it: line "
                f"{finding.line} reads what line {finding.other_line} writes. A fence belongs between the note "
                "and the word."
            )
        return f"The sanitizer finds: {finding.explanation}"
    if code.count("__threadfence()") < 2:
        return (
            "The sums are right, but only one side has a fence. The SIMT device reads in order; a GPU may read a note "
            "before the word that announces it, unless a fence follows the wait as well."
        )
    return None


def check(source: str) -> str:
    """What a solved exercise says. Raises LabError with what is wrong."""
    wrong = fault(source)
    if wrong is not None:
        raise LabError(wrong)
    return (
        f"Right in {len(SIZES)} grids and free of races; barriers of the grid in 12 steps: "
        f"{barriers(BARRIERS)} before, {barriers(source)} after."
    )
