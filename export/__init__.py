"""From a Hugging Face model to a bundle an edge engine runs: trace, quantise, check against PyTorch, seal.

`bundle.export_bundle` does it all; it is not imported here, because it needs torch and ``--help`` does not.
"""
