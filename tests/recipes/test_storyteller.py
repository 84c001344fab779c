"""The model in the box: there, small, and the same to the reference, the engine and llama.cpp."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from models.test_tokenizer import EVERYDAY, random_texts

from sovereign_lab.errors import LabError
from sovereign_lab.models import catalog, reference, storyteller
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.model import Model, load_model

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "data" / "storyteller"
PROMPTS = (
    "Once upon a time, in a small village by the sea,",
    "Once upon a time there was a little fox called Finn.",
    "One morning Mia could not find her red kite.",
    "An old owl lived",
)


@pytest.fixture(scope="module")
def path() -> Path:
    return catalog.resolve("storyteller")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load_model(path)


def test_it_is_in_the_clone_and_goes_into_the_wheel(path: Path) -> None:
    assert path == HOME / storyteller.FILE
    assert path.stat().st_size < 8_000_000
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    (target,) = [target for source, target in included.items() if ROOT / source == path]
    assert ROOT / target in storyteller._PLACES


def test_a_lab_without_its_file_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storyteller, "_PLACES", (tmp_path / storyteller.FILE,))
    assert storyteller.present() is None
    with pytest.raises(LabError, match="install the lab again"):
        catalog.resolve("storyteller")


def test_its_matrices_are_q4_0_and_its_head_q8_0(path: Path, model: Model) -> None:
    types = {name: info.type.name for name, info in open_gguf(path).tensors.items()}
    assert types.pop("token_embd.weight") == types.pop("output.weight") == "Q8_0"
    for name, type in types.items():
        assert type == ("F32" if name.endswith("norm.weight") else "Q4_0"), name
    assert not model.notices and model.head is not model.embedding
    assert (model.config.vocab, model.config.context) == (2048, 1024)


def test_the_card_tells_of_this_file(path: Path) -> None:
    figures = json.loads((HOME / "figures.json").read_text())
    assert figures["file_bytes"] == path.stat().st_size
    for how in ("greedy", "temperature 0.8"):
        assert figures["told"][how]["stories"] == 200
        assert figures["told"][how]["consistent"] >= 0.9
    losses = figures["losses"]["held-out"]
    assert losses["q4_0_trained"] < min(losses["q4_0_searched"], losses["q4_0_plain"])
    card = (HOME / "README.md").read_text()
    assert figures["date"] in card and "MIT" in card and figures["machine"] in card
    assert card.count("\n1. **") == 2 and card.count("\n5. **") == 2


def test_llama_cpp_encodes_the_same(path: Path, model: Model) -> None:
    import llama_cpp_oracle

    for text in (*EVERYDAY, *PROMPTS):
        assert model.tokenizer.encode(text) == llama_cpp_oracle.tokenize(path, text), text
    for text in random_texts(60, seed=8):
        for special in (True, False):
            expected = llama_cpp_oracle.tokenize(path, text, special, bos=False)
            assert model.tokenizer.encode(text, bos=False, special=special) == expected, text


def test_llama_cpp_agrees(path: Path, model: Model) -> None:
    import llama_cpp_oracle

    same, distances = [], []
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt)
        steps = llama_cpp_oracle.greedy_with_logprobs(path, ids, 64)
        chosen = [id for id, _ in steps]
        rows = reference.forward(model, ids + chosen[:-1])[len(ids) - 1 :].astype(np.float64)
        same += (rows.argmax(axis=-1) == chosen).tolist()
        ours = rows[np.arange(len(chosen)), chosen] - np.log(np.exp(rows).sum(axis=-1))
        distances += np.abs(ours - [logprob for _, logprob in steps]).tolist()
    print(f"{len(same)} positions, {np.mean(same):.1%} alike, distance {np.mean(distances):.4f}")
    assert len(same) > 200 and np.mean(same) >= 0.95 and np.mean(distances) < 0.1


@pytest.mark.slow
def test_the_engine_tells_a_story() -> None:
    from sovereign_lab.devices import open_device
    from sovereign_lab.engine import Engine

    engine = Engine(load_model("storyteller"), open_device("simt"))
    story = engine.generate(PROMPTS[1], max_tokens=400)
    assert story.finish_reason == "stop", "it found no end"
    assert story.text.rstrip().endswith((".", "!", "?", '"'))
    assert "Finn" in story.text and len(story.token_ids) >= 40
    assert engine.agreement(story) >= 0.95
