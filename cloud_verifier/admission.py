"""Whether a session may begin: what an ``Open`` asks for against what is served."""

from __future__ import annotations

from acespec.cloud_verifier.engine import TargetInfo
from acespec.wire import ErrorCode, Open, SessionError


def check_open(request: Open, target: TargetInfo, max_context: int) -> None:
    """Raise ``SessionError`` FAILED_PRECONDITION, naming both values and the remedy, if ``target`` is not it.

    What a message can be checked for by itself the decoder has checked. An empty model name or fingerprint
    accepts whatever is served. ``max_context`` is how many positions a session may use.
    """
    if request.model and request.model != target.name:
        raise mismatch(
            f"the edge asks for the target {request.model!r} but {target.name!r} is served; "
            "connect to another server or use the draft of this target"
        )
    if request.fingerprint and request.fingerprint != target.fingerprint:
        raise mismatch(
            f"the edge expects {target.name!r} with fingerprint {request.fingerprint!r} "
            f"but the one served has {target.fingerprint!r}; "
            "serve the files the draft was made for, or make the draft again"
        )
    if request.vocabulary_hash != target.vocabulary_hash:
        raise mismatch(
            f"the draft's vocabulary {request.vocabulary_hash!r} "
            f"is not the target's {target.vocabulary_hash!r}; use a draft with the target's tokenizer"
        )
    if request.vocab_size != target.vocab_size:
        raise mismatch(
            f"the draft has a vocabulary of {request.vocab_size} tokens "
            f"and the target of {target.vocab_size}; use a draft with the target's tokenizer"
        )
    if request.prompt_length >= max_context:
        raise mismatch(
            f"prompt of {request.prompt_length} tokens does not fit the target's context of "
            f"{max_context}; shorten the prompt"
        )
    if len(request.committed) > max_context:
        raise mismatch(
            f"{len(request.committed)} committed tokens do not fit the target's context of "
            f"{max_context}; end the generation there"
        )


def mismatch(message: str) -> SessionError:
    """The two sides do not fit together."""
    return SessionError(ErrorCode.FAILED_PRECONDITION, message)
