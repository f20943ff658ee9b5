"""What both sides must agree on about tokens: the vocabulary, its size and the ids that end a text.

Reads ``tokenizer.json`` with the ``tokenizers`` library alone.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from acespec.errors import AcespecError
from acespec.models.files import read_json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(tokenizer_json: Path) -> Tokenizer:
    """Read a ``tokenizer.json``. Raises ``AcespecError`` naming a file that is missing or not a tokenizer."""
    from tokenizers import Tokenizer  # here, so that listing models needs no extra installed

    if not tokenizer_json.is_file():
        raise AcespecError(f"there is no tokenizer file {tokenizer_json}; fetch or export the model again")
    try:
        return Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the library raises plain Exception for whatever it cannot parse
        reason = " ".join(str(error).split())
        raise AcespecError(
            f"{tokenizer_json} is not a readable tokenizer ({reason}); fetch or export the model again"
        ) from error


def vocabulary_hash(tokenizer_json: Path) -> str:
    """Name the mapping of ids to tokens: 64 hexadecimal digits.

    The sha256 of every ``(id, token)``, added tokens included, in ascending order of id: the id and the
    token's length in bytes as little-endian 32-bit integers, then the token in UTF-8. Two models may
    speculate together if and only if these are equal. Merges and normalisation are left out: the edge alone
    turns text into tokens.
    """
    digest = hashlib.sha256()
    vocabulary = load_tokenizer(tokenizer_json).get_vocab(with_added_tokens=True)
    for token_id, token in sorted((token_id, token) for token, token_id in vocabulary.items()):
        encoded = token.encode()
        digest.update(struct.pack("<II", token_id, len(encoded)))
        digest.update(encoded)
    return digest.hexdigest()


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """The largest id plus one, added tokens included: the width both sides cut padded logits to.

    Not the number of tokens: vocabularies may have holes. Raises ``AcespecError`` for an empty vocabulary.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if not ids:
        raise AcespecError("the tokenizer has an empty vocabulary; fetch or export the model again")
    return max(ids) + 1


def end_token_ids(model_folder: Path) -> tuple[int, ...]:
    """Ids that end a text, ascending: those of ``generation_config.json``, else of ``config.json``.

    An instruction-tuned model often has several, and only its generation config names them all. Empty when
    the model names none. Raises ``AcespecError`` for a file that is not what it should be.
    """
    for name in ("generation_config.json", "config.json"):
        path = model_folder / name
        declared = read_json_object(path).get("eos_token_id") if path.is_file() else None
        if declared is None:
            continue
        ids = declared if isinstance(declared, list) else [declared]
        if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
            raise AcespecError(f"{path} has eos_token_id {declared!r}; it must be an id or a list of ids")
        return tuple(sorted(set(ids)))
    return ()
