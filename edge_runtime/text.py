"""Text in and out: prompts to token ids, and token ids to text as they are committed."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from acespec.errors import AcespecError
from acespec.models import render_chat
from acespec.models.manifest import Bundle


def encode_prompt(tokenizer: Tokenizer, bundle: Bundle, prompt: str, chat: bool) -> tuple[int, ...]:
    """Token ids of ``prompt``, as a user's message in the model's chat template or as it is.

    Raises ``AcespecError`` if nothing is left to continue, for bytes that were no text, or if the model has
    no chat template.
    """
    if not prompt:
        raise AcespecError("the prompt is empty: give some text with -p")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise AcespecError("the prompt is not text in the terminal's encoding: give UTF-8 with -p") from None
    if chat:
        manifest = bundle.manifest
        text = render_chat(
            bundle.chat_template, prompt, bos_token=manifest.bos_token, eos_token=manifest.eos_token
        )
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    ids = tuple(tokenizer.encode(prompt).ids)
    if not ids:
        raise AcespecError("the prompt has no token: the tokenizer dropped all of it")
    return ids


class IncrementalText:
    """Decodes tokens as they come and never gives half a UTF-8 character.

    What it gave, and ``finish`` for what it held back, add up to the text of all tokens decoded at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self._given = ""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that ``tokens`` complete; empty while a character is unfinished."""
        self._tokens += tokens
        pieces = [self._stream.step(self._tokenizer, token) for token in tokens]
        new = "".join(piece for piece in pieces if piece is not None)
        self._given += new
        return new

    def preview(self, tokens: Sequence[int]) -> str:
        """What would follow the text given so far if ``tokens`` were pushed; it changes nothing."""
        text: str = self._tokenizer.decode([*self._tokens, *tokens], skip_special_tokens=True)
        return text[len(self._given) :] if text.startswith(self._given) else ""

    def finish(self) -> str:
        """What was held back: the text ended within a character."""
        text = self.text
        return text[len(self._given) :] if text.startswith(self._given) else ""

    @property
    def text(self) -> str:
        """The text of all tokens so far."""
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return text
