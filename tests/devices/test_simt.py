"""The SIMT device: CUDA's rules kept, and a sentence for each way to break them."""

import errno
import itertools
import multiprocessing
import threading
from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.builder import has_device_variable, may_misalign
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import OPS

ORDERS: list[str | int] = ["forward", "reverse", 2, 12345]


def run(
    device: Device,
    body: str,
    n: int = 32,
    grid: int = 1,
    out: np.ndarray | None = None,
    shared: int = 0,
    before: str = "",
    cooperative: bool = False,
) -> np.ndarray:
    """Run a kernel with the one parameter `int* out`, `n` threads a block; `out` is poisoned with -7."""
    source = f'{before}\nextern "C" __global__ void kernel(int* out) {{\n{body}\n}}\n'
    array = device.array(np.full(n * grid, -7, np.int32) if out is None else out)
    device.launch(device.compile(source), grid, n, [array], shared, cooperative)
    return device.to_host(array)


# ---- warp exchange, against CUDA's definitions; on the GPU too ----

SHUFFLES = {
    "__shfl_sync(m, v, 5)": lambda lane, w: 5 % w + lane // w * w,
    "__shfl_up_sync(m, v, 3": lambda lane, w: lane - 3 if lane % w >= 3 else lane,
    "__shfl_down_sync(m, v, 3": lambda lane, w: lane + 3 if lane % w + 3 < w else lane,
    "__shfl_xor_sync(m, v, 5": lambda lane, w: lane ^ 5 if (lane ^ 5) // w <= lane // w else lane,
}


def test_shuffle_reads_the_lane_that_cuda_defines(any_device: Device) -> None:
    cases = list(itertools.product(SHUFFLES, [32, 16, 8]))
    code = "".join(
        f"\nout[96 * {i} + threadIdx.x] = "
        f"{call.removesuffix(')').replace('m,', '0xffffffffu,')}, {width});"
        for i, (call, width) in enumerate(cases)
    )
    body = f"int v = 100 + threadIdx.x % 32;{code}"
    got = run(any_device, body, n=96, out=np.full(96 * len(cases), -7, np.int32))
    for (call, width), lanes in zip(cases, got.reshape(-1, 96).tolist(), strict=True):
        expected = [100 + SHUFFLES[call](t % 32, width) for t in range(96)]
        assert lanes == expected, (call, width)


def test_ballots_and_block_votes(any_device: Device) -> None:
    got = run(
        any_device,
        """int t = threadIdx.x; unsigned odd = __ballot_sync(0xffffffffu, t & 1);
           int any = __any_sync(0xffffffffu, t == 33), all = __all_sync(0xffffffffu, t >= 32);
           int count = __syncthreads_count(t % 3 == 0), some = __syncthreads_or(t == 63);
           int every = __syncthreads_and(t < 64);
           out[t] = (odd == 0xaaaaaaaau) + 2 * any + 4 * all + 8 * (count == 22) + 16 * some + 32 * every;""",
        n=64,
    )
    assert got[:32].tolist() == [1 + 8 + 16 + 32] * 32
    assert got[32:].tolist() == [1 + 2 + 4 + 8 + 16 + 32] * 32


@pytest.mark.parametrize("order", ORDERS)
def test_groups_of_a_warp_meet_separately(order: str | int) -> None:
    # Eight groups of four lanes, each with a different number of exchanges under its own mask.
    device = SimtDevice(lane_order=order)
    got = run(
        device,
        """int lane = threadIdx.x % 32, group = lane / 4; unsigned mask = 0xfu << 4 * group; int v = lane;
           for (int i = 0; i <= group; i++) v = __shfl_sync(mask, v, (lane + 1) % 4, 4);
           out[threadIdx.x] = v;""",
        n=64,
    )
    expected = [g * 4 + (i + g + 1) % 4 for _ in range(2) for g in range(8) for i in range(4)]
    assert got.tolist() == expected


