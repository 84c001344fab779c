"""A chat goes through the template in the model's file, which a stranger may have written."""

import dataclasses
from typing import Any

import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import Engine
from sovereign_lab.engine.chat import render
from sovereign_lab.errors import LabError
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import Model, load_model

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model(resolve("synthetic:tiny"))


def with_template(model: Model, template: str | None) -> Model:
    tokenizer = dataclasses.replace(model.tokenizer, chat_template=template)
    return dataclasses.replace(model, tokenizer=tokenizer)


def test_chat_is_generation_from_the_rendered_prompt(tiny: Model, simt: SimtDevice) -> None:
    engine = Engine(with_template(tiny, CHATML), simt)
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    prompt = "<s><|system|>Be brief.\n<|user|>Hello\n<|assistant|>"
    answer = engine.chat(messages, max_tokens=6, temperature=1.5, seed=2, top_k=9)
    assert answer.prompt == prompt
    assert answer.prompt_ids.count(tiny.tokenizer.bos_id) == 1
    same = engine.generate(prompt, 6, 1.5, 2, top_k=9)
    assert answer.token_ids == same.token_ids and answer.text == same.text


def test_chat_without_a_template_is_a_sentence(tiny: Model, simt: SimtDevice) -> None:
    with pytest.raises(LabError, match=r"no chat template .* plain prompt"):
        Engine(tiny, simt).chat(HELLO)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "1 s of",
        ),
        ("{{ 10 ** (10 ** 10) }}", "1 s of processor time"),
        ("{{ 'a' * 10 ** 11 }}", "256 MiB of memory"),
        ("{{ 'a' * 2000000 }}", "1,000,000 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ raise_exception('only users here') }}", "only users here"),
        ("{{ messages | nothing }}", "nothing"),
        ("{% for", "unexpected"),
    ],
)
def test_hostile_template_is_refused_in_one_sentence(
    tiny: Model, template: str, reason: str
) -> None:
    with pytest.raises(LabError) as refusal:
        render(with_template(tiny, template).tokenizer, HELLO)
    assert reason in str(refusal.value)
    assert "chat template" in str(refusal.value)
    assert "\n" not in str(refusal.value) and "Traceback" not in str(refusal.value)


@pytest.mark.parametrize(
    "messages", [[], "Hello", ["Hello"], [{"role": "user"}], [{"role": "user", "content": 3}]]
)
def test_messages_of_another_form_are_refused(tiny: Model, messages: Any) -> None:
    with pytest.raises(LabError, match=r"[Cc]hat"):
        render(with_template(tiny, CHATML).tokenizer, messages)


def test_a_chat_longer_than_the_context_names_both_lengths(tiny: Model, simt: SimtDevice) -> None:
    engine = Engine(with_template(tiny, CHATML), simt, context=16)
    with pytest.raises(LabError, match=r"prompt has \d+ tokens, and the context has room for 16"):
        engine.chat([{"role": "user", "content": "long " * 50}])
