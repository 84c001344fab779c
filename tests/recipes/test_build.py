"""The whole recipe at a size for a CPU: what it writes is a model that all of the lab runs."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recipe needs PyTorch")

from sovereign_lab.models import reference  # noqa: E402
from sovereign_lab.models.gguf_file import open_gguf  # noqa: E402
from sovereign_lab.models.model import load_model  # noqa: E402
from sovereign_lab.models.storyteller import FILE  # noqa: E402
from sovereign_lab.recipes.storyteller import corpus, evaluate, export, train  # noqa: E402
from sovereign_lab.recipes.storyteller.__main__ import TINY, main  # noqa: E402
from sovereign_lab.recipes.storyteller.network import (  # noqa: E402
    Shape,
    Storyteller,
    new_storyteller,
)

# On a busy machine PyTorch's threads mostly wait for each other: 30 times as long on two cores.
torch.set_num_threads(1)

SMALL = Shape(layers=2, dim=64, ffn_dim=96, heads=4, kv_heads=2, head_dim=32, vocab=300)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("storyteller")
    main(["build", "--tiny", "--out", str(out)])
    return out


def test_figures_and_card_are_written(built: Path) -> None:
    figures = json.loads((built / "figures.json").read_text())
    assert figures["file_bytes"] == (built / FILE).stat().st_size
    assert set(figures["losses"]) == {"validation", "held-out"}
    assert figures["told"]["the grammar"]["finished"] == 1.0
    card = (built / "README.md").read_text()
    assert "MIT" in card and figures["date"] in card
    for how in ("Greedy", "Temperature 0.8"):
        assert f"### {how}" in card
    told = [json.loads(line) for line in (built / "told.jsonl").read_text().splitlines()]
    assert len(told) == 3 * TINY.prompts


def test_the_reference_computes_what_was_trained(built: Path) -> None:
    model = load_model(built / FILE)
    assert not model.notices, "a matrix was requantised: not all of them are Q4_0"
    assert (model.config.layers, model.config.vocab) == (TINY.shape.layers, TINY.shape.vocab)
    network = Storyteller(TINY.shape)
    network.load_state_dict(export.read_weights(built / FILE))
    ids = model.tokenizer.encode("Once upon a time there was a fox who had lost a red kite.")
    ours = reference.forward(model, ids, np.float32)
    with torch.no_grad():
        theirs = network(torch.tensor([ids]))[0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_llama_cpp_computes_it_too(built: Path) -> None:
    import llama_cpp_oracle

    model = load_model(built / FILE)
    prompt = "Once upon a time there was a fox who had lost a red kite."
    ids = model.tokenizer.encode(prompt)
    assert llama_cpp_oracle.tokenize(built / FILE, prompt) == ids
    theirs = llama_cpp_oracle.next_token_logprobs(built / FILE, ids, model.config.vocab)
    logits = reference.forward(model, ids)[-1].astype(np.float64)
    ours = logits - np.log(np.exp(logits).sum())
    distance = [abs(ours[id] - logprob) for id, logprob in theirs.items()]
    assert len(distance) == model.config.vocab and np.mean(distance) < 0.05


def test_the_file_says_where_it_comes_from(built: Path) -> None:
    metadata = open_gguf(built / FILE).metadata
    assert metadata["general.license"] == "MIT"
    assert metadata["llama.context_length"] == TINY.shape.context
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert metadata["tokenizer.ggml.add_eos_token"] is False


def test_training_is_reproducible_and_learns() -> None:
    rows = np.random.default_rng(0).integers(3, 20, (64, 32)).astype(np.uint16)
    rows[:, 16:] = rows[:, :16]  # something to learn
    schedule = train.Schedule(steps=30, quantised_steps=10, batch_rows=16, warm_up=3)
    runs = []
    for _ in range(2):
        network = new_storyteller(SMALL, 3)
        runs.append(train.train(network, rows, {"validation": rows}, schedule, seed=3))
    first, second = runs
    assert first.losses == second.losses
    assert first.losses["validation"].q4_0_trained < first.curve[0][1] - 1
    assert [schedule.rate(step) for step in (0, 2)] == pytest.approx([1e-3, 3e-3])
    assert schedule.rate(29) < 4e-4 and schedule.rate(39) == pytest.approx(1e-4)


def test_generation_in_a_batch_is_generation_alone() -> None:
    network = new_storyteller(SMALL, 4)
    prompts = [[1, 40, 41], [1, 50, 51, 52, 53, 54], [1, 60]]
    together = evaluate.generate(network, prompts, 0.0, 0, 12)
    for prompt, ids in zip(prompts, together, strict=True):
        assert ids[: len(prompt)] == prompt and len(ids) <= len(prompt) + 12
        assert evaluate.generate(network, [prompt], 0.0, 0, 12) == [ids]


def test_positions_reach_to_the_end_of_the_context() -> None:
    network = new_storyteller(SMALL, 4)
    ids = evaluate.generate(network, [[1] * 1020], 0.0, 0, 12)[0]
    assert len(ids) == SMALL.context


def test_figures_of_known_stories() -> None:
    told = [
        evaluate.Told("a", "a b a b a b", True, True),
        evaluate.Told("a", "a b c", False, False),
    ]
    figures = evaluate.measure(told)
    assert (figures.stories, figures.consistent, figures.finished) == (2, 0.5, 0.5)
    assert figures.distinct_1 == pytest.approx(3 / 9)
    assert figures.distinct_2 == pytest.approx(3 / 7)
    assert figures.repeated_4 == pytest.approx(1 / 3)  # a b a b, b a b a, a b a b
    assert figures.words == 4.5


def test_the_grammar_is_consistent_with_itself() -> None:
    stories = list(corpus.stories(2, "held-out", 20))
    assert evaluate.measure(evaluate.as_told(stories)).consistent >= 0.95
