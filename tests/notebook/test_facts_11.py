"""What chapter 11 says of counts and of recorded runs is what they say."""

import numpy as np
import pytest
from edited_cells import counts

from sovereign_lab.devices import Device
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.models import reference
from sovereign_lab.notebook import online_softmax
from sovereign_lab.notebook.attention_counts import arguments, count_head, count_table
from sovereign_lab.notebook.context_times import (
    added_per_thousand,
    alone,
    attention_times,
    by_position,
    context_table,
)
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import TINYLLAMA

ATTENTION = op("attention")
SPLIT, ONLINE = ATTENTION.variant("split_values"), ATTENTION.variant("online_softmax")
CONTEXTS = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts"
LADDER = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-ladder"


@pytest.mark.parametrize("length", [1, 33, 300])
def test_four_barriers_become_one_and_no_score_is_stored(length: int) -> None:
    before, after = count_head(SPLIT, length), count_head(ONLINE, length)
    assert (before.barriers, after.barriers) == (4, 1)
    assert (before.stored_scores, after.stored_scores) == (2 * 4 * length, 0)
    assert (before.sectors["scores"] > 0, after.sectors["scores"]) == (True, 0)
    assert before.key_steps == after.key_steps == after.value_steps == -(-length // 8)
    for array in ("keys", "values"):
        # 64 dimensions of 2 bytes: four sectors a position
        assert before.sectors[array] == after.sectors[array] == 4 * length
    assert (before.shared, after.shared) == (80, 112)


def test_table_has_a_column_a_variant() -> None:
    table = count_table([SPLIT, ONLINE], 9)
    assert table.head == ["one head, 9 positions", "split_values", "online_softmax"]
    assert all(len(row) == 3 for row in table.rows)


def test_no_position_is_refused() -> None:
    with pytest.raises(LabError, match="at least 1"):
        count_head(SPLIT, 0)


def test_recorded_times_are_those_of_the_text() -> None:
    run = recorded_run(CONTEXTS)
    before, after = by_position(run, "8a"), by_position(run, "8b")
    assert list(before) == [16, 256, 512, 1024, 2048, 4000]
    ratios = {p: round(before[p] / after[p], 2) for p in before}
    assert (ratios[16], ratios[256], ratios[4000]) == (1.02, 1.11, 1.38)
    assert sorted(ratios.values()) == list(ratios.values())
    assert round(added_per_thousand(run, "8a")) == 3377
    assert round(added_per_thousand(run, "8b")) == 2297
    launches = 22
    saved_alone = alone(run, "8a") - alone(run, "8b")
    assert (round(alone(run, "8a"), 1), round(alone(run, "8b"), 1)) == (86.2, 66.3)
    assert round(saved_alone / launches, 1) == 0.9
    assert round(1e3 * (before[16] - after[16])) == 41
    assert round(before[4000] - after[4000], 2) == 4.34
    # Three barriers fewer, at either end.
    assert round(saved_alone / launches / 3, 1) == 0.3
    assert round(1e3 * (before[4000] - after[4000]) / launches / 3) == 66
    rows = context_table(run, ("8a", "8b")).rows
    assert list(rows[0]) == ["16", "2.20 ms", "2.16 ms", "1.02"]
    assert list(rows[-1]) == ["1,000 more add", "3,377 us", "2,297 us", "1.47"]


def test_at_short_context_the_h200_gains_less_than_the_seed() -> None:
    ladder = recorded_run(LADDER).ladder()
    assert round(ladder["8b"] / ladder["8a"], 2) == 1.04
    assert round(151.48 / 135.61, 2) == 1.12


def test_steps_end_at_the_softmax() -> None:
    scores, values = np.array([2, 1, 4, 3.5], np.float32), np.array([1, 2, 3, 4], np.float32)
    expected = reference.softmax(scores) @ values
    assert online_softmax.steps(scores, values).rows[-1][-1] == f"{expected:.4g}"


def test_hard_orders_are_what_they_are_called() -> None:
    orders = online_softmax.orders(300)
    rises = {name: int((np.diff(np.maximum.accumulate(s)) > 0).sum()) for name, s in orders.items()}
    assert rises["always a new maximum"] >= 298
    assert rises["never a new maximum"] == rises["all equal"] == 0
    with np.errstate(over="ignore"):
        assert all(np.isinf(np.exp(s)).any() for s in orders.values())


def test_attention_is_timed_and_right_on_this_device(any_device: Device) -> None:
    figures = attention_times(any_device, [SPLIT, ONLINE], [3], TINYLLAMA)
    assert [f.what.split(",")[0] for f in figures] == [
        "attention split_values",
        "attention online_softmax",
    ]
    assert all(0 < f.low <= f.value <= f.high for f in figures)


def test_arguments_are_those_of_the_signature() -> None:
    args = arguments(5)
    assert args["context"] == 5
    out = ATTENTION.reference(args)["out"]
    assert out.shape == (TINYLLAMA.heads, TINYLLAMA.head_dim)
    assert np.isfinite(out).all()


def test_half_warps_save_shuffles_a_position_and_pay_once_a_launch() -> None:
    figures = counts("11")
    positions = 4 * 64  # of all heads
    assert figures["shuffles"] == (1280, 512)
    assert [count / positions for count in figures["shuffles"]] == [5, 2]
    assert figures["shared-memory wavefronts"] == (448, 1088)
    # Each store of an output, of 8 by 8 warps of 4 heads, is of both parts of a warp.
    assert figures["bank conflicts"] == (0, 8 * 8 * 4)
    assert figures["barriers"] == (4 * 8, 4 * 8)
