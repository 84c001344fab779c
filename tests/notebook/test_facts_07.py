"""What chapter 07 says of its edit is what the card counted; test_chapter_facts.py holds the rest of it."""

from edited_cells import a_row

ROWS = 256  # of the storyteller's first matrix, 8 blocks each


def test_scales_read_together_save_requests_and_fewer_sectors() -> None:
    row = a_row("07", ROWS)
    assert row["load requests"] == (24, 17)
    assert row["load sectors"] == (51.5, 48)
    assert row["shuffles"] == (8 + 5, 8 + 5)


def test_a_request_for_8_scales_touches_4_or_5_sectors() -> None:
    starts = ([r * 8 * 18 + b * 18 for b in range(8)] for r in range(ROWS))
    touched = [len({s // 32 for s in row}) for row in starts]
    assert set(touched) == {4, 5}
    before, after = a_row("07", ROWS)["load sectors"]
    assert sum(touched) / ROWS == after - (before - 8)
