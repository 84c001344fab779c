"""The stages of the persistent kernel: compiled again with STAMPS, one of its blocks notes the clock at each one."""

import statistics

import numpy as np

from sovereign_lab.devices import Device
from sovereign_lab.devices.device import Source
from sovereign_lab.engine import Engine
from sovereign_lab.engine.forward import Call
from sovereign_lab.errors import LabError
from sovereign_lab.measure.decode.facts import Stages
from sovereign_lab.measure.timing import start_at
from sovereign_lab.models.model import Config
from sovereign_lab.models.tiles import Q4_0_PAIR, Q8_0_PAIR, TILE_ROWS, pairs

OP = "persistent"
MOST_TILES = 24  # that a product takes at once: kernels/include/tiles.cuh
REPEATS = 7
# The SIMT device has no clock64(); there a stamp is the time of day in nanoseconds. The kernel's source stands in a
# namespace, where no header of the system can be read.
CLOCK_OF_A_CPU = """struct Instant { long seconds, nanoseconds; };
extern "C" int clock_gettime(int which, Instant* now);
static inline long long clock64() {
  Instant now;
  clock_gettime(0, &now);
  return now.seconds * 1000000000LL + now.nanoseconds;
}
"""


def stages(engine: Engine, context: int, tokens: int = 16, block: int = 5) -> Stages:
    """Run `tokens` tokens from `context` on, REPEATS times, and read block `block`'s stamps of each last one.

    Fewer tokens where the engine's context ends before, and the last block where there are not so many. `engine` is at
    a phase of one launch. Raises LabError for another phase, or where the kernel does not leave as many stamps as its
    stages are known to.
    """
    call = next((c for c in engine.decode_calls if c.op == OP), None)
    if call is None or "STAMPS" not in engine.kernels[OP][0].source:
        raise LabError(
            f"Phase {engine.phase.id} has no kernel that keeps stamps of its stages; take 13c."
        )
    plain = engine.kernels[OP]
    variant, _ = plain
    device, blocks = engine.device, _blocks(engine, call)
    block, tokens = min(block, blocks - 1), min(tokens, engine.context - context)
    names = _names(engine.model.config, call.args["ring_bytes"], block, blocks)
    kept = device.array(np.zeros(len(names) + 64, np.int64))
    stamped = Call(OP, call.args | {"stamps": kept, "count": tokens, "advance": 1})
    source = variant.source
    if device.properties.kind == "simt":
        source = CLOCK_OF_A_CPU + source
    defines = {"KV": engine.kv.kernel_type, "STAMPS": str(block)}
    kernel = device.compile(Source(source, f"{OP}/{variant.path.name}", defines))
    cycles, timed = [], []
    engine.kernels[OP] = (variant, kernel)
    try:
        for repeat in range(REPEATS + 1):
            start_at(engine, context)
            with device.timer() as timer:
                engine.launch_all([stamped])
            found = device.to_host(kept)
            if int(np.count_nonzero(found)) != len(names) + 1:
                raise LabError(
                    f"{variant.path.name} was expected to leave {len(names) + 1} stamps and left "
                    f"{int(np.count_nonzero(found))}: its stages have changed; bring measure/decode/stages.py after it."
                )
            if repeat:  # the first one warms up
                cycles.append(np.diff(found[: len(names) + 1]))
                timed.append(1e3 * timer.milliseconds / tokens)
    finally:
        engine.kernels[OP] = plain
    mhz = _clock_mhz(device)
    us = np.median(cycles, axis=0) / mhz
    return _sorted(
        engine, context, tokens, (block, blocks), mhz, names, us, statistics.median(timed)
    )


def _sorted(
    engine: Engine,
    context: int,
    tokens: int,
    where: tuple[int, int],
    mhz: float,
    names: list[tuple[int, str]],
    us: np.ndarray,
    timed_us: float,
) -> Stages:
    layers = engine.model.config.layers
    by_stage: dict[str, list[float]] = {}
    ends = {"start": 0.0, "head": 0.0, "best token": 0.0}
    for (layer, name), time in zip(names, us.tolist(), strict=True):
        if name in ends:
            ends[name] += time
        else:
            by_stage.setdefault(name, [0.0] * layers)[layer] += time
    return Stages(
        engine.phase.id, context, tokens, *where, mhz, REPEATS,
        {stage: tuple(times) for stage, times in by_stage.items()},
        ends["start"], ends["head"], ends["best token"], timed_us,
    )  # fmt: skip


def _names(c: Config, ring_bytes: int, block: int, blocks: int) -> list[tuple[int, str]]:
    """(layer, stage) of what ends at each stamp but the first, which is the token's start.

    A product that has more tiles than go at once makes several rounds; they have one name.
    """

    def product(what: str, rows: int, cols: int, pair: int = Q4_0_PAIR) -> list[str]:
        n = rounds(rows, cols, pair, ring_bytes, block, blocks)
        return [f"{what}: product", f"{what}: barrier"] * n

    layer = [
        "QKV: take x", *product("QKV", c.q_dim + 2 * c.kv_dim, c.dim), "QKV: sums and messages",
        "attention",
        "O: take attended", *product("O", c.dim, c.q_dim), "O: sums and messages",
        "gate, up: take x", *product("gate, up", 2 * c.ffn_dim, c.dim), "gate, up: sums and messages",
        "down: take hidden", *product("down", c.dim, c.ffn_dim), "down: sums and messages",
    ]  # fmt: skip
    head = len(product("", c.vocab, c.dim, Q8_0_PAIR)) + 1
    return [
        *((i, name) for i in range(c.layers) for name in layer),
        *((c.layers, "head") for _ in range(head)),
        (c.layers, "best token"),
    ]


def rounds(rows: int, cols: int, pair: int, ring_bytes: int, block: int, blocks: int) -> int:
    """In how many rounds a block multiplies its tiles of a matrix, at least one; Share in the kernel. `pair`: words."""
    tiles = -(-rows // TILE_ROWS)
    own = tiles * (block + 1) // blocks - tiles * block // blocks
    tile_bytes = pairs(cols) * pair * 4
    fit = own * tile_bytes <= ring_bytes // 3 * 2  # all at once, or some while others come
    most = MOST_TILES if fit else ring_bytes // 8 * 3 // tile_bytes
    at_once = min(MOST_TILES, max(4, most // 4 * 4))
    return max(1, -(-own // at_once))


def _blocks(engine: Engine, call: Call) -> int:
    """Blocks of the kernel's launch: a pair of words of `bests` for each, three times."""
    return int(call.args["bests"].shape[1])


def _clock_mhz(device: Device) -> float:
    """Cycles of clock64() a microsecond: the GPU's highest clock, which it holds under such a load."""
    if device.properties.kind == "simt":
        return 1000.0
    import cupy

    return float(cupy.cuda.Device().attributes["ClockRate"]) / 1e3
