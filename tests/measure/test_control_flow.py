"""Loops in graphs drawn by hand; block 0 comes before the first."""

from sovereign_lab.measure.tracing.control_flow import flow


def test_straight_code_and_two_ways_have_no_loop() -> None:
    f = flow(5, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)])
    assert f.loop == [-1] * 5 and not any(f.header) and f.parent == []
    assert f.branch == [False, True, False, False, False]
    assert f.order[1] < min(f.order[2], f.order[3]) and f.order[4] == 4


def test_nested_loops() -> None:
    # 1; while 2 { 3; while 4 { 5 }; 6 }; 7
    f = flow(8, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 4), (4, 6), (6, 2), (2, 7)])
    assert (f.start, f.parent, f.depth) == ([2, 4], [-1, 0], [1, 2])
    assert f.loop == [-1, -1, 0, 0, 1, 1, 0, -1]
    assert [b for b in range(8) if f.header[b]] == [2, 4]
    assert f.order == sorted(f.order) or f.order[7] > f.order[2]


def test_a_block_that_repeats_itself() -> None:
    f = flow(4, [(0, 1), (1, 2), (2, 2), (2, 3)])
    assert (f.start, f.loop) == ([2], [-1, -1, 0, -1]) and f.branch[2]


def test_continue_and_break() -> None:
    # loop 1 { 2: break to 5; 3: continue; 4 }
    f = flow(6, [(0, 1), (1, 2), (2, 5), (2, 3), (3, 1), (3, 4), (4, 1)])
    assert f.loop == [-1, 0, 0, 0, 0, -1] and f.depth == [1]


def test_a_jump_into_a_loop_makes_none() -> None:
    # 1 goes to 2 and to 3, which follow each other in a ring: neither dominates the other.
    f = flow(5, [(0, 1), (1, 2), (1, 3), (2, 3), (3, 2), (3, 4)])
    assert f.loop == [-1] * 5


def test_a_kernel_that_never_began() -> None:
    assert flow(1, []).loop == [-1]
