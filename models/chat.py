"""Chat templates without transformers: what the edge needs to turn a message into a prompt."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from acespec.errors import AcespecError
from acespec.models.files import read_json_object

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

NO_TEMPLATE = "the model has no chat template; use --raw to send the prompt as it is"


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template and the special tokens it may name."""

    template: str
    bos_token: str | None = None
    eos_token: str | None = None

    def render(self, messages: str | Sequence[Mapping[str, Any]]) -> str:
        """See ``render_chat``."""
        return render_chat(self.template, messages, bos_token=self.bos_token, eos_token=self.eos_token)


def render_chat(
    template: str | None,
    messages: str | Sequence[Mapping[str, Any]],
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    add_generation_prompt: bool = True,
    **variables: object,
) -> str:
    """Turn a conversation into a prompt, exactly as transformers' ``apply_chat_template`` does.

    ``messages`` is a list of ``{"role": …, "content": …}``, or a string: one message of the user.
    ``variables`` reach the template too (such as ``enable_thinking``). The template is untrusted: it runs
    in Jinja's immutable sandbox. The text holds special tokens already, so encode it with
    ``add_special_tokens=False``. Raises ``AcespecError`` when there is no template or it fails.
    """
    from jinja2 import TemplateError  # here, so that listing models needs no extra installed

    if not template:
        raise AcespecError(NO_TEMPLATE)
    conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    special_tokens = {"bos_token": bos_token, "eos_token": eos_token}
    known = {name: token for name, token in special_tokens.items() if token is not None}
    try:
        compiled = _environment().from_string(template)
        context = {"tools": None, "documents": None, **known, **variables}
        return compiled.render(context, messages=conversation, add_generation_prompt=add_generation_prompt)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise AcespecError(
            f"the model's chat template failed ({reason}); use --raw to send the prompt as it is"
        ) from error


def load_chat_template(model_folder: Path) -> ChatTemplate:
    """Read a model's template from ``chat_template.jinja``, else from ``tokenizer_config.json``.

    Of several named templates the one called ``default`` is taken. Raises ``AcespecError`` if there is none.
    """
    config_path = model_folder / "tokenizer_config.json"
    config = read_json_object(config_path) if config_path.is_file() else {}
    template_path = model_folder / "chat_template.jinja"
    template: object = config.get("chat_template")
    if template_path.is_file():
        template = template_path.read_text(encoding="utf-8")
    elif isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str) or not template:
        raise AcespecError(NO_TEMPLATE)
    return ChatTemplate(template, _token(config.get("bos_token")), _token(config.get("eos_token")))


def _token(declared: object) -> str | None:
    """A special token as ``tokenizer_config.json`` writes it: a string, or an object holding its content."""
    content = declared.get("content") if isinstance(declared, dict) else declared
    return content if isinstance(content, str) else None


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: whitespace control and the helpers Hugging Face defines for them."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks what training should learn; a prompt renders what is inside."""

        tags = {"generation"}  # noqa: RUF012 - the name and type Jinja's base class declares

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(
                parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line
            )

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def strftime_now(pattern: str) -> str:
        return datetime.now().strftime(pattern)

    def tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
