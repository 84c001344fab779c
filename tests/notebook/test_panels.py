"""Panels and explorers without a browser: what their functions find, what they draw, and what controls do to them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import sovereign_lab as sl
from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.roofline import GPUS, find_gpu
from sovereign_lab.measure.tracing.request_cost import sectors
from sovereign_lab.measure.workload import DEFINES, workload
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.quants import unpack_q4_0
from sovereign_lab.notebook.double_offset import DOUBLE_OFFSET
from sovereign_lab.notebook.panels import cache_writes, generation, kv_scaling, q4_block, timeline
from sovereign_lab.notebook.panels.controls import Choice, Number, Slider, Text, Toggle
from sovereign_lab.notebook.panels.generation_panel import GenerationPanel
from sovereign_lab.notebook.panels.svg import alone
from sovereign_lab.notebook.panels.warp import PRESETS, Pattern, draw_warp, warp_request
from sovereign_lab.notebook.panels.widget import NARROW, WIDE, Drawing, Explorer
from sovereign_lab.notebook.runs import recorded_ladder
from sovereign_lab.notebook.seed import TINYLLAMA

SECONDS = 120  # for a text on a machine that is very busy


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("storyteller")


def reads_as_xml(drawing: Drawing) -> ElementTree.Element:
    """The picture, which must be well formed and say what it shows."""
    root = ElementTree.fromstring(drawing.picture)
    assert root.get("aria-label")
    return root


# ---- what the package's front gives ----


def test_importing_the_lab_imports_no_widgets() -> None:
    code = "import sys, sovereign_lab as sl; assert 'explore_warp' in sl.__all__; print('anywidget' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- controls ----


@pytest.mark.parametrize(
    ("control", "value", "kept"),
    [
        (Slider("a", "A", 1, 9), 12, 9),
        (Slider("a", "A", 1, 9), 2.6, 3),
        (Choice("a", "A", [("x", "X")]), "x", "x"),
        (Number("a", "A"), 3, 3.0),
        (Number("a", "A", whole=True), 3.0, 3),
        (Text("a", "A"), "", ""),
        (Toggle("a", "A"), True, True),
    ],
)
def test_a_control_keeps_what_fits(control: Any, value: Any, kept: Any) -> None:
    settled = control.settle(value)
    assert settled == kept
    assert type(settled) is type(kept)


@pytest.mark.parametrize(
    ("control", "value"),
    [
        (Slider("a", "A", 1, 9), None),
        (Slider("a", "A", 1, 9), float("nan")),
        (Slider("a", "A", 1, 9), True),
        (Choice("a", "A", [("x", "X")]), "y"),
        (Choice("a", "A", [("x", "X")]), ["x"]),
        (Number("a", "A"), None),
        (Number("a", "A"), "3"),
        (Number("a", "A"), float("nan")),
        (Number("a", "A"), 10**400),
        (Slider("a", "A", 1, 9), 10**400),
        (Number("a", "A", whole=True), 1.5),
        (Text("a", "A"), 3),
        (Toggle("a", "A"), 1),
    ],
)
def test_a_control_refuses_what_a_page_should_not_send(control: Any, value: Any) -> None:
    with pytest.raises(LabError, match="A is"):
        control.settle(value)


# ---- one warp ----


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (Pattern(), 4),
        (Pattern(offset=4), 5),
        (Pattern(stride=128), 32),
        (Pattern(stride=0), 1),
        (Pattern(stride=1024), 32),
        (Pattern(stride=16, size=16), 16),
        (Pattern(stride=1, size=1, offset=2, lanes=16), 1),
        (Pattern(stride=32, size=4, offset=30), 32 + 1),  # every lane crosses into the next sector
    ],
)
def test_sectors_of_a_request(pattern: Pattern, count: int) -> None:
    found = warp_request(pattern)
    assert len(found.sectors) == count
    addresses = np.array([pattern.addresses], np.uint64)
    counted = sectors(addresses, np.ones((1, 32), bool), np.array([pattern.size]))
    assert counted.tolist() == [count]


@pytest.mark.parametrize(
    ("variant", "text", "array", "preset"),
    [
        ("warp_per_row", "xb[i]", "x", "gemv-x-strided"),
        ("warp_per_row", "blocks[b].nibbles[i]", "W", "gemv-w-strided"),
        ("coalesced", "x[b * 32 + lane]", "x", "gemv-x-coalesced"),
        ("coalesced", "block->nibbles[byte_index]", "W", "gemv-w-coalesced"),
        ("float4", "x4[b * 8", "x", "gemv-x-float4"),
    ],
)
def test_presets_are_what_the_kernels_do(
    variant: str, text: str, array: str, preset: str, model: Model
) -> None:
    gemv = op("gemv_q4_0")
    chosen = gemv.variant(variant)
    args = workload(gemv, TINYLLAMA, 0)
    traced = trace(chosen.path, gemv.grid(chosen, args), chosen.threads, args, DEFINES, blocks=1)
    line = next(row.line for row in traced.lines if text in row.text and row.kind == "load")
    request = traced.accesses(line, array=array)
    pattern = PRESETS[preset][1]
    assert [a.offset for a in request] == list(pattern.addresses)
    assert {a.size for a in request} == {pattern.size}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_preset_is_drawn(preset: str, width: int) -> None:
    drawing = draw_warp(PRESETS[preset][1], width)
    root = reads_as_xml(drawing)
    assert root.get("width") == str(width)
    assert str(len(warp_request(PRESETS[preset][1]).sectors)) in str(drawing)


def test_a_load_that_a_gpu_refuses_is_told() -> None:
    assert "faults" in draw_warp(Pattern(stride=18, size=4)).note
    assert "faults" not in draw_warp(Pattern(stride=16, size=4)).note


@pytest.mark.parametrize(
    "wrong", [{"size": 3}, {"lanes": 0}, {"lanes": 33}, {"stride": -1}, {"offset": -1}]
)
def test_patterns_that_do_not_exist(wrong: dict[str, int]) -> None:
    with pytest.raises(LabError):
        Pattern(**wrong)


def test_presets_move_sliders_and_sliders_leave_presets() -> None:
    explorer = sl.explore_warp()
    explorer.set(preset="gemv-w-coalesced")
    assert (explorer.values["stride"], explorer.values["size"], explorer.values["lanes"]) == (
        1,
        "1",
        16,
    )
    explorer.set(stride=7)
    assert explorer.values["preset"] == "yours"
    explorer.set(stride=1)
    assert explorer.values["preset"] == "gemv-w-coalesced"
    with pytest.raises(LabError, match="There is no preset"):
        sl.explore_warp("nothing")


# ---- a block ----


def test_elements_of_a_block_are_its_weights_and_lie_where_they_say(model: Model) -> None:
    matrix = model.layers[0].w_down
    block = q4_block.q4_0_block(matrix, 3, 5)
    assert [e.value for e in block.elements] == pytest.approx(
        matrix.float32()[3, 5 * 32 : 6 * 32].tolist(), rel=0
    )
    flat = matrix.blocks.reshape(-1)
    for element in block.elements:
        byte = int(flat[element.matrix_byte])
        assert byte == element.byte_value == block.raw[element.byte]
        assert element.nibble == (byte >> 4 if element.high else byte & 15)
    assert unpack_q4_0(np.frombuffer(block.raw, np.uint8)).shape == (32,)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_nibble_can_be_reached_by_keys_and_one_by_tab(model: Model, width: int) -> None:
    block = q4_block.q4_0_block(model.layers[0].wq, 0, 0)
    root = reads_as_xml(q4_block.draw_q4_0_block(block, 17, width))
    nibbles = [node for node in root.iter() if node.get("data-pick") == "element"]
    assert sorted(int(n.get("data-value", "")) for n in nibbles) == list(range(32))
    assert [n.get("data-value") for n in nibbles if n.get("tabindex") == "0"] == ["17"]
    assert all(n.get("role") == "button" and n.get("aria-label") for n in nibbles)


def test_the_block_explorer_follows_its_controls(model: Model) -> None:
    explorer = sl.explore_q4_0_block(model)
    explorer.set(element="31")
    assert "high one of byte 17" in str(explorer.drawing)
    explorer.set(matrix="wk", row=255)  # wk has fewer rows: the slider goes to its last
    assert explorer.values["row"] == model.layers[0].wk.rows - 1
    before = explorer.view
    explorer.set(element="32")
    assert "Element is one of" in explorer.error
    assert explorer.view == before
    explorer.set(element="0")
    assert explorer.error == ""
    for wrong in ({"matrix": "w"}, {"row": 256}, {"block": 8}):
        with pytest.raises(LabError):
            sl.explore_q4_0_block(model, **wrong)


# ---- a longer context ----


def test_bytes_and_floor_of_a_position() -> None:
    gpu = find_gpu("H200")
    assert gpu is not None
    found = kv_scaling.kv_scaling(TINYLLAMA, 1000, gpu)
    assert found.kv_per_position == 22 * 2 * 4 * 64 * 2
    assert found.kv_bytes == 1000 * found.kv_per_position
    seconds = (found.kv_bytes + found.weight_bytes) / (gpu.bandwidth * 1e9)
    assert found.floor.ms == pytest.approx(1e3 * seconds)
    assert kv_scaling.kv_scaling(TINYLLAMA, 1000, gpu, "fp32").kv_bytes == 2 * found.kv_bytes
    with pytest.raises(LabError, match="context of"):
        kv_scaling.kv_scaling(TINYLLAMA, TINYLLAMA.context + 1, gpu)


def test_recorded_speeds_stand_beside_the_floor_of_their_model_alone() -> None:
    run = recorded_ladder()
    rung = run.rung("8c", 1024)
    assert rung is not None
    explorer = sl.explore_kv_scaling()
    explorer.set(position=1100)
    assert f"{rung.tokens_per_second:,.1f} tok/s at position 1,024" in str(explorer.drawing)
    assert "of the ceiling" in str(explorer.drawing)
    explorer.set(gpu="RTX 4090")  # another GPU's floor is nothing to hold the H200's speed to
    assert "of the ceiling there" not in str(explorer.drawing)
    other = sl.explore_kv_scaling(TINYLLAMA)
    assert "No ladder was recorded" in str(other.drawing)
    assert "phase" not in other.values


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("position", [0, 1, 2048])
def test_the_context_is_drawn_up_to_its_ends(width: int, position: int) -> None:
    for gpu in GPUS:
        reads_as_xml(kv_scaling.draw_kv_scaling(TINYLLAMA, position, gpu, "fp32", None, "", width))


# ---- the cache ----


def test_where_the_two_kernels_write() -> None:
    right = cache_writes.rope_writes(op("rope_kv").variant("fixed"), 4)
    wrong = cache_writes.rope_writes(DOUBLE_OFFSET, 4)
    assert right.keys == right.values == wrong.values == ((0,), (1,), (2,), (3,))
    assert wrong.keys == ((0,), (2,), (4,), (6,))
    drawing = cache_writes.draw_cache_writes({"right": right, "wrong": wrong}, 3)
    reads_as_xml(drawing)
    assert "and 1 and 3 hold no key" in str(drawing)
    with pytest.raises(LabError, match="Positions 0 to 3 were run"):
        cache_writes.draw_cache_writes({"right": right}, 4)
    with pytest.raises(LabError, match="1 to 32 positions"):
        cache_writes.rope_writes(DOUBLE_OFFSET, 33)


# ---- a pass ----


def test_the_recorded_passes_are_drawn_with_the_share_of_an_op() -> None:
    profiles = timeline.recorded_profiles()
    assert list(profiles) == ["5", "8c"]
    profile = profiles["8c"]
    gemv = next(row for row in profile.ops if row.op == "gemv_q4_0")
    drawing = timeline.draw_timeline(profile, "gemv_q4_0")
    rows = [n.get("data-value") for n in reads_as_xml(drawing).iter() if n.get("data-pick") == "op"]
    assert rows == list(dict.fromkeys(launch.op for launch in profile.timeline))
    assert f"{gemv.share:.1%}" in str(drawing)
    assert "NVIDIA H200" in drawing.note
    with pytest.raises(LabError, match="got 'nothing'"):
        timeline.draw_timeline(profile, "nothing")


def test_another_pass_without_the_op_falls_back_to_its_longest() -> None:
    explorer = sl.explore_timeline()
    explorer.set(profile="0")
    assert explorer.values["op"] == "gemv_q4_0"
    explorer.set(op="swiglu" if "swiglu" in str(explorer.controls) else "add")
    explorer.set(profile="1")
    assert explorer.error == ""
    assert explorer.values["op"] in str(explorer.drawing)


def test_a_pass_measured_here_is_no_gpus() -> None:
    engine = Engine(load_model("synthetic:tiny"), sl.open_device("simt"), context=64)
    explorer = sl.explore_timeline(engine)
    assert "imitates a GPU" in str(explorer.drawing)
    assert "GB/s" not in str(explorer.drawing)


# ---- without a page ----


EXPLORERS: dict[str, Callable[[], Explorer]] = {
    "kv-scaling": sl.explore_kv_scaling,
    "warp": sl.explore_warp,
    "timeline": sl.explore_timeline,
    "cache-writes": lambda: sl.explore_cache_writes(2),
}


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_page_without_scripts_gets_a_picture_and_the_facts(name: str) -> None:
    explorer = EXPLORERS[name]()
    assert explorer.name == name
    data = explorer._repr_mimebundle_()[0]
    assert "application/vnd.jupyter.widget-view+json" in data
    assert '<img alt="' in data["text/html"]
    assert "var(--" not in data["text/html"]
    assert explorer.drawing.facts[0][1] in data["text/plain"]
    wide = explorer.view
    explorer.width = NARROW
    assert explorer.view != wide


def test_a_picture_alone_keeps_what_stands_around_it() -> None:
    html = alone('<b>a</b><svg aria-label="x &amp; y"><rect fill="var(--sl-blue)"/></svg><i>b</i>')
    assert html.startswith('<b>a</b><img alt="x &amp; y" src="data:image/svg+xml;base64,')
    assert html.endswith("<i>b</i>")


def test_names_from_a_models_file_are_text_and_no_markup() -> None:
    name = "<img src=x onerror=alert(1)>"
    tinyllama = timeline.recorded_profiles()["8c"]
    for explorer in (
        sl.explore_kv_scaling(replace(TINYLLAMA, name=name)),
        sl.explore_timeline(replace(tinyllama, model=name)),
    ):
        shown = explorer.view + explorer._repr_mimebundle_()[0]["text/html"]
        assert "<img src=x" not in shown
        assert "&lt;img src=x" in shown


# ---- texts ----


@pytest.fixture(scope="module")
def panel(model: Model) -> GenerationPanel:
    return GenerationPanel(model, "simt")


def ask(panel: GenerationPanel, **values: Any) -> None:
    panel.values = {**panel.values, "compare": False, "temperature": 0.0, "max_tokens": 3} | values
    panel.start()


def test_two_phases_side_by_side_say_the_same_as_an_engine(
    panel: GenerationPanel, model: Model
) -> None:
    ask(panel, compare=True, phase="8b", other="7", max_tokens=4)
    assert (panel.busy, panel.enabled) == (True, ["stop"]) or panel.wait(0)
    assert panel.wait(SECONDS)
    expected = Engine(model, sl.open_device("simt")).generate("Once upon a time", 4)
    assert [c.text for c in panel.results] == [expected.text] * 2
    assert panel.status == "Done. The texts are equal."
    assert [c["title"][:8] for c in panel.columns] == ["phase 8b", "phase 7:"]
    assert all("time of a CPU, no GPU's" in c["speed"] for c in panel.columns)
    assert all("max tokens reached" in c["speed"] for c in panel.columns)
    assert (panel.busy, panel.enabled, panel.error) == (False, ["start"], "")
    assert "Once upon a time" + expected.text in panel.stand_in()[1]
    assert f"Second phase: 7: {sl.PHASES['7'].title}" in panel.stand_in()[1]


def test_what_is_refused_is_told_and_the_last_text_stays(panel: GenerationPanel) -> None:
    ask(panel)
    assert panel.wait(SECONDS)
    before = panel.columns
    for values, sentence in (
        ({"top_p": 1.5}, "top_p is a probability"),
        ({"prompt": "word " * 2000}, "shorten it"),
        ({"max_tokens": 0}, "max_tokens is 1 or more"),
        ({"max_tokens": None}, "Max tokens is a number"),
        ({"temperature": -1}, "A temperature is 0"),
        ({"phase": "99"}, "Phase is one of"),
    ):
        kept = dict(panel.values)
        ask(panel, **values)
        assert panel.wait(SECONDS)
        assert sentence in panel.error
        assert panel.columns == before
        assert panel.enabled == ["start"]
        panel.values = kept
    ask(panel)
    assert panel.wait(SECONDS)
    assert panel.error == ""


def test_stop_ends_the_text_and_keeps_it(panel: GenerationPanel) -> None:
    ask(panel, max_tokens=10_000, compare=True, other="7")
    deadline = time.monotonic() + SECONDS
    while not (len(panel.results) == 2 and panel.results[1].forwards > 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    panel.start()  # a second press does nothing
    panel.stop()
    assert panel.wait(SECONDS)
    assert panel.status.startswith("Stopped. Equal as far as both go")
    assert panel.columns[0]["text"] == panel.results[0].text != ""
    assert all(column.result is None for column in panel.results)
    assert panel.results[0].tokens_per_second


def test_stop_ends_a_long_prompt_before_its_first_token(
    model: Model, panel: GenerationPanel
) -> None:
    engine = generation.PanelEngine(model, sl.open_device("simt"), "8b")
    columns = generation.stream_columns([engine], generation.Request("word " * 200))
    next(columns)
    engine.stopped.set()
    with pytest.raises(generation.Stopped):
        next(columns)
    assert engine.forwards == 0


def test_a_prompt_that_goes_in_blocks_counts_no_passes_and_can_be_stopped(model: Model) -> None:
    engine = generation.PanelEngine(model, sl.open_device("simt"), "9c")
    request = generation.Request("word " * 20, max_tokens=2)
    assert list(generation.stream_columns([engine], request))[-1][0].forwards == 2
    columns = generation.stream_columns([engine], request)
    next(columns)
    engine.stopped.set()
    with pytest.raises(generation.Stopped):
        next(columns)


def test_a_stop_string_ends_the_text_before_it(panel: GenerationPanel) -> None:
    ask(panel, max_tokens=8)
    assert panel.wait(SECONDS)
    whole = panel.results[0].text
    word = whole.split()[2]
    ask(panel, max_tokens=8, stop=word)
    assert panel.wait(SECONDS)
    assert panel.results[0].text == whole[: whole.index(word)]
    assert f"stop string {word!r}" in panel.columns[0]["speed"]
    panel.values = {**panel.values, "stop": ""}


def test_two_panels_on_one_device_do_not_disturb_each_other(model: Model) -> None:
    device = sl.open_device("simt")
    first, second = GenerationPanel(model, device), GenerationPanel(model, device)
    ask(first, max_tokens=5, prompt="Once upon a time", phase="7")
    ask(second, max_tokens=5, prompt="The little dog", phase="8b")
    assert first.wait(SECONDS)
    assert second.wait(SECONDS)
    engine = Engine(model, device)
    for panel in (first, second):
        assert panel.error == ""
        assert panel.results[0].text == engine.generate(panel.results[0].prompt, 5).text


def test_buttons_of_the_page_press_what_they_name(panel: GenerationPanel) -> None:
    panel.values = {**panel.values, "max_tokens": 1, "compare": False}
    panel._pressed({"action": "start"})
    assert panel.wait(SECONDS)
    assert panel.status == "Done."
    for nonsense in (None, {}, {"action": "close"}, ["start"]):
        panel._pressed(nonsense)
    assert panel.enabled == ["start"]


def test_texts_that_differ_say_where_and_why() -> None:
    def column(phase: str, text: str) -> generation.Column:
        return generation.Column(phase, "p", text)

    same = generation.comparison([column("7", "abc"), column("8b", "abcd")], 0.0)
    assert same == "Equal as far as both go: 3 characters."
    differ = generation.comparison([column("7", "abc"), column("8b", "axc")], 0.9)
    assert differ == "The texts differ from character 2 on."
    drawn = generation.comparison([column("0", "abc"), column("8b", "axc")], 0.9)
    assert "One phase draws on the host" in drawn
    assert generation.comparison([column("7", "abc")], 0.0) == ""


def test_models_to_choose_from_are_here() -> None:
    panel = sl.generation_panel()
    options = next(c["options"] for c in panel.controls if c["name"] == "model")
    assert ["storyteller", "storyteller"] in [list(o) for o in options]
    with pytest.raises(LabError, match="there is no model"):
        sl.generation_panel("nothing")
