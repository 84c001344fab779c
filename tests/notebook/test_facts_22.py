"""What chapter 22 says in its prose, held to counts, to the recorded run, and to the log of the attempts."""

from pathlib import Path

import pytest

from sovereign_lab.engine import PHASES
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.roofline import find_gpu, token_bytes
from sovereign_lab.notebook import decode_times, one_launch, relay
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.seed import TINYLLAMA

NAME = "notebooks/22_one_launch.ipynb"
RUN = decode_times.recorded_decode_run()
ATTEMPTS = one_launch.recorded_attempts()
recorded = pytest.mark.skipif(RUN is None, reason="the run of decoding is not recorded yet")
logged = pytest.mark.skipif(not ATTEMPTS, reason="the attempts are not written down yet")


def test_barriers_and_launches_of_tinyllama() -> None:
    assert one_launch.barriers_a_token(22) == 5 * 22 + 1 == 111
    assert one_launch.barriers_a_token(22, splits=8) == 6 * 22 + 1 == 133
    assert 6 * 22 + 4 == 136
    text = (in_checkout("sovereign_lab/kernels/persistent") / "1_messages.cu").read_text()
    assert "grid.sync()" not in text


def test_what_is_said_and_heard_in_a_layer() -> None:
    words = one_launch.said_words()
    assert sum(words.values()) == 12_032
    heard = (sum(words.values()) - 1_280) * 4 * 132
    assert f"{heard / 1e6:.2f}" == "5.68"
    weights = sum(s.tiles * s.tile_bytes for s in one_launch.shares()[:-1])
    assert f"{weights / 1e6:.1f}" == "24.8"
    assert weights * TINYLLAMA.layers == token_bytes(TINYLLAMA).layers


def test_the_ring_has_room_for_more_than_a_layer() -> None:
    a_block = sum(s.tiles * s.tile_bytes for s in one_launch.shares()[:-1]) / 132
    assert one_launch.ring_bytes(227 * 1024) > a_block
    assert "#define IN_FLIGHT 24576" in op("persistent").variant("bulk").source
    assert [op("persistent").variant(n).arch for n in ("grid_barriers", "messages", "bulk")] == [
        75,
        75,
        90,
    ]


def test_bytes_of_a_token() -> None:
    gpu = find_gpu("H200")
    assert gpu is not None
    nbytes = sum(s.tiles * s.tile_bytes for s in one_launch.shares()[:-1]) * 22 + 69_632_000
    nbytes += 128 * 22 * 2 * 256 * 2
    assert f"{nbytes / gpu.bandwidth / 1e3:.0f}" == "145"


def test_two_slots_hang_and_three_do_not() -> None:
    hung = relay.agree(2)
    assert "deadlock in block (0,0,0)" in hung
    assert "lanes 3 wait for a message" in hung
    assert relay.agree(3).startswith("12 steps")
    poison = "      say(next + me, NOT_YET);\n"
    assert poison in relay.AGREE
    late = relay.AGREE.replace(poison, "").replace(
        "sum = word;\n", "sum = word;\n if (lane == 0)" + poison
    )
    assert "deadlock" in relay.agree(3, late), "poisoned behind the wait"


def test_three_slots_of_best_rows_and_shuffles_of_a_quantised_pair() -> None:
    for name in ("messages", "bulk"):
        assert "(first_turn + step) % 3" in op("persistent").variant(name).source
    header = (in_checkout("sovereign_lab/kernels/include") / "tiles.cuh").read_text()
    body = header[header.index("void quantise(") :]
    assert body.index("for (int mask = 8; mask > 0; mask /= 2)") < body.index("__shfl_xor_sync")
    assert len([8, 4, 2, 1]) * 6 == 24, "six pairs at a time, then"


def test_nothing_recorded_is_told_as_missing(repository: Path) -> None:
    text = (repository / NAME).read_text()
    if RUN is not None and ATTEMPTS:
        assert decode_times.NOT_YET not in text, f"execute {NAME} again: the runs are recorded"


@logged
def test_attempts_that_the_prose_names() -> None:
    by_number = {a.attempt: a for a in ATTEMPTS}
    us = {n: a.us_per_token for n, a in by_number.items()}
    assert "hung" in by_number["4"].what_was_learnt
    assert us["5"] / us["4"] > 1.33, "slower by a third"  # type: ignore[operator]
    for number, word in (("6", "spill"), ("7", "instruction cache"), ("8", "calls")):
        assert word in by_number[number].prediction
        assert us[number] > us["5"]  # type: ignore[operator]
    assert "24 shuffles" in by_number["9"].prediction
    assert us["9"] / us["8"] < 0.5, "half of the time"  # type: ignore[operator]
    assert abs(us["10"] / us["11"] - 1) < 0.02  # type: ignore[operator]
    assert [n for n in us if int(n) > 11] == ["12", "13", "14", "15"]


@recorded
def test_one_launch_pays_once_nobody_meets() -> None:
    assert RUN is not None
    for context in RUN.contexts:
        assert RUN.us("13a", context) > RUN.us("12", context)
    verdicts = {
        (a, b): decode_times.verdict(RUN, a, b)
        for a, b in (("13a", "12"), ("13b", "12"), ("13c", "13b"))
    }
    assert list(verdicts.values()) == ["revert", "keep", "keep"]
    assert [PHASES[p].verdict for p in ("13a", "13b", "13c")] == ["revert", "keep", "keep"]
    us = {name: RUN.us(name, 128) for name in ("13a", "13b", "13c")}
    saved = [us["13a"] - us["13b"], us["13b"] - us["13c"]]
    assert [*saved, us["13b"]] == pytest.approx([150, 120, 450], abs=4)
    assert f"{saved[0] / one_launch.barriers_a_token(22):.1f}" == "1.3"
    assert us["13c"] == pytest.approx(330, abs=4)
    assert 1e6 / us["13c"] == pytest.approx(3000, rel=0.02)
    assert (
        f"{RUN.gain('13c', 'llama.cpp', 128):.1f} {RUN.gain('13c', '13b', 128):.2f}" == "3.3 1.36"
    )
    assert "2.3 times that" in one_launch.bytes_line(RUN, "13c", 128)
    assert max(RUN.us("13c", c) for c in (16, 128, 256)) < 400
    assert us["13c"] > 250


@recorded
def test_stages_of_two_blocks() -> None:
    five, zero = (one_launch.stamped(RUN, block) for block in (5, 0))
    assert five is not None
    assert zero is not None
    assert five.median("attention") < 0.1 < 2.8 < zero.median("attention")
    assert max(five.us, key=five.median) == "O: take attended"
    assert f"{five.median('O: take attended'):.0f}" == "3"
    assert f"{five.layer_us:.1f} {five.layer_us / 5:.1f}" == "13.4 2.7"
    assert f"{one_launch.multiplying_share(RUN, 5):.0%}" == "27%"
