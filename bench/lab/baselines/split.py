"""Split inference: the target's first layers on the device, hidden states up, each token down.

The device holds the embedding and ``edge_layers`` layers of the *target*, the cloud the others, the head and
the sampling. Every token crosses the link twice, so each costs a whole round trip. ``split_model`` is the
split itself; here the target's rows are looked up, as for every strategy, while bytes are those of encoded
hidden states of the profile's width and time is shared out by layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.baselines.colocated import CLOUD_SPEEDUP
from acespec.bench.lab.baselines.messages import decode_tokens, encode_tokens
from acespec.bench.lab.baselines.sides import cloud_token, is_end, run_sides, send, send_prompt
from acespec.bench.lab.profiles import ORIN_KNEE, flat_to
from acespec.bench.lab.strategy import PREFILL_CHUNK, World

HIDDEN_TYPE: np.dtype[np.float16] = np.dtype("<f2")


@dataclass(frozen=True)
class Split:
    """``Strategy``: the text of cloud-only decoding; in a real split, that of rounded hidden states."""

    edge_layers: int = 2
    """Layers of the target on the device."""
    layer_slowdown: float = CLOUD_SPEEDUP
    """How much longer a layer takes on the device than in the cloud."""
    name: str = "split"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``. ``ValueError`` if the target has no layer for the cloud."""
        if not 1 <= self.edge_layers < world.cloud_profile.num_layers:
            raise ValueError(
                f"edge_layers must be from 1 to {world.cloud_profile.num_layers - 1}, not {self.edge_layers}"
            )
        await run_sides(self._edge(world), self._cloud(world))

    def edge_ms(self, world: World, num_tokens: int) -> float:
        """What the device's layers take: as long per layer as the cloud's, times the slowdown."""
        profile = world.cloud_profile
        layer_ms = profile.forward_ms(1) / profile.num_layers * self.layer_slowdown
        return flat_to(ORIN_KNEE, layer_ms * self.edge_layers).ms(num_tokens)

    def cloud_ms(self, world: World, num_tokens: int) -> float:
        """What the other layers take."""
        profile = world.cloud_profile
        return profile.forward_ms(num_tokens) * (1.0 - self.edge_layers / profile.num_layers)

    async def _edge(self, world: World) -> None:
        send_prompt(world)
        num_tokens = len(world.request.prompt)
        while not world.finished:
            for chunk in _chunks(num_tokens):
                await world.edge.spend(self.edge_ms(world, chunk))
                hidden = np.zeros((chunk, world.cloud_profile.hidden_size), HIDDEN_TYPE)
                send(world.up, encode_hidden(hidden))
            world.commit(decode_tokens(await world.down.receive(), world.models.vocab_size))
            num_tokens = 1

    async def _cloud(self, world: World) -> None:
        await world.up.receive()
        path, hidden_size = world.start(), world.cloud_profile.hidden_size
        missing = path.length
        while not (path.parent is not None and is_end(world, path.token)):
            while missing > 0:
                hidden = decode_hidden(await world.up.receive(), hidden_size)
                await world.cloud.spend(self.cloud_ms(world, len(hidden)))
                missing -= len(hidden)
            world.log.forwards += 1
            path = path.then(cloud_token(world, path))
            missing = 1
            send(world.down, encode_tokens([path.token], world.models.vocab_size))


def encode_hidden(hidden: NDArray[np.floating]) -> bytes:
    """Hidden states ``[n, hidden_size]`` as float16, little-endian, row after row."""
    return hidden.astype(HIDDEN_TYPE).tobytes()


def decode_hidden(data: bytes, hidden_size: int) -> NDArray[np.float16]:
    """What ``encode_hidden`` was given: float16 ``[n, hidden_size]``."""
    return np.frombuffer(data, HIDDEN_TYPE).reshape(-1, hidden_size)


def _chunks(num_tokens: int) -> list[int]:
    """A prompt goes through the layers as the verifier feeds one: at most so many tokens at a time."""
    return [min(PREFILL_CHUNK, num_tokens - start) for start in range(0, num_tokens, PREFILL_CHUNK)]
