"""Which accesses are one request where lanes take different ways: kernels counted by hand.

Every kernel runs one warp, whose lane is t. What a line must give is what a GPU does that brings a warp together
again behind every branch: in every iteration of every loop, the lanes that get there make one request.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from sovereign_lab.measure.memory_trace import Trace, trace


@dataclass(frozen=True)
class Counted:
    """A kernel's body, and by line of it (1: the first) the requests for x and the lanes of all of them together."""

    body: str
    expected: dict[int, tuple[int, int]]


KERNELS = {
    # Lane t makes t + 1 iterations: iteration i has 32 - i lanes, 528 in all.
    "a trip count a lane": Counted(
        """
        for (int i = 0; i <= t; i++)
          sum += x[32 * i + t];
        """,
        {2: (32, 528)},
    ),
    # Even lanes load in even iterations, odd lanes in odd ones: 8 iterations of 16 lanes.
    "skipped iterations": Counted(
        """
        for (int i = 0; i < 8; i++)
          if ((i + t) % 2 == 0)
            sum += x[32 * i + t];
        """,
        {3: (8, 128)},
    ),
    # Lane t leaves out iteration t % 4: every iteration has 24 lanes before, 32 behind it.
    "continue": Counted(
        """
        for (int i = 0; i < 4; i++) {
          if (i == t % 4)
            continue;
          sum += x[32 * i + t];
        }
        sum += x[t];
        """,
        {4: (4, 96), 6: (1, 32)},
    ),
    # Outer iteration i: lane t makes (t + i) % 4 inner ones. For each i some lane makes 3, so inner iteration j
    # exists for j in 0..2 and has the lanes with (t + i) % 4 > j: 24, 16, 8.
    "nested loops": Counted(
        """
        for (int i = 0; i < 3; i++) {
          sum += x[i];
          for (int j = 0; j < (t + i) % 4; j++)
            sum += x[64 * i + 32 * j + t];
          sum -= x[i + 9];
        }
        """,
        {2: (3, 96), 4: (9, 144), 5: (3, 96)},
    ),
    # Lanes from 20 on leave at once; of the others, lane t returns in iteration t, in front of the second load.
    "early exit": Counted(
        """
        if (t >= 20)
          return;
        for (int i = 0; i < 30; i++) {
          sum += x[32 * i + t];
          if (i == t) {
            y[t] = sum;
            return;
          }
          sum += x[32 * i + t + 1024];
        }
        """,
        {4: (20, 210), 9: (19, 190)},
    ),
    # Lane t breaks in iteration t % 8; behind the loop all 32 lanes are together again.
    "break": Counted(
        """
        for (int i = 0; i < 8; i++) {
          if (i == t % 8)
            break;
          sum += x[32 * i + t];
        }
        sum += x[t];
        """,
        {4: (7, 112), 6: (1, 32)},
    ),
    # Two ways that meet again: half of the lanes each, then all.
    "two ways": Counted(
        """
        if (t % 2)
          sum += x[t];
        else
          sum -= x[2 * t];
        sum += x[t + 64];
        """,
        {2: (1, 16), 4: (1, 16), 5: (1, 32)},
    ),
    # Three loops in each other, all with trip counts of the lane: iteration (i, j, k) exists where a lane has
    # i <= a, j <= b, k <= c of its t = 9 a + 3 b + c (a in 0..2, b, c in 0..2; lanes from 27 on take t - 27).
    "three loops": Counted(
        """
        int u = t % 27;
        for (int i = 0; i <= u / 9; i++)
          for (int j = 0; j <= u / 3 % 3; j++)
            for (int k = 0; k <= u % 3; k++)
              sum += x[100 * i + 10 * j + k];
        """,
        {
            5: (
                27,
                sum((u // 9 + 1) * (u // 3 % 3 + 1) * (u % 3 + 1) for u in [*range(27), *range(5)]),
            )
        },
    ),
    # A shuffle in every iteration, and a load in half of them.
    "around a shuffle": Counted(
        """
        for (int i = 0; i < 6; i++) {
          if ((i + t) % 3 == 0)
            sum += x[32 * i + t];
          sum += __shfl_xor_sync(0xffffffff, sum, 1);
        }
        """,
        {3: (6, 64)},
    ),
    # Half of the warp meets on its own, twice as often as the other half does; then all are together.
    "some lanes meet": Counted(
        """
        if (t < 16) {
          __syncwarp(0xffff);
          sum += x[t];
          __syncwarp(0xffff);
        }
        sum += x[t];
        """,
        {3: (1, 16), 6: (1, 32)},
    ),
    # While loops whose end depends on the data: lane t counts the bits of t. Bits of 0..31 by their number: 1, 5,
    # 10, 10, 5, 1 lanes have 0..5, so iteration i has 31, 26, 16, 6, 1 lanes.
    "while": Counted(
        """
        unsigned bits = t;
        while (bits) {
          sum += x[bits];
          bits &= bits - 1;
        }
        """,
        {3: (5, 80)},
    ),
    # Lane t enters a switch of four ways, one of which falls into the next.
    "switch": Counted(
        """
        for (int i = 0; i < 2; i++)
          switch ((t + i) % 4) {
            case 0: sum += x[t];
              break;
            case 1: sum -= x[t + 64];
            case 2: sum += x[t + 128];
              break;
            default: sum *= 2;
          }
        """,
        {3: (2, 16), 5: (2, 16), 6: (2, 32)},
    ),
}


def run(body: str, order: str | int = "forward") -> Trace:
    source = (
        'extern "C" __global__ void f(const float* x, float* y) { int t = threadIdx.x; float sum = 0;\n'
        f"{body.strip()}\ny[t] = sum; }}\n"
    )
    args = {"x": np.ones(4096, np.float32), "y": np.zeros(4096, np.float32)}
    return trace(source, 1, 32, args, lane_order=order)


def loads(t: Trace) -> dict[int, tuple[int, int]]:
    return {
        row.line - 1: (row.requests, round(row.requests * row.lanes))
        for row in t.lines
        if (row.kind, row.space) == ("load", "global")
    }


@pytest.mark.parametrize("name", KERNELS)
def test_requests_of_divergent_lanes(name: str, compiler: str) -> None:
    kernel = KERNELS[name]
    forward = run(kernel.body)
    assert loads(forward) == kernel.expected
    for order in ("reverse", 7):
        other = run(kernel.body, order)
        assert other.lines == forward.lines and other.flow == forward.flow
        assert (other.requests_table == forward.requests_table).all()