@pytest.mark.parametrize("order", ORDERS)
def test_many_masks_one_after_the_other(order: str | int) -> None:
    # More masks over time than a warp has places for: a place is used again only once all have read.
    device = SimtDevice(lane_order=order)
    got = run(
        device,
        """int lane = threadIdx.x; int sum = 0;
           for (int cut = 1; cut < 32; cut++) {
             unsigned low = (1u << cut) - 1, mask = lane < cut ? low : ~low;
             sum += __shfl_sync(mask, lane * 64 + cut, lane < cut ? cut - 1 : 31);
           }
           out[lane] = sum;""",
    )
    expected = [
        sum((cut - 1 if lane < cut else 31) * 64 + cut for cut in range(1, 32))
        for lane in range(32)
    ]
    assert got.tolist() == expected


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 7, 32, 33, 100, 256, 1024])
def test_barriers_and_shared_memory_at_every_size_and_order(order: str | int, threads: int) -> None:
    device = SimtDevice(lane_order=order)
    got = run(
        device,
        """__shared__ int s[1024]; int t = threadIdx.x, n = blockDim.x, v = t + blockIdx.x;
           for (int i = 0; i < 5; i++) { s[t] = v; __syncthreads(); v = s[(t + 1) % n]; __syncthreads(); }
           out[blockIdx.x * n + t] = v;""",
        n=threads,
        grid=9,
    )
    assert got.tolist() == [(t + 5) % threads + b for b in range(9) for t in range(threads)]


def test_threads_that_left_are_not_waited_for_at_a_barrier(any_device: Device) -> None:
    got = run(
        any_device, "if (threadIdx.x >= 40) return; __syncthreads(); out[threadIdx.x] = 1;", n=64
    )
    assert got.tolist() == [1] * 40 + [-7] * 24


def test_shared_memory_starts_poisoned(simt: SimtDevice) -> None:
    body = """__shared__ int s[64]; extern __shared__ int d[]; int t = threadIdx.x;
              out[blockIdx.x * 32 + t] = s[t] & d[t]; s[t] = d[t] = 5;"""
    assert run(simt, body, grid=64, shared=128).tolist() == [-1] * 2048


def test_dynamic_shared_memory(any_device: Device) -> None:
    body = """extern __shared__ int s[]; int t = threadIdx.x;
              s[t] = t; __syncthreads(); out[t] = s[31 - t];"""
    assert run(any_device, body, shared=128).tolist() == list(range(31, -1, -1))


def test_three_dimensional_launch(any_device: Device) -> None:
    source = """extern "C" __global__ void kernel(int* out) {
      int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      out[b * blockDim.x * blockDim.y * blockDim.z + t] = 100 * b + t; }"""
    out = any_device.array(np.zeros(2 * 3 * 4 * 3 * 2 * 2, np.int32))
    any_device.launch(any_device.compile(source), (2, 3, 4), (3, 2, 2), [out])
    assert any_device.to_host(out).tolist() == [100 * b + t for b in range(24) for t in range(12)]


def test_atomics_from_all_workers(any_device: Device) -> None:
    source = """extern "C" __global__ void kernel(int* i, float* f, unsigned* u) {
      atomicAdd(i, 1); atomicAdd(f, 0.5f); atomicMax(i + 1, (int)blockIdx.x); atomicMin(i + 2, (int)blockIdx.x);
      atomicOr(u, 1u << (threadIdx.x % 32)); atomicCAS(i + 3, -1, 9); }"""
    i, f, u = (
        any_device.array(np.array(v, t))
        for v, t in (([0, 0, 99, -1], np.int32), ([0], np.float32), ([0], np.uint32))
    )
    any_device.launch(any_device.compile(source), 500, 64, [i, f, u])
    assert any_device.to_host(i).tolist() == [32000, 499, 0, 9]
    assert any_device.to_host(f)[0] == 16000 and any_device.to_host(u)[0] == 0xFFFFFFFF


def test_device_variables_are_one_for_the_whole_grid(any_device: Device) -> None:
    before = "__device__ int count;"
    run(any_device, "if (threadIdx.x == 0) atomicAdd(&count, 1);", grid=200, before=before)
    assert has_device_variable("__device__ int count;\n__device__ float t[4] = {1};")
    assert not has_device_variable(
        "__device__ float f(float x) { return x; }\n__device__ __forceinline__ int g();"
    )


def test_grid_sync_keeps_blocks_and_their_shared_memory(any_device: Device) -> None:
    source = """#include <cooperative_groups.h>
    extern "C" __global__ void kernel(int* out) {
      __shared__ int mine; int b = blockIdx.x, n = gridDim.x;
      if (threadIdx.x == 0) { mine = 10 * b; out[b] = b; }
      for (int round = 0; round < 3; round++) {
        cooperative_groups::this_grid().sync();
        int next = out[(b + 1) % n];
        cooperative_groups::this_grid().sync();
        if (threadIdx.x == 0) out[b] = next;
      }
      __syncthreads();
      if (threadIdx.x == 0) out[b] += mine; }"""
    out = any_device.array(np.zeros(6, np.int32))
    any_device.launch(any_device.compile(source), 6, 64, [out], cooperative=True)
    assert any_device.to_host(out).tolist() == [(b + 3) % 6 + 10 * b for b in range(6)]


