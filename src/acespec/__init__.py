"""AceSpec: lossless speculative decoding between an edge device and the cloud.

A draft model on the edge and a target model in the cloud generate text together over a wide-area network.
The text is distributed exactly as the target alone would produce it. The package is laid out as
``speculation`` (the maths both sides share), ``wire`` (the protocol), ``models`` (where models come from),
``export`` (Hugging Face to engine bundles), ``edge_runtime`` (the device), ``cloud_verifier`` (the service)
and ``bench`` (measuring).
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
