"""The pictures of chapters 17 and 18 show the run's figures, the floors and the tile as they are."""

import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.notebook import tensor_plots, tensor_roofs

RUN = tensor_roofs.recorded_tensor_run()
H200, SEED = tensor_roofs.roofs("H200"), tensor_roofs.roofs("RTX 5060 Ti")


def test_curves_show_every_count_of_four_kernels() -> None:
    figure = tensor_plots.curves(RUN, "down", H200)
    lines = list(figure.data)
    assert len(lines) == 2 * len(tensor_roofs.KERNELS)
    for i, kernel in enumerate(tensor_roofs.KERNELS):
        us = RUN.us("down", kernel)
        time, speed = lines[2 * i : 2 * i + 2]
        assert dict(zip(time.x, time.y, strict=True)) == us
        done = 2 * 2048 * 5632
        assert list(speed.y) == pytest.approx([done * n / us[n] / 1e6 for n in us])


def test_floors_meet_at_the_marked_tokens() -> None:
    for gpu in (H200, SEED):
        for tokens, unit in zip(gpu.ridge_tokens, ("cuda", "tensor"), strict=True):
            before, after = (
                tensor_roofs.layer_floors(gpu, n) for n in (int(tokens), int(tokens) + 1)
            )
            assert getattr(before, unit) <= before.bytes
            assert getattr(after, unit) >= after.bytes
    marks = [d for d in tensor_plots.floors([H200, SEED]).data if d.mode == "markers+text"]
    assert [mark.text[0] for mark in marks] == ["4.4", "65.1", "14.9", "29.8"]


def test_a_product_moves_its_weights_and_its_tokens_once() -> None:
    floor = tensor_roofs.product_floors(rows=64, cols=32, tokens=2, on=H200)
    nbytes = 64 * 18 + 2 * 32 * 2 + 2 * 64 * 4
    assert floor.bytes == pytest.approx(nbytes / H200.bandwidth / 1e3)
    assert floor.tensor == pytest.approx(2 * 64 * 32 * 2 / 989e6)


def test_decode_draws_each_interval() -> None:
    points = tensor_plots.decode(RUN.decode, "").data
    assert [p.y[0] for p in points] == ["phase 9a", "phase 9b"]
    for point, c in zip(points, RUN.decode, strict=True):
        assert point.x[0] + point.error_x.array[0] == pytest.approx(c.high)
        assert point.x[0] - point.error_x.arrayminus[0] == pytest.approx(c.low)


def test_bank_map_puts_chunk_0_of_eight_rows_apart() -> None:
    plain, swizzled = (
        {x for x, text in zip(d.x, d.text, strict=True) if text.endswith(".0")}
        for d in tensor_plots.bank_map().data
    )
    assert (plain, swizzled) == ({0}, set(range(8)))


def test_other_gpus_have_no_roofs_here() -> None:
    with pytest.raises(LabError, match="RTX 4090 was asked for"):
        tensor_roofs.roofs("RTX 4090")