# ---- half ----


@pytest.mark.parametrize("defines", [{}, {"SIMT_PORTABLE_HALF": "1"}], ids=["hardware", "portable"])
def test_every_half_and_rounding_of_floats(any_device: Device, defines: dict[str, str]) -> None:
    source = """#include <cuda_fp16.h>
    extern "C" __global__ void kernel(const half* h, float* f, const float* g, half* r, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) { f[i] = __half2float(h[i]); r[i] = __float2half(g[i]); } }"""
    n = 65536
    halves = np.arange(n, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng()
    floats = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    floats[: n // 2] = (rng.standard_normal(n // 2) * 10.0 ** rng.integers(-9, 6, n // 2)).astype(
        np.float32
    )
    h, g = any_device.array(halves), any_device.array(floats)
    f, r = any_device.empty(n, np.float32), any_device.empty(n, np.float16)
    any_device.launch(any_device.compile(source, defines), n // 256, 256, [h, f, g, r, n])
    assert np.array_equal(any_device.to_host(f), halves.astype(np.float32), equal_nan=True)
    with np.errstate(over="ignore"):
        assert np.array_equal(any_device.to_host(r), floats.astype(np.float16), equal_nan=True)


# ---- what is wrong is told ----


def test_full_mask_in_half_a_warp_is_a_deadlock_with_names(simt: SimtDevice) -> None:
    with pytest.raises(LabError) as caught:
        run(simt, "if (threadIdx.x < 16)\nout[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1, 8);")
    text = str(caught.value)
    assert "kernel <<<(1, 1, 1), (32, 1, 1)>>>" in text and "deadlock in block (0,0,0)" in text
    assert "lanes 8-15 wait in __shfl_down_sync at kernel.cu:4 for the lanes of mask 0xff" in text
    assert "lanes 16-31 never came to __shfl_down_sync at kernel.cu:4, which names all 32" in text


def test_absent_lanes_are_told_even_if_nobody_waits_for_them(simt: SimtDevice) -> None:
    # Lane 0 is here, so the others could read it and go on; a GPU would hang.
    body = "if (threadIdx.x < 40)\nout[threadIdx.x] = __shfl_sync(0xffffffffu, 7, 0);"
    with pytest.raises(LabError, match=r"lanes missing from an exchange") as caught:
        run(simt, body, n=64)
    assert "warp 1, lanes 8-31 never came to __shfl_sync at kernel.cu:4" in str(caught.value)


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_may_run_ahead_through_many_exchanges(order: str | int) -> None:
    # Broadcasts let lane 0 run ahead as far as the ring is long; reductions pull the lanes together again.
    device = SimtDevice(lane_order=order)
    got = run(
        device,
        """int lane = threadIdx.x % 32, sum = 0;
           for (int i = 0; i < 100; i++) {
             sum += __shfl_sync(0xffffffffu, lane + i, 0);
             if (i % 37 == 0) sum += __shfl_xor_sync(0xffffffffu, lane, 5);
             if (i % 41 == 0) sum += __popc(__ballot_sync(0xffffffffu, lane < i));
           }
           out[threadIdx.x] = sum;""",
        n=100,
    )
    ballots = sum(min(i, 32) for i in (0, 41, 82))
    short = sum(min(i, 4) for i in (0, 41, 82))  # the last warp has four lanes
    lanes = [4950 + 3 * (lane ^ 5) + ballots for lane in range(32)]
    assert got[:96].tolist() == 3 * lanes
    assert got[96:].tolist() == [4950 - 3 + short] * 4


def test_barrier_in_one_branch_and_shuffle_in_the_other(simt: SimtDevice) -> None:
    body = "if (threadIdx.x % 2)\n__syncthreads();\nelse\n__syncwarp();"
    with pytest.raises(LabError) as caught:
        run(simt, body, n=40)
    assert (
        "lanes 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 wait in __syncthreads at kernel.cu:4"
        in str(caught.value)
    )
    assert (
        "lanes 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30 wait in __syncwarp at kernel.cu:6"
        in str(caught.value)
    )
    assert "warp 1, lanes 0,2,4,6" in str(caught.value)


def test_shuffle_in_two_branches(simt: SimtDevice) -> None:
    exchange = "out[0] = __shfl_sync(0xffffffffu, 1, 0);"
    body = f"if (threadIdx.x < 16)\n{exchange}\nelse\n{exchange}"
    with pytest.raises(LabError, match=r"__shfl_sync at kernel.cu:6 meets __shfl_sync at line 4"):
        run(simt, body)


def test_mask_without_the_caller(simt: SimtDevice) -> None:
    with pytest.raises(LabError, match="does not include the lane that calls it"):
        run(simt, "__syncwarp(1u << (threadIdx.x + 1) % 32);")


def test_deadlock_in_one_of_many_blocks_is_found_on_any_worker(simt: SimtDevice) -> None:
    for _ in range(5):
        with pytest.raises(LabError, match=r"deadlock in block \(77,0,0\)"):
            run(simt, "if (blockIdx.x != 77 || threadIdx.x) __syncwarp();", grid=100)
    assert run(simt, "out[threadIdx.x] = 3;").tolist() == [3] * 32  # and the device goes on


@pytest.mark.parametrize(
    ("body", "type_name", "line"),
    [
        ("out[0] = (int)(*(float4*)(out + 1)).x;", "float4", 3),
        ("int4 v = reinterpret_cast<int4*>(out)[0];\n*(int4*)(out + 2) = v;", "int4", 4),
        ("out[0] = *(const int*)((const char*)out + 2);", "int", 3),
    ],
)
def test_misaligned_access_is_told(simt: SimtDevice, body: str, type_name: str, line: int) -> None:
    with pytest.raises(
        LabError,
        match=rf"kernel.cu:{line} accesses '(const )?(struct )?{type_name}' at address .* a GPU faults",
    ):
        run(simt, body)


def test_a_trap_ends_the_launch_and_says_where(simt: SimtDevice) -> None:
    told = r"^Kernel kernel <<<.*block \(0,0,0\), thread \(5,0,0\), .*__trap at kernel.cu:3 ended the launch"
    with pytest.raises(LabError, match=told):
        run(simt, "if (threadIdx.x == 5) __trap();\nout[threadIdx.x] = 1;", n=8)
    assert (
        run(simt, "if (threadIdx.x == 9) __trap();\nout[threadIdx.x] = 1;", n=8).tolist() == [1] * 8
    )


def test_aligned_vector_access_is_fine(any_device: Device) -> None:
    got = run(
        any_device,
        "((int4*)out)[threadIdx.x] = make_int4(1, 2, 3, threadIdx.x);",
        n=8,
        out=np.zeros(32, np.int32),
    )
    assert got.tolist() == [v for t in range(8) for v in (1, 2, 3, t)]


def test_only_sources_that_could_misalign_are_checked() -> None:
    assert not may_misalign("float f(const float* x) { return x[0] * 2; } // *(float4*)x")
    assert (
        may_misalign("*(const int *)p")
        and may_misalign("float4* v")
        and may_misalign("reinterpret_cast<int*>(p)")
    )


def test_kernel_that_does_not_compile_names_its_own_line(simt: SimtDevice) -> None:
    with pytest.raises(LabError, match=r"kernel.cu:4:.*undeclared_name") as caught:
        run(simt, "int a = 1;\nout[0] = undeclared_name;")
    assert "/" not in str(caught.value).splitlines()[1].split(":")[0]


def test_locals_too_large_for_a_thread(simt: SimtDevice) -> None:
    with pytest.raises(LabError, match="local variables take"):
        run(
            simt,
            "volatile int a[9000]; for (int i = 0; i < 9000; i++) a[i] = i; out[0] = a[out[1] & 255];",
        )


def test_grid_sync_without_a_cooperative_launch(simt: SimtDevice) -> None:
    with pytest.raises(LabError, match="not cooperative"):
        run(
            simt,
            "cooperative_groups::this_grid().sync();",
            before="#include <cooperative_groups.h>",
        )


def test_cooperative_grid_too_large(simt: SimtDevice) -> None:
    with pytest.raises(LabError, match="sm_count"):
        run(simt, "out[0] = 1;", n=1024, grid=65, cooperative=True)


# ---- the device itself ----


def test_lane_order_shows_what_relies_on_it() -> None:
    # Each lane overwrites one word: the last to run wins, and CUDA does not say which that is.
    results = {str(o): run(SimtDevice(lane_order=o), "out[0] = threadIdx.x;")[0] for o in ORDERS}
    assert results["forward"] == 31 and results["reverse"] == 0
    with pytest.raises(LabError, match="seed is 2 or more"):
        SimtDevice(lane_order=1)
    with pytest.raises(LabError, match="lane_order"):
        SimtDevice(lane_order="backwards")


def test_recording_replays_in_order_with_its_arguments(any_device: Device) -> None:
    double = any_device.compile('extern "C" __global__ void twice(int* x) { x[threadIdx.x] *= 2; }')
    plus = any_device.compile(
        'extern "C" __global__ void plus(int* x, int n) { x[threadIdx.x] += n; }'
    )
    x = any_device.array(np.arange(4, dtype=np.int32))
    with any_device.capture() as capture:
        any_device.launch(double, 1, 4, [x])
        any_device.launch(plus, 1, 4, [x, 3])
    assert any_device.to_host(x).tolist() == [0, 1, 2, 3]
    for _ in range(3):
        capture.replay()
    assert any_device.to_host(x).tolist() == [21 + 8 * i for i in range(4)]


def test_failed_capture_leaves_the_device_usable(any_device: Device) -> None:
    with pytest.raises(ValueError), any_device.capture():
        raise ValueError
    assert run(any_device, "out[threadIdx.x] = 3;").tolist() == [3] * 32


def test_threads_may_share_a_device(simt: SimtDevice) -> None:
    results: list[list[int]] = []

    def work(value: int) -> None:
        for _ in range(20):
            results.append(
                run(simt, f"out[threadIdx.x + 32 * blockIdx.x] = {value};", grid=20).tolist()
            )
            assert results[-1] == [value] * 640

    threads = [threading.Thread(target=work, args=(v,)) for v in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 60


def test_device_works_after_a_fork(simt: SimtDevice) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put(run(simt, "out[threadIdx.x] = 4;").tolist()))
    child.start()
    assert queue.get(timeout=60) == [4] * 32
    child.join()


def test_closed_device_says_so() -> None:
    device = SimtDevice(workers=1)
    device.close()
    with pytest.raises(LabError, match="closed"):
        run(device, "out[0] = 1;")


def test_arrays_are_aligned_like_a_gpu_s(simt: SimtDevice) -> None:
    for shape in (1, 3, (5, 7)):
        assert simt.empty(shape, np.float32).ctypes.data % 256 == 0


def test_no_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from sovereign_lab.devices.simt import builder

    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(builder, "find_spec", lambda name: None)
    builder.find_compiler.cache_clear()
    try:
        with pytest.raises(LabError, match="needs a C\\+\\+ compiler"):
            SimtDevice()
    finally:
        builder.find_compiler.cache_clear()


def test_a_cache_that_cannot_be_written_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, simt: SimtDevice
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(LabError, match="could not be written"):
        run(simt, "out[0] = 123456;")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, simt: SimtDevice
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(LabError, match="the disk is full"):
        run(simt, "out[0] = 123456;")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize("order", ORDERS)
def test_shared_scalars_are_read_anew_after_every_wait(order: str | int) -> None:
    # A compiler that sees no access to `s` in the waiting code could keep it in a register across it.
    body = """__shared__ int s, w; int t = threadIdx.x, a, b;
              if (t == 0) s = 1;
              __syncthreads(); a = s; __syncthreads();
              if (t == 33) s = 2;
              __syncthreads(); b = s;
              for (int i = 0; i < 32; i++) { if (t == i) w = i; __syncwarp(); if (t < 32) b += w == i; __syncwarp(); }
              out[t] = 100 * a + b;"""
    got = run(SimtDevice(lane_order=order), body, n=64)
    assert got.tolist() == [134] * 32 + [102] * 32


@pytest.mark.parametrize("order", ORDERS)
def test_every_register_survives_a_switch(order: str | int) -> None:
    # More values alive over a wait than there are general registers: g++ then puts some into AVX-512's mask
    # registers, k0 among them, and one that the switch does not save is shared by all lanes.
    op = OPS["gemv_q4_0"]
    variant = op.variant("coalesced")
    source = variant.source.replace("float sum = 0;", "float sum = lane == 0 ? y[row] : 0;")
    assert source != variant.source
    device = SimtDevice(lane_order=order)
    kernel = device.compile(source)
    for case in cases(op, np.random.default_rng()):
        before = np.random.default_rng().standard_normal((case["rows"],), np.float32)
        arrays = {k: device.array(v) if isinstance(v, np.ndarray) else v for k, v in case.items()}
        arrays["y"] = device.array(before)
        grid = op.grid(variant, case)
        device.launch(kernel, grid, variant.threads, list(arrays.values()))
        np.testing.assert_allclose(
            arrays["y"], before + op.reference(case)["y"], rtol=1e-4, atol=1e-4
        )
