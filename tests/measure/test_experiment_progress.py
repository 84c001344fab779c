"""A bar is drawn for a person, never into what a program keeps; its rounds are those that the worker tells."""

from functools import partial
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from tqdm import tqdm

from sovereign_lab.measure.experiment import progress
from sovereign_lab.measure.experiment.progress import bar, round_words, watched


def test_a_bar_counts_the_rounds_that_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "tqdm", partial(tqdm, mininterval=0))
    with bar(11, shown=True) as tell:
        tell("Compiling Phase 5")
        tell(round_words("Phase 5", 4, 11))
    drawn = capsys.readouterr().err.split("\r")
    assert any("0/11" in line and "Compiling Phase 5" in line for line in drawn)
    assert any("3/11" in line and "Phase 5" in line and "round 4" not in line for line in drawn)


def test_what_nobody_watches_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert not watched()  # pytest has taken the terminal
    with bar(11, shown=watched()) as tell:
        tell(round_words("Phase 5", 4, 11))
    assert capsys.readouterr() == ("", "")


def test_a_notebook_is_watched_where_it_can_ask() -> None:
    """By the kernel's protocol: front ends allow input, nbval and nbclient do not."""
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(60)

        def answer(allow_stdin: bool) -> Any:
            code = "from sovereign_lab.measure.experiment.progress import watched; print(watched())"
            asked = client.execute(code, allow_stdin=allow_stdin)
            while True:
                message = client.get_iopub_msg(timeout=60)
                if (
                    message["parent_header"].get("msg_id") == asked
                    and message["msg_type"] == "stream"
                ):
                    return message["content"]["text"].strip()

        assert (answer(True), answer(False)) == ("True", "False")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
