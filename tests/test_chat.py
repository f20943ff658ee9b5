"""Chat templates render as transformers renders them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from acespec.errors import AcespecError
from acespec.models import DEMO_PAIR, load_chat_template, pair, render_chat
from acespec.models.prepare import ensure_pair
from model_folder import CHAT_TEMPLATE, tiny_tokenizer, write_model_folder

SPECIAL_TOKENS = {"bos_token": "<begin>", "eos_token": "<end>"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": 'Hello <there> & "you"\n'}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " 1 + 1? "},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Grüße, 你好"},
    ],
]
TEMPLATES = {
    "blocks and special tokens": """{{ bos_token }}
{% for message in messages %}
    {% if message.role == 'user' %}
[U] {{ message['content'] | trim }} {{ eos_token }}
    {% else %}
[{{ message['role'] | upper }}] {{ message['content'] }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
[ASSISTANT]
{%- endif %}""",
    "namespace, loop controls, tests": """{%- set ns = namespace(system='', count=0) -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- continue -%}{%- endif -%}
{%- set ns.count = ns.count + 1 -%}{%- if loop.index > 3 -%}{%- break -%}{%- endif -%}
<{{ ns.count }}|{{ loop.last }}>{{ m['content'].split('\\n')[0] }}
{%- endfor -%}{{ ns.system }}
{%- if tools is none and documents is none and not unknown is defined %} bare{% endif %}""",
    "tojson": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "generation": """{% set scope = 'outer' %}{% for m in messages %}
{% generation %}{% set scope = 'inner' %}{{ m.content }}{% endgeneration %}{{ scope }}
{% endfor %}""",
    "macro": "{% macro turn(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "date": "{{ strftime_now('%Y') }}|{{ dict(a=1)['a'] }}|{{ enable_thinking }}",
}


def as_transformers(template: str, conversation: list[dict[str, Any]], **variables: object) -> str:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(("<begin>", "<end>")), **SPECIAL_TOKENS
    )
    rendered = tokenizer.apply_chat_template(
        conversation, chat_template=template, tokenize=False, add_generation_prompt=True, **variables
    )
    assert isinstance(rendered, str)
    return rendered


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=["one message", "four messages"])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_equals_transformers(template: str, conversation: list[dict[str, Any]]) -> None:
    ours = render_chat(template, conversation, **SPECIAL_TOKENS, enable_thinking=False)
    assert ours == as_transformers(template, conversation, enable_thinking=False)
    assert ours


@pytest.mark.real_model
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=["one message", "four messages"])
def test_equals_transformers_on_the_real_template(
    conversation: list[dict[str, Any]],
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = ensure_pair(pair(DEMO_PAIR)).target
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    expected = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert load_chat_template(folder).render(conversation) == expected


def test_a_string_is_one_message_of_the_user() -> None:
    assert render_chat(CHAT_TEMPLATE, "hi") == "<user>hi"


def test_a_template_that_refuses_says_so_in_one_line() -> None:
    with pytest.raises(AcespecError, match=r"chat template failed \(only one turn, please\).*--raw"):
        render_chat("{{ raise_exception('only one\nturn, please') }}", "hi")


@pytest.mark.parametrize(
    "template",
    [
        "{% for",
        "{{ messages[7].role }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_broken_or_hostile_template_is_an_error(template: str) -> None:
    with pytest.raises(AcespecError, match="chat template failed"):
        render_chat(template, "hi")


@pytest.mark.parametrize("template", [None, ""])
def test_no_template_names_the_remedy(template: str | None) -> None:
    with pytest.raises(AcespecError, match="no chat template; use --raw"):
        render_chat(template, "hi")


def test_the_template_file_wins_over_the_config(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model")
    assert load_chat_template(folder).template == CHAT_TEMPLATE
    (folder / "chat_template.jinja").write_text("{{ eos_token }}", encoding="utf-8")
    assert load_chat_template(folder).render("hi") == "<end>"


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token }}"}]
    config = {"chat_template": named, "bos_token": {"content": "<s>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_chat_template(tmp_path).render("hi") == "<s>"


def test_a_model_without_template_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(AcespecError, match="no chat template; use --raw"):
        load_chat_template(tmp_path)


def test_needs_neither_torch_nor_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)
    assert load_chat_template(write_model_folder(tmp_path / "model")).render("hi") == "<user>hi"
