"""Sources and diffs as a notebook shows them."""

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.source import show_diff, show_source

GEMV = op("gemv_q4_0")
STRIDED, COALESCED = GEMV.variant("warp_per_row"), GEMV.variant("coalesced")


def test_source_is_the_whole_file() -> None:
    shown = show_source(COALESCED).data
    assert COALESCED.source in shown
    assert COALESCED.teaches in shown
    assert "128 threads a block, 4 rows a block" in shown


def test_diff_gives_back_both_files() -> None:
    lines = repr(show_diff(STRIDED, COALESCED)).splitlines()
    for variant, other in ((STRIDED, "+"), (COALESCED, "-")):
        kept = "\n".join(line[1:] for line in lines if not line.startswith(other))
        assert kept and variant.source.endswith(kept + "\n")


def test_diff_is_escaped_and_coloured() -> None:
    shown = show_diff(STRIDED, COALESCED)._repr_html_()
    assert "lane &lt; 16" in shown
    assert "block-&gt;scale" in shown
    assert shown.count("<span") == sum(
        line[0] in "+-" for line in repr(show_diff(STRIDED, COALESCED)).splitlines()
    )
