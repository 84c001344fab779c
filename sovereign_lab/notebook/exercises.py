"""Exercises: a check that says what is wrong, and a solution to look at when one is stuck.

`check("07.1", answer)` prints a verdict; `solution("07.1")` shows the file under notebooks/solutions/.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from IPython.display import Markdown

from sovereign_lab.devices import Device, open_device
from sovereign_lab.devices.signature import without_comments
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.cases import Case, cases
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, trace
from sovereign_lab.models.quants import quantise_q4_0
from sovereign_lab.notebook import (
    card_estimate,
    double_offset,
    float4,
    fragments,
    gemv_control,
    kv_bytes,
    norm_gemv,
    online_softmax,
    open_bench,
    relay,
    samplers,
    side_by_side,
    split_parts,
    swizzle,
    tile_places,
    tile_waste,
    verdicts,
)
from sovereign_lab.notebook.array_traffic import array_traffic
from sovereign_lab.notebook.challenges import CHALLENGES
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.threads import barriers_by_thread

# Floats on either side of an output that a kernel must leave alone, and what they hold.
CANARIES = 64
CANARY = np.float32(-12345.678)
TOLERANCE = 1e-5


class NotSolvedError(Exception):
    """What is wrong with an answer, in a sentence; without one, the answer is still the starter."""


def check(exercise: str, answer: Any) -> None:
    """Print whether `answer` solves the exercise, and if not, what is wrong. Raises LabError for an unknown one."""
    if exercise not in _CHECKS:
        raise LabError(f"There is no exercise {exercise!r}; there are {', '.join(_CHECKS)}.")
    try:
        print(f"Exercise {exercise}: solved. {_CHECKS[exercise](answer)}")
    except NotSolvedError as error:
        print(f"Exercise {exercise}: not solved yet. {error}".rstrip())


def solution(exercise: str) -> Markdown:
    """Show the solution of an exercise. Raises LabError for an unknown one."""
    if exercise not in _CHECKS:
        raise LabError(f"There is no exercise {exercise!r}; there are {', '.join(_CHECKS)}.")
    return Markdown(f"```python\n{solution_text(exercise)}```")


def solution_text(exercise: str) -> str:
    """The Python that solves an exercise, to be run in place of its starter cell."""
    return in_checkout(f"notebooks/solutions/{exercise.replace('.', '_')}.py").read_text()


# ---- 07.1: count the sectors of a request ----

PATTERNS = {
    "32 neighbours, 4 bytes a lane": (range(0, 128, 4), 4),
    "the same, one float further on": (range(4, 132, 4), 4),
    "32 lanes, 128 bytes apart": (range(0, 4096, 128), 4),
    "all lanes at one address": ([1000] * 32, 4),
    "one byte a lane, 18 bytes apart": (range(2, 578, 18), 1),
    "16 bytes a lane": (range(0, 512, 16), 16),
    "16 bytes a lane, 8 bytes off": (range(8, 520, 16), 16),
    "three lanes only": ([64, 4, 68], 4),
    "lanes in reverse": (range(124, -4, -4), 4),
}


def _check_sectors(answer: Callable[[Sequence[int], int], int]) -> str:
    for name, (starts, size) in PATTERNS.items():
        right = len(
            {byte // SECTOR_BYTES for start in starts for byte in range(start, start + size)}
        )
        got = answer(list(starts), size)
        if got is None:
            raise NotSolvedError
        if got != right:
            raise NotSolvedError(f"{name}: {right} sectors, yours says {got!r}.")
    return f"{len(PATTERNS)} access patterns counted right."


# ---- 07.2: the coalesced GEMV without a shuffle for every block ----


def _check_broadcast(source: str) -> str:
    gemv = op("gemv_q4_0")
    starter = gemv.variant("coalesced")
    if source == starter.source:
        raise NotSolvedError
    try:
        _check_gemv(source, open_device("simt"))
        rows, blocks_per_row = 512, 64
        rng = np.random.default_rng(0)
        args = {
            "W": rng.integers(0, 60, (rows, blocks_per_row * 18), np.uint8),
            "x": rng.standard_normal(blocks_per_row * 32, np.float32),
            "y": np.full(rows, np.nan, np.float32),
            "rows": rows,
            "blocks_per_row": blocks_per_row,
        }
        grid = gemv.grid(starter, args)
        before = trace(starter.path, grid, starter.threads, args).sectors("load")
        after = trace(source, grid, starter.threads, args, name="yours.cu").sectors("load")
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    if "__shfl" in without_comments(source):
        raise NotSolvedError("The results are right, but a shuffle is still there.")
    if after > before:
        raise NotSolvedError(
            f"The results are right, but loads touch {after:,} sectors where the starter's touch {before:,}."
        )
    return f"Right on odd shapes, no shuffle in the loop, and load sectors {before:,} before, {after:,} after."


def _check_gemv(
    source: str, device: Device, launch: Variant | None = None, more: Sequence[Case] = ()
) -> None:
    """Run the kernel on odd shapes with poisoned outputs between canaries; raise NotSolvedError at what is wrong.

    The launch has the geometry of `launch`, by default that of `coalesced`. `more`: further cases.
    """
    gemv = op("gemv_q4_0")
    variant = launch or gemv.variant("coalesced")
    kernel = device.compile(source, name="yours.cu")
    for args in [*cases(gemv, np.random.default_rng(7)), *more]:
        shape = f"{args['rows']} rows of {args['blocks_per_row']} blocks"
        fenced = np.full(args["rows"] + 2 * CANARIES, CANARY)
        y = fenced[CANARIES:-CANARIES]
        y[:] = np.nan
        on_device = device.arguments(args)
        on_device["y"] = y
        device.launch(kernel, gemv.grid(variant, args), variant.threads, list(on_device.values()))
        expected = gemv.reference(args)["y"]
        if not (np.all(fenced[:CANARIES] == CANARY) and np.all(fenced[-CANARIES:] == CANARY)):
            raise NotSolvedError(f"{shape}: the kernel writes outside y.")
        if np.isnan(y).any():
            raise NotSolvedError(
                f"{shape}: row {int(np.isnan(y).argmax())} of y is never written, or is NaN."
            )
        wrong = np.abs(y - expected) > TOLERANCE * np.abs(expected).max() + TOLERANCE
        if wrong.any():
            row = int(wrong.argmax())
            raise NotSolvedError(
                f"{shape}: y[{row}] is {y[row]:.6g}, and should be {expected[row]:.6g}."
            )


# ---- 02.1: a sum over a block with fewer barriers ----

FEW_BARRIERS = 3
LANE_ORDERS: tuple[str | int, ...] = ("forward", "reverse", 5)


def _long_rows() -> Case:
    """Rows that give every thread of 256 a sum to bring: in shorter ones most bring zeros, which hide a race."""
    rows, blocks_per_row = 3, 300
    rng = np.random.default_rng(0)
    return {
        "W": quantise_q4_0(rng.standard_normal((rows, blocks_per_row * 32), np.float32)),
        "x": rng.standard_normal(blocks_per_row * 32, np.float32),
        "y": np.full(rows, np.nan, np.float32),
        "rows": rows,
        "blocks_per_row": blocks_per_row,
    }


def _check_barriers(source: str) -> str:
    starter = op("gemv_q4_0").variant("block_per_row")
    if source.replace('#include "warp.cuh"\n', "") == starter.source:
        raise NotSolvedError
    try:
        for order in LANE_ORDERS:
            device = SimtDevice(lane_order=order)
            try:
                _check_gemv(source, device, starter, [_long_rows()])
            except NotSolvedError as error:
                raise NotSolvedError(f"With the lanes in {order!r} order: {error}") from None
            finally:
                device.close()
        passed = barriers_by_thread(source, starter)
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    if passed.min() != passed.max():
        raise NotSolvedError(
            f"Some threads pass {passed.min()} barriers and others {passed.max()}: a barrier is for every thread of "
            "the block, so it must not stand in a branch that some do not take."
        )
    if passed[0] > FEW_BARRIERS:
        raise NotSolvedError(
            f"The results are right, with {passed[0]} barriers a row; {FEW_BARRIERS} are enough."
        )
    return f"Right on odd shapes and in {len(LANE_ORDERS)} lane orders; barriers a row: 9 before, {passed[0]} after."


# ---- 05.1: eight lanes a row, so that four rows share a warp ----

LANES_A_ROW = 8
ROWS_A_BLOCK = 128 // LANES_A_ROW


def edit(source: str, changes: Mapping[str, str]) -> str:
    """A source with each text on the left replaced by the one on the right. Raises LabError for one not in it."""
    for before, after in changes.items():
        if before not in source:
            raise LabError(
                f"{before!r} does not stand in the source; leave the left side as it is."
            )
        source = source.replace(before, after)
    return source


def _check_eight_lanes(source: str) -> str:
    gemv = op("gemv_q4_0")
    starter = gemv.variant("warp_per_row")
    if source == starter.source:
        raise NotSolvedError
    rows, blocks_per_row = 64, LANES_A_ROW
    rng = np.random.default_rng(0)
    args = {
        "W": rng.integers(0, 60, (rows, blocks_per_row * 18), np.uint8),
        "x": rng.standard_normal(blocks_per_row * 32, np.float32),
        "y": np.full(rows, np.nan, np.float32),
        "rows": rows,
        "blocks_per_row": blocks_per_row,
    }
    try:
        _check_gemv(source, open_device("simt"), replace(starter, rows_per_block=ROWS_A_BLOCK))
        before = trace(starter.path, gemv.grid(starter, args), starter.threads, args)
        after = trace(source, rows // ROWS_A_BLOCK, starter.threads, args, name="yours.cu")
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    lanes = min(row.lanes for row in after.lines if row.kind == "load")
    if lanes < 32:
        raise NotSolvedError(
            f"The results are right, but at {blocks_per_row} blocks a row a request has {lanes:g} lanes on average."
        )
    return (
        f"Right on odd shapes. At {blocks_per_row} blocks a row all 32 lanes load; load requests of {rows} rows: "
        f"{before.requests('load'):,} before, {after.requests('load'):,} after; sectors: "
        f"{before.sectors('load'):,} before, {after.sectors('load'):,} after."
    )


# ---- 12.1: the widest loads that Q4_0 allows ----

LOAD_BYTES = (1, 2, 4, 8, 16)
FEWEST_REQUESTS = (
    64  # a row of 64 blocks: 16 for x, 16 for the scales, two times 16 for the nibbles
)


def _check_wide_nibbles(source: str) -> str:
    gemv = op("gemv_q4_0")
    starter = gemv.variant("float4")
    if source == starter.source:
        raise NotSolvedError
    args = float4.arguments(gemv.name)
    grid = gemv.grid(starter, args)
    try:
        _check_gemv(source, open_device("simt"))
        before = trace(starter.path, grid, starter.threads, args)
        after = trace(source, grid, starter.threads, args, name="yours.cu")
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    for row in after.lines:
        sizes = {a.size for a in after.accesses(row.line)} if row.space == "global" else set()
        for size in sizes - set(LOAD_BYTES):
            raise NotSolvedError(
                f"Line {row.line} copies {size} bytes at once; a GPU has no such load, and takes several."
            )
    events = after.events
    astray = events[events["address"] % events["size"] != 0]
    if len(astray):
        raise NotSolvedError(
            f"The results are right on a CPU, but a load of {astray['size'][0]} bytes begins where {astray['size'][0]} "
            "does not divide the address: on a GPU that is a fault, or several smaller loads."
        )
    was, now = (t.requests("load") // args["rows"] for t in (before, after))
    if now > FEWEST_REQUESTS:
        raise NotSolvedError(
            f"The results are right, but a row takes {now} load requests, the starter's {was}; "
            f"{FEWEST_REQUESTS} are enough."
        )
    return f"Right on odd shapes, every load aligned, and load requests a row: {was} before, {now} after."


# ---- 08.1: the residual add inside the GEMV ----


def _check_fused_add(source: str) -> str:
    gemv = op("gemv_q4_0")
    starter = gemv.variant("coalesced")
    if source == starter.source:
        raise NotSolvedError
    device = open_device("simt")
    try:
        kernel = device.compile(source, name="yours.cu")
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    rng = np.random.default_rng(8)
    for args in cases(gemv, rng):
        shape = f"{args['rows']} rows of {args['blocks_per_row']} blocks"
        product = gemv.reference(args)["y"]
        residual = rng.standard_normal(product.shape, np.float32)
        fenced = np.full(args["rows"] + 2 * CANARIES, CANARY)
        y = fenced[CANARIES:-CANARIES]
        y[:] = residual
        grid = gemv.grid(starter, args)
        device.launch(kernel, grid, starter.threads, list({**args, "y": y}.values()))
        if not (np.all(fenced[:CANARIES] == CANARY) and np.all(fenced[-CANARIES:] == CANARY)):
            raise NotSolvedError(f"{shape}: the kernel writes outside y.")
        close = TOLERANCE * (np.abs(product).max() + 32 * np.abs(residual).max())
        wrong = ~(np.abs(y - (residual + product)) <= close)
        if wrong.any():
            row = int(wrong.argmax())
            known = {
                "the residual is lost": product,
                "nothing was added to it": residual,
                "the residual is in it 32 times, once from every lane": 32 * residual + product,
            }
            words = [
                words for words, became in known.items() if np.all(np.abs(y - became) <= close)
            ]
            raise NotSolvedError(
                f"{shape}: y[{row}] was {residual[row]:.6g}, W x is {product[row]:.6g} there, and it became "
                f"{y[row]:.6g}{': ' if words else ''}{''.join(words[:1])}."
            )
    return "Right on odd shapes: y += W x in one launch, and `add` has nothing left to do."


# ---- 09.1: coalesced by another layout: the head transposed ----


def _check_transposed(source: str) -> str:
    logits = op("logits")
    starter = logits.variant("thread_per_row")
    if source == starter.source:
        raise NotSolvedError
    device = open_device("simt")
    rng = np.random.default_rng(9)
    try:
        kernel = device.compile(source, name="yours.cu")
        for args in cases(logits, rng):
            vocab, dim = args["vocab"], args["dim"]
            # NaN behind the matrix, as far as a mixed-up index or a missing bound can reach.
            behind = (max(vocab, dim) + 2 * starter.threads) ** 2
            guarded = np.full(vocab * dim + behind, np.nan, np.float32)
            guarded[: vocab * dim] = args["W"].T.reshape(-1)
            fenced = np.full(vocab + 2 * starter.threads, CANARY)
            y = fenced[starter.threads : -starter.threads]
            y[:] = np.nan
            given = {**args, "W": guarded, "y": y}
            device.launch(kernel, logits.grid(starter, args), starter.threads, list(given.values()))
            shape = f"{vocab} rows of {dim}"
            _judge_logits(shape, fenced, starter.threads, logits.reference(args)["y"])
        vocab, dim = 256, 64
        args = {
            "W": rng.standard_normal((dim, vocab), np.float32),
            "x": rng.standard_normal(dim, np.float32),
            "y": np.zeros(vocab, np.float32),
            "vocab": vocab,
            "dim": dim,
        }
        traced = trace(source, logits.grid(starter, args), starter.threads, args, name="yours.cu")
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    found = array_traffic(traced)["W"].sectors_per_request
    if found > 4:
        raise NotSolvedError(
            f"The results are right, but a request for W touches {found:g} sectors; 32 neighbouring floats lie in 4."
        )
    return f"Right on odd shapes, and a request for W touches {found:g} sectors; it was 32."


def _judge_logits(shape: str, fenced: np.ndarray, canaries: int, expected: np.ndarray) -> None:
    """Raise NotSolvedError at what is wrong with the outputs between the canaries."""
    y = fenced[canaries:-canaries]
    if not (np.all(fenced[:canaries] == CANARY) and np.all(fenced[-canaries:] == CANARY)):
        raise NotSolvedError(f"{shape}: the kernel writes outside y.")
    if np.isnan(y).any():
        row = int(np.isnan(y).argmax())
        raise NotSolvedError(
            f"{shape}: y[{row}] is NaN: it is never written, or its sum reads outside W."
        )
    wrong = np.abs(y - expected) > TOLERANCE * np.abs(expected).max() + TOLERANCE
    if wrong.any():
        row = int(wrong.argmax())
        raise NotSolvedError(
            f"{shape}: y[{row}] is {y[row]:.6g}, and should be {expected[row]:.6g}: W now lies as [dim, vocab]."
        )


# ---- 10.1 and 11.1 ----


def _check_kv_bytes(answer: Callable[..., int]) -> str:
    wrong = kv_bytes.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return f"{len(kv_bytes.QUESTIONS)} models and positions right."


def _check_chunks(answer: Callable[[online_softmax.Pairs], Any]) -> str:
    wrong = online_softmax.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return f"{len(online_softmax.CHUNKS)} sequences of chunks right, none of them kept."


# ---- 04.1: min-p in place of top-p ----


def _check_min_p(source: str) -> str:
    starter = op("sample").variant("bisect")
    if source == starter.source:
        raise NotSolvedError
    try:
        wrong = samplers.min_p_fault(source)
        if wrong is not None:
            raise NotSolvedError(wrong)
        before, after = samplers.logit_loads(starter.source), samplers.logit_loads(source)
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    if after > before / 2:
        raise NotSolvedError(
            f"The draws are right, but a draw makes {after:,} load requests, where top-p made {before:,}: the "
            "threshold can be written down without looking at any other token."
        )
    return f"Right at {len(samplers.MIN_P_CASES)} choices, and load requests {before:,} before, {after:,} after."


# ---- 06.1: which launches of a layer may run side by side ----


def _check_side_by_side(answer: Callable[[list[side_by_side.Touches]], Any]) -> str:
    wrong = side_by_side.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    layer = side_by_side.layer_touches()
    return f"Nothing runs too early; the {len(layer)} launches of a layer need {side_by_side.fewest(layer)} steps."


# ---- 03.1: the position's offset, added exactly once ----


def _check_offset_once(source: str) -> str:
    if source == double_offset.DOUBLE_OFFSET.source:
        raise NotSolvedError
    fault = double_offset.first_fault(source)
    if fault:
        raise NotSolvedError(fault)
    return "Every position, 0 among others, writes its own slot and no other, in half and in float."


# ---- 13.1 ----


def _check_verdicts(answer: verdicts.Answer) -> str:
    wrong = verdicts.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return f"{verdicts.COUNT} sets of measurements judged right."


# ---- 01.1: a block's dot in integers ----


def _check_block_dot(answer: Callable[..., Any]) -> str:
    # Here, because it brings numba, which the other chapters need not wait for.
    from sovereign_lab.notebook import cpu_steps

    wrong = cpu_steps.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return f"{cpu_steps.BLOCKS} blocks right, a block of zeros and one at the ends of its range among them."


# ---- 17.1: a swizzle for a narrower tile ----


def _check_swizzle(answer: Callable[[int, int], Any]) -> str:
    wrong = swizzle.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return (
        f"{swizzle.ROWS} rows of {swizzle.CHUNKS} chunks, each in a place of its own, read and stored without a "
        "conflict."
    )


# ---- 18.1: the control of chapter 18 ----


def _check_control(source: str) -> str:
    if source == gemv_control.MMA.source:
        raise NotSolvedError
    try:
        mine, theirs = (gemv_control.traced(text) for text in (source, gemv_control.MMA.source))
        if made := gemv_control.products(mine):
            raise NotSolvedError(
                f"Tensor Cores still make {made} products at 32 rows of 16 blocks."
            )
        _check_gemv(source, open_device("simt"), gemv_control.MMA)
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    wrong = gemv_control.fault(mine)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return (
        "Right on odd shapes, the mma kernel's split, and no product of Tensor Cores; load requests: "
        f"{theirs.requests('load')} of the mma kernel, {mine.requests('load')} of yours."
    )


# ---- 14.1 to 14.5: the challenges of the open bench ----


def _check_challenge(which: str) -> Callable[[Any], str]:
    def grade(answer: Any) -> str:
        try:
            return open_bench.verdict(which, answer)
        except (open_bench.Refused, LabError) as error:
            raise NotSolvedError(str(error)) from None

    return grade


# ---- 15.1 and 16.1: tiles, and whose a weight is ----


def _check_tiles(answer: Callable[[int, int, int], Any]) -> str:
    wrong = tile_waste.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return f"{len(tile_waste.QUESTIONS)} shapes right, full tiles and others."


def _check_whose(answer: Callable[[int, int], Any]) -> str:
    wrong = fragments.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return "All 512 weights of 16 rows of a block found where the fragments hold them."


# ---- 19.1: where a weight lies in tiles ----


def _check_tile_places(answer: Callable[[int, int, int], Any]) -> str:
    wrong = tile_places.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return f"Nibbles and scales found in {len(tile_places.SHAPES)} matrices, odd ones among them."


# ---- 20.1: the norm inside of a product ----


def _check_norm_gemv(source: str) -> str:
    return _told(norm_gemv.check, source)


# ---- 21.1 and 22.1: parts that meet, and blocks that wait for each other ----


def _check_merge(source: str) -> str:
    if source == op("attention_merge").variant("block_per_head").source:
        raise NotSolvedError
    return _told(split_parts.check, source)


def _check_relay(source: str) -> str:
    if source == relay.BARRIERS:
        raise NotSolvedError
    return _told(relay.check, source)


def _told(checked: Callable[[str], str], source: str) -> str:
    try:
        return checked(source)
    except LabError as error:
        raise NotSolvedError(str(error)) from None


# ---- 23.1: what another card would do ----


def _check_estimate(answer: Callable[[Any, Any, int], Any]) -> str:
    wrong = card_estimate.fault(answer)
    if wrong is not None:
        raise NotSolvedError(wrong)
    return f"{len(card_estimate.CASES)} cards and loads estimated right, at both ends."


_CHECKS: dict[str, Callable[[Any], str]] = {
    "01.1": _check_block_dot,
    "07.1": _check_sectors,
    "07.2": _check_broadcast,
    "02.1": _check_barriers,
    "05.1": _check_eight_lanes,
    "12.1": _check_wide_nibbles,
    "08.1": _check_fused_add,
    "09.1": _check_transposed,
    "03.1": _check_offset_once,
    "10.1": _check_kv_bytes,
    "11.1": _check_chunks,
    "13.1": _check_verdicts,
    "04.1": _check_min_p,
    "06.1": _check_side_by_side,
    "15.1": _check_tiles,
    "16.1": _check_whose,
    "17.1": _check_swizzle,
    "18.1": _check_control,
    "19.1": _check_tile_places,
    "20.1": _check_norm_gemv,
    "21.1": _check_merge,
    "22.1": _check_relay,
    "23.1": _check_estimate,
    **{which: _check_challenge(which) for which in CHALLENGES},
}
