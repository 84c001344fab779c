"""Occupancy: equal to NVIDIA's own cuda_occupancy.h everywhere on a grid, and to sums done by hand."""

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.measure.static import nvrtc
from sovereign_lab.measure.static.occupancy import CARDS, SMS, Occupancy, occupancy

REGISTERS = (1, 8, 16, 24, 31, 32, 33, 40, 41, 48, 56, 64, 65, 80, 96, 128, 129, 168, 200, 254, 255)
THREADS = (1, 31, 32, 33, 64, 96, 128, 160, 192, 256, 288, 384, 512, 544, 640, 768, 1000, 1024)
KIB = 1024
SHARED = (
    *(0, 1, 127, 128, 129, 256, 257, 1024, 3000, 4096, 4160, 8 * KIB, 16 * KIB, 16 * KIB + 1),
    *(31 * KIB, 32 * KIB, 33 * KIB, 48 * KIB, 48 * KIB + 1, 49 * KIB, 50 * KIB, 63 * KIB, 64 * KIB),
    *(64 * KIB + 1, 75 * KIB, 81 * KIB, 99 * KIB, 99 * KIB + 1, 100 * KIB, 113 * KIB, 163 * KIB),
    *(163 * KIB + 1, 164 * KIB, 200 * KIB, 227 * KIB, 227 * KIB + 1, 228 * KIB),
)

# Reads an SM's sizes and then "registers shared threads" a line; prints blocks and the bits of
# the limiting factors. What a device's properties hold comes from the driver there, so here it is given.
ORACLE = r"""
#include <climits>
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int arch, warps, registers, threads;
  size_t per_sm, per_block, reserved, shared;
  while (std::scanf("%d %d %zu %zu %zu %d %zu %d", &arch, &warps, &per_sm, &per_block, &reserved, &registers,
                    &shared, &threads) == 8) {
    cudaOccDeviceProp p;
    p.computeMajor = arch / 10; p.computeMinor = arch % 10;
    p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = 32 * warps;
    p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536; p.warpSize = 32;
    p.sharedMemPerBlock = 48 << 10; p.sharedMemPerMultiprocessor = per_sm; p.numSms = 1;
    p.sharedMemPerBlockOptin = per_block; p.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes f;
    f.maxThreadsPerBlock = INT_MAX; f.numRegs = registers; f.sharedSizeBytes = 0;
    f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; f.maxDynamicSharedSizeBytes = shared;
    cudaOccDeviceState state;
    cudaOccResult result;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &p, &f, &state, threads, shared)) return 1;
    std::printf("%d %u\n", result.activeBlocksPerMultiprocessor, result.limitingFactors);
  }
}
"""
# The bits of cudaOccLimitingFactor, in our names.
BITS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    header = nvrtc.find_header("cuda_occupancy.h")
    if compiler is None:
        pytest.skip("no g++ or clang++ here to compile cuda_occupancy.h with")
    if header is None:
        pytest.skip("cuda_occupancy.h is not here: it comes with the extra [static]")
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "oracle.cpp").write_text(ORACLE)
    command = [compiler, "-O1", f"-I{header.parent}", "oracle.cpp", "-o", "oracle"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "oracle"


@pytest.mark.parametrize("arch", SMS)
def test_equal_to_nvidia_s_cuda_occupancy_h(arch: int, oracle: Path) -> None:
    sm = SMS[arch]
    grid = list(product(REGISTERS, SHARED, THREADS))
    facts = f"{arch} {sm.warps} {sm.shared} {sm.shared_per_block} {sm.reserved}"
    asked = "\n".join(f"{facts} {r} {s} {t}" for r, s, t in grid)
    run = subprocess.run([oracle], input=asked, capture_output=True, text=True, check=True)
    theirs = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(theirs) == len(grid)
    for (registers, shared, threads), (blocks, bits) in zip(grid, theirs, strict=True):
        ours = occupancy(registers, shared, threads, arch)
        where = (registers, shared, threads)
        assert ours.blocks == blocks, where
        assert sum(BITS[name] for name in ours.limited_by) == bits, where


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "arch", "expected"),
    [
        # 32 registers: 1,024 a warp, 16 warps a partition, 64 an SM, which is all that Hopper has
        (32, 0, 128, 90, Occupancy(16, 64, 1.0, ("warps", "registers"))),
        # 33 are given as 40: 1,280 a warp, 12 a partition, 48 an SM
        (33, 0, 128, 90, Occupancy(12, 48, 0.75, ("registers",))),
        # 128 blocks of a warp would fit the registers; an SM takes 32 blocks
        (16, 0, 32, 90, Occupancy(32, 32, 0.5, ("blocks",))),
        # 48 KiB and the driver's 1 KiB: four times in 228 KiB
        (32, 48 * KIB, 128, 90, Occupancy(4, 16, 0.25, ("shared memory",))),
        # 228 KiB is the SM's, and a block may have 227
        (32, 228 * KIB, 128, 90, Occupancy(0, 0, 0.0, ("shared memory",))),
        # 1,024 threads of 65 registers need 73,728 of 65,536
        (65, 0, 1024, 90, Occupancy(0, 0, 0.0, ("registers",))),
        # 1,024 threads are 32 of 48 warps, and a second block does not fit
        (32, 0, 1024, 89, Occupancy(1, 32, 32 / 48, ("warps",))),
    ],
)
def test_sums_done_by_hand(
    registers: int, shared: int, threads: int, arch: int, expected: Occupancy
) -> None:
    assert occupancy(registers, shared, threads, arch) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((32, 0, 128, 70), "There is no table for sm_70; the compute capabilities are 75, 80"),
        ((32, 0, 0, 90), "1 to 1,024 threads; got 0"),
        ((32, 0, 1025, 90), "1 to 1,024 threads; got 1025"),
        ((256, 0, 128, 90), "1 to 255 registers; got 256"),
        ((0, 0, 128, 90), "1 to 255 registers; got 0"),
        ((32, -1, 128, 90), "0 or more bytes of shared memory; got -1"),
    ],
)
def test_figures_that_cannot_be_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(LabError, match=message):
        occupancy(*arguments)


def test_every_card_has_an_sm_table_and_a_source() -> None:
    assert all(card.arch in SMS and card.origin for card in CARDS)
    assert {card.arch for card in CARDS} == set(SMS)
