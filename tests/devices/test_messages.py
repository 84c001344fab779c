"""Messages between blocks, bulk copies and named barriers on the SIMT device: right ones work, wrong are told of."""

import shutil
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sovereign_lab.devices.simt import builder
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.measure.sanitizer import Report, sanitize

ORDERS: list[str | int] = ["forward", "reverse", 2, 12345]
POISON = 0xFFFFFFFF


@pytest.fixture(params=["g++", "clang++"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The compiler in use while a test runs."""
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("CXX", request.param)
    builder.find_compiler.cache_clear()
    yield request.param
    builder.find_compiler.cache_clear()


@pytest.fixture(params=ORDERS)
def device(compiler: str, request: pytest.FixtureRequest) -> Iterator[SimtDevice]:
    """One for each compiler and order of lanes."""
    made = SimtDevice(lane_order=request.param)
    yield made
    made.close()


@pytest.fixture
def simt() -> Iterator[SimtDevice]:
    made = SimtDevice()
    yield made
    made.close()


def launch(
    device: SimtDevice,
    source: str,
    grid: int,
    threads: int,
    *args: Any,
    cooperative: bool = True,
    shared: int = 0,
) -> list[np.ndarray]:
    arrays = [device.array(a) if isinstance(a, np.ndarray) else a for a in args]
    device.launch(device.compile(source), grid, threads, arrays, shared, cooperative)
    return [device.to_host(a) for a in arrays if isinstance(a, np.ndarray)]


def poisoned(*shape: int) -> np.ndarray:
    return np.full(shape, POISON, np.uint32)


# ---- messages ----

RING = """#include "messages.cuh"
extern "C" __global__ void ring(unsigned* box, unsigned* out, int rounds) {  // [rounds, blocks]
  int t = threadIdx.x, blocks = gridDim.x, b = blockIdx.x;
  __shared__ unsigned sum;
  if (t == 0) sum = b;
  __syncthreads();
  for (int r = 0; r < rounds; r++) {
    if (t == 0) {
      if (b || r) sum += await(b ? box + r * blocks + b - 1 : box + r * blocks - 1);
      say(box + r * blocks + b, sum);
    }
    __syncthreads();
  }
  out[b * blockDim.x + t] = sum;
}
"""


def test_a_value_goes_round_a_ring_of_blocks(device: SimtDevice) -> None:
    blocks, rounds, threads = 5, 40, 64
    _, out = launch(
        device, RING, blocks, threads, poisoned(rounds, blocks), poisoned(blocks, threads), rounds
    )
    sums, last = list(range(blocks)), 0
    for r in range(rounds):
        for b in range(blocks):
            sums[b] = (sums[b] + (last if b or r else 0)) % 2**32
            last = sums[b]
    assert out.tolist() == [[s] * threads for s in sums]


EXCHANGE = """#include "messages.cuh"
extern "C" __global__ void answers(unsigned* box, unsigned* out) {
  int t = threadIdx.x, b = blockIdx.x, n = blockDim.x;
  unsigned mine = 1000 * b + t;
  for (int r = 0; r < 8; r++) {  // each thread with its like in the other block
    unsigned* at = box + r * 4 * n;
    if (r % 2) {
      say((uint2*)at + b * n + t, make_uint2(mine, mine + 1));
      uint2 w = await((const uint2*)at + (1 - b) * n + t);
      mine = w.x + w.y;
    } else {
      say(at + b * n + t, mine);
      uint4 w = await((const uint4*)at + (1 - b) * n / 4 + t / 4);
      mine += w.x + w.y + w.z + w.w;
    }
  }
  out[b * n + t] = mine;
}
"""


def test_two_blocks_answer_each_other(device: SimtDevice) -> None:
    n = 64
    _, out = launch(device, EXCHANGE, 2, n, poisoned(8, 4 * n), poisoned(2, n))
    mine = np.arange(n) + 1000 * np.arange(2)[:, None]
    for r in range(8):
        other = mine[::-1]
        mine = 2 * other + 1 if r % 2 else mine + other.reshape(2, -1, 4).sum(2).repeat(4, 1)
    assert out.tolist() == (mine % 2**32).tolist()


def test_threads_of_one_block_wait_in_a_plain_launch(device: SimtDevice) -> None:
    """For a message in global memory, and for a volatile shared variable, to and fro for long."""
    source = """#include "messages.cuh"
    extern "C" __global__ void f(unsigned* box, unsigned* out) {
      __shared__ volatile int ball;
      int t = threadIdx.x;
      if (t == 0) ball = 0;
      __syncthreads();
      if (t % 33 == 0)
        for (int i = 0; i < 10000; i += 2) {
          while (ball != i + t / 33) yield();
          ball = ball + 1;
        }
      if (t == 5) say(box + blockIdx.x, blockIdx.x + await(box + gridDim.x + blockIdx.x));
      if (t == 50) say(box + gridDim.x + blockIdx.x, 7);
      out[blockIdx.x * 64 + t] = await(box + blockIdx.x) + (t % 33 ? 0 : ball);
    }"""
    blocks = 3
    _, out = launch(
        device, source, blocks, 64, poisoned(2, blocks), poisoned(blocks, 64), cooperative=False
    )
    assert out[:, 1].tolist() == [7, 8, 9]
    assert out[:, 33].tolist() == [10007, 10008, 10009]


@pytest.mark.parametrize("cooperative", [True, False])
def test_a_message_that_never_comes_is_a_deadlock(compiler: str, cooperative: bool) -> None:
    device = SimtDevice()
    source = """#include "messages.cuh"
    extern "C" __global__ void f(unsigned* box, volatile unsigned* out) {
      if (threadIdx.x < 32) out[0] = await(box + 5);
      else if (threadIdx.x < 40)
        while (out[0] != 12345)
          yield();
      __syncthreads();
    }"""
    start = time.perf_counter()
    with pytest.raises(LabError) as caught:
        launch(device, source, 2, 64, poisoned(8), poisoned(8), cooperative=cooperative)
    assert time.perf_counter() - start < 10
    text = str(caught.value)
    line = next(i for i, s in enumerate(messages_source(), 1) if "    yield();" in s)
    assert f"warp 0, lanes 0-31 wait for a message at messages.cuh:{line}" in text
    assert "warp 1, lanes 0-7 wait for others, and yield at kernel.cu:6" in text
    assert "warp 1, lanes 8-31 wait in __syncthreads" in text
    if cooperative:  # each may wait for the other
        assert "deadlock in block (0,0,0)" in text and "deadlock in block (1,0,0)" in text
    device.close()


def messages_source() -> list[str]:
    return (INCLUDE / "messages.cuh").read_text().splitlines()


def test_a_deadlock_of_many_threads_is_found_soon(simt: SimtDevice) -> None:
    source = """#include "messages.cuh"
    extern "C" __global__ void f(unsigned* box) {
      if (threadIdx.x == 0 && blockIdx.x) say(box + blockIdx.x, 1);
      await(box + threadIdx.x % gridDim.x);
    }"""
    start = time.perf_counter()
    with pytest.raises(LabError, match=r"deadlock in block \(0,0,0\)"):
        launch(simt, source, 64, 1024, poisoned(64))
    assert time.perf_counter() - start < 20


def test_messages_that_a_gpu_faults_on(simt: SimtDevice) -> None:
    for call, size in (("peek((uint2*)(box + 1))", 8), ("peek((uint4*)(box + 2))", 16)):
        source = f"""#include "messages.cuh"
        extern "C" __global__ void f(unsigned* box) {{ box[0] = {call}.x; }}"""
        with pytest.raises(LabError, match=rf"peek at .*:2 .*not a multiple of {size} bytes"):
            launch(simt, source, 1, 1, poisoned(8))


# ---- bulk copies ----

PIPELINE = """#include "pipeline.cuh"
#define SLOTS 4
#define WORDS 64
extern __shared__ uint4 tiles[];  // [SLOTS, WORDS / 4]
extern "C" __global__ void sums(const unsigned* from, unsigned* out, int rounds) {  // [blocks, rounds, WORDS]
  __shared__ Arrival there[SLOTS];
  __shared__ volatile int freed;
  __shared__ int start[SLOTS];
  __shared__ unsigned shared[64];
  int t = threadIdx.x;
  if (t < SLOTS) arrival_init(&there[t]);
  if (t == 0) freed = 0;
  __syncthreads();
  from += blockIdx.x * rounds * WORDS, out += blockIdx.x * 64;
  if (t >= 64) {
    if (t > 64) return;
    for (int r = 0; r < rounds; r++) {
      while (r - freed >= SLOTS) yield();
      FENCE;
      start[r % SLOTS] = r % SLOTS * WORDS / 4;
      copy_bulk(tiles + r % SLOTS * WORDS / 4, from + r * WORDS, 4 * WORDS, &there[r % SLOTS]);
    }
    return;
  }
  unsigned sum = 0;
  for (int r = 0; r < rounds; r++) {
    if (t % 32 == r % 32) wait_for(&there[r % SLOTS], r / SLOTS & 1);
    __syncwarp();
    sum = 3 * sum + ((const unsigned*)(tiles + start[r % SLOTS]))[t];
    shared[t] = sum;
    BARRIER;
    sum += shared[63 - t];
    BARRIER;
    FENCE;
    if (t == 0) freed = r + 1;
  }
  out[t] = sum;
}
"""
PIPELINE = PIPELINE.replace("FENCE", "__threadfence_block()")
NAMED = PIPELINE.replace("BARRIER", "barrier_of(64)")
TILE_BYTES = 4 * 64 * 4


def sums_of(given: np.ndarray) -> np.ndarray:
    total = np.zeros((given.shape[0], 64), np.uint32)
    for r in range(given.shape[1]):
        total = np.uint32(3) * total + given[:, r]
        total = total + total[:, ::-1]
    return total


@pytest.mark.parametrize("cooperative", [True, False])
def test_a_warp_fetches_what_others_add_up(device: SimtDevice, cooperative: bool) -> None:
    given = np.random.default_rng().integers(0, 2**32, (3, 21, 64), np.uint32)
    _, out = launch(
        device,
        NAMED,
        3,
        96,
        given,
        poisoned(3, 64),
        21,
        cooperative=cooperative,
        shared=TILE_BYTES,
    )
    assert out.tolist() == sums_of(given).tolist()


BULK = """#include "pipeline.cuh"
extern "C" __global__ void f(const unsigned* from, unsigned* out) {
  __shared__ __align__(16) unsigned to[64];
  __shared__ Arrival there;
  if (threadIdx.x == 0) INIT;
  __syncthreads();
  if (threadIdx.x == 0)
    COPY;
  __syncthreads();
  wait_for(&there, PHASE);
  out[threadIdx.x] = to[threadIdx.x];
}
"""


def bulk(copy: str, init: str = "arrival_init(&there)", phase: int = 0) -> str:
    return BULK.replace("INIT", init).replace("COPY", copy).replace("PHASE", str(phase))


@pytest.mark.parametrize(
    ("copy", "says"),
    [
        ("copy_bulk(to, from, 24, &there)", "copies 24 bytes .* must be multiples of 16"),
        ("copy_bulk(to + 1, from, 16, &there)", "must be multiples of 16"),
        ("copy_bulk(to, from + 2, 16, &there)", "must be multiples of 16"),
        ("copy_bulk(out, from, 16, &there)", "which are not in the block's shared memory"),
        ("copy_bulk(to, from, 16, (Arrival*)out)", "names an arrival that is not in the block's"),
    ],
)
def test_wrong_bulk_copies_are_told(compiler: str, copy: str, says: str) -> None:
    device = SimtDevice()
    with pytest.raises(LabError, match=rf"copy_bulk at .*:8 .*{says}"):
        launch(device, bulk(copy), 1, 32, np.arange(64, dtype=np.uint32), poisoned(64))
    device.close()


def test_an_arrival_that_nobody_made_is_told(simt: SimtDevice) -> None:
    with pytest.raises(LabError, match=r"copy_bulk at .*:8 names an arrival that no arrival_init"):
        launch(
            simt,
            bulk("copy_bulk(to, from, 128, &there)", "to[0] = 0"),
            1,
            32,
            np.arange(64, dtype=np.uint32),
            poisoned(64),
        )


def test_a_phase_that_never_ends_is_a_deadlock(simt: SimtDevice) -> None:
    copy = "copy_bulk(to, from, 128, &there)"
    given = np.arange(64, dtype=np.uint32)
    _, out = launch(simt, bulk(copy), 1, 32, given, poisoned(64))
    assert out[:32].tolist() == list(range(32))
    launch(simt, bulk("(void)0", phase=1), 1, 32, given, poisoned(64))  # the one before the first
    for wrong in (
        bulk(copy, phase=1),
        bulk("(void)0"),
        bulk(f"{copy}, {copy}"),  # two have ended, and 0 is the third
    ):
        with pytest.raises(LabError, match=r"lanes 0-31 wait for an arrival at pipeline.cuh:\d+"):
            launch(simt, wrong, 1, 32, given, poisoned(64))


# ---- named barriers ----


def test_others_do_not_take_part_in_a_named_barrier(device: SimtDevice) -> None:
    source = """#include "pipeline.cuh"
    extern "C" __global__ void f(unsigned* out) {
      __shared__ unsigned s[128];
      unsigned t = threadIdx.x, v = t;
      s[t] = t;
      if (t >= 160) return;
      if (t >= 128) { __syncthreads(); out[t] = s[t - 128]; return; }
      for (int i = 0; i < 9; i++) {
        s[t] = v; barrier_of(128); v = s[(t + 1) % 128]; barrier_of(128);
      }
      s[t] = v;
      __syncthreads();
      out[t] = v;
    }"""
    source = source.replace("s[t] = t;\n", "if (t < 128) s[t] = t;\n")
    (out,) = launch(device, source, 1, 192, poisoned(192), cooperative=False)
    assert out[:128].tolist() == [(t + 9) % 128 for t in range(128)]
    assert out[128:160].tolist() == [t + 9 for t in range(32)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("barrier_of(40)", "must be a multiple of 32"),
        ("barrier_of(128)", "it has 64, so that a GPU would hang"),
        ("if (threadIdx.x > 31) barrier_of(32)", "thread 32, which comes there, is none of them"),
        ("if (threadIdx.x < 9) return; barrier_of(64)", "wait in barrier_of at .*:2"),
    ],
)
def test_wrong_named_barriers_are_told(simt: SimtDevice, call: str, says: str) -> None:
    source = f"""#include "pipeline.cuh"
extern "C" __global__ void f(unsigned* out) {{ {call}; }}"""
    with pytest.raises(LabError, match=says):
        launch(simt, source, 1, 64, poisoned(1))


def test_who_names_another_number_of_threads_is_told(simt: SimtDevice) -> None:
    source = """#include "pipeline.cuh"
extern "C" __global__ void f(unsigned* out) { barrier_of(threadIdx.x == 7 ? 32 : 64); }"""
    with pytest.raises(
        LabError, match=r"names the first 32 threads.*others wait there and name 64"
    ):
        launch(simt, source, 1, 64, poisoned(1))


# ---- the sanitized build ----


def checked(source: str, grid: int, threads: int, shared: Any = 0, **args: Any) -> Report:
    return sanitize(source, grid, threads, args, shared_bytes=shared, cooperative=True)


def kinds(report: Report) -> list[tuple[str, int]]:
    return sorted((f.kind, f.line) for f in report.findings)


def check_pipeline(source: str) -> Report:
    given = np.random.default_rng().integers(0, 2**32, (2, 9, 64), np.uint32)
    out = np.zeros((2, 64), np.uint32)
    return checked(source, 2, 96, TILE_BYTES, **{"from": given}, out=out, rounds=9)


def test_sanitized_right_ones_give_no_finding(compiler: str) -> None:
    assert kinds(check_pipeline(NAMED)) == []
    ring = checked(RING, 3, 64, box=poisoned(5, 3), out=poisoned(3, 64), rounds=5)
    assert kinds(ring) == []
    assert kinds(checked(EXCHANGE, 2, 64, box=poisoned(8, 256), out=poisoned(2, 64))) == []


def test_sanitized_wrong_ones_are_found(compiler: str) -> None:
    line = {
        name: PIPELINE[: PIPELINE.index(text)].count("\n") + 1
        for name, text in {"tile": "sum = 3", "store": "shared[t]", "load": "sum += shared"}.items()
    }
    unbarred = kinds(check_pipeline(PIPELINE.replace("BARRIER", "__syncwarp()")))
    assert ("race", line["load"]) in unbarred or ("race", line["store"]) in unbarred, unbarred
    impatient = NAMED.replace("if (t % 32 == r % 32) wait_for", "if (t == r) wait_for")
    assert ("race", line["tile"]) in kinds(check_pipeline(impatient))
    unfenced = kinds(check_pipeline(NAMED.replace("__threadfence_block();", ";")))
    assert unfenced == [("race", PIPELINE[: PIPELINE.index("start[r")].count("\n") + 1)]


FENCED = """#include "messages.cuh"
extern "C" __global__ void f(unsigned* flag, unsigned* data, unsigned* out) {
  int t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t;
    __syncthreads();
    if (t == 0) {
      FENCE
      say(flag, 1);
    }
  } else {
    if (t == 0) {
      await(flag);
      FENCE
    }
    __syncthreads();
    out[t] = data[63 - t];
  }
}
"""


def test_sanitized_messages_order_memory_with_fences_only(compiler: str) -> None:
    args = {"flag": poisoned(1), "data": poisoned(64), "out": poisoned(64)}
    assert kinds(checked(FENCED.replace("FENCE", "__threadfence();"), 2, 64, **args)) == []
    without = kinds(checked(FENCED.replace("FENCE", ""), 2, 64, **args))
    assert [k for k, _ in without] == ["race"] * len(without) != [], without


def test_sanitized_plain_accesses_race_with_messages(compiler: str) -> None:
    source = EXCHANGE.replace("say(at + b * n + t, mine)", "at[b * n + t] = mine")
    found = kinds(checked(source, 2, 64, box=poisoned(8, 256), out=poisoned(2, 64)))
    assert found and all(kind == "race" for kind, _ in found)


def test_sanitized_bulk_copies_stay_within_their_variable(compiler: str) -> None:
    args = {"from": np.arange(512, dtype=np.uint32), "out": poisoned(32)}
    right, long = (bulk(f"copy_bulk(to, from, {n}, &there)") for n in (256, 1024))
    assert kinds(checked(right, 1, 32, **args)) == []
    assert ("out of bounds", 8) in kinds(checked(long, 1, 32, **args))
    source_too_short = args | {"from": np.arange(32, dtype=np.uint32)}
    assert ("out of bounds", 8) in kinds(checked(right, 1, 32, **source_too_short))


def test_sanitized_reports_a_deadlock(compiler: str) -> None:
    source = """#include "messages.cuh"
extern "C" __global__ void f(unsigned* box) { await(box); }"""
    start = time.perf_counter()
    assert "deadlock" in [k for k, _ in kinds(checked(source, 2, 32, box=poisoned(1)))]
    assert time.perf_counter() - start < 30


# ---- the traced build ----


def traced(source: str, grid: int, threads: int, **args: Any) -> Trace:
    return trace(source, grid, threads, args, cooperative=True)


def only(t: Trace, kind: str, line: int) -> tuple[int, int, int]:
    (row,) = [r for r in t.lines if r.kind == kind and r.line == line]
    return row.requests, row.sectors, row.bytes_wanted


def test_messages_are_counted_as_loads_and_stores(compiler: str) -> None:
    source = """#include "messages.cuh"
extern "C" __global__ void f(unsigned* box, unsigned* out) {
  int t = threadIdx.x;
  say(box + t, t);
  say((uint2*)(box + 64) + t, make_uint2(t, t));
  uint4 w = await((const uint4*)(box + 128) + t);
  uint2 v = peek((const uint2*)box + t);
  unsigned u = peek(box + 8 * t);
  out[t] = w.x + v.x + u;
}"""
    t = traced(source, 1, 32, box=np.zeros(512, np.uint32), out=np.zeros(32, np.uint32))
    assert only(t, "store", 4) == (1, 4, 128)
    assert only(t, "store", 5) == (1, 8, 256)
    assert only(t, "load", 6) == (1, 16, 512)
    assert only(t, "load", 7) == (1, 8, 256)
    assert only(t, "load", 8) == (1, 32, 128)
    assert only(t, "store", 9) == (1, 4, 128)


def test_traced_results_are_the_plain_ones_and_bulk_copies_are_not_counted(compiler: str) -> None:
    device = SimtDevice(1, build="traced")
    given = np.random.default_rng().integers(0, 2**32, (2, 9, 64), np.uint32)
    _, out = launch(device, NAMED, 2, 96, given, poisoned(2, 64), 9, shared=TILE_BYTES)
    assert out.tolist() == sums_of(given).tolist()
    args = {"from": given, "out": poisoned(2, 64), "rounds": 9}
    t = trace(NAMED, 2, 96, args, shared_bytes=TILE_BYTES, cooperative=True)
    assert t.requests("load") == 0
    assert t.requests("store") == 4
    assert sum(r.barriers for r in t.flow) == 2 * (3 + 2 * 2 * 9)
    device.close()
