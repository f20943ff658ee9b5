"""What a bundle holds and what running it takes: the facts behind ``acespec inspect``. Reads no tensor.

Sizes come from the files, memory from the manifest's shapes. What an engine's own workspace takes is known
only where the engine is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from acespec.models.manifest import (
    DEFAULT_TREE_ROWS,
    ELEMENT_BYTES,
    AttentionMask,
    Bundle,
    BundleManifest,
    GraphVariant,
    PrefillGraph,
    TensorSpec,
)

LAYER_TENSOR = re.compile(r"^(?P<kind>.+)\.(?P<layer>[0-9]{1,9})$")


@dataclass(frozen=True)
class FoldedTensor:
    """Inputs or outputs that differ in the layer alone, such as ``past_key.0..29``."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    count: int


@dataclass(frozen=True)
class FileSize:
    """A file of the bundle."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class StepMemory:
    """Buffers of a step of ``width`` tokens, in bytes."""

    width: int
    prefill: bool
    logits_bytes: int
    """Of all its rows, or of the last alone where it feeds a prompt."""
    mask_bytes: int
    """Of every mask, at the longest past."""
    new_rows_bytes: int
    """Keys and values of the step, where the graph returns them apart from the past."""
    total_bytes: int


@dataclass(frozen=True)
class LayoutMemory:
    """What a layout takes in memory: weights, key/value buffer and the widest step's buffers."""

    layout: str
    """``profiles``: one engine for every width; ``split``: one for each."""
    engines: int
    weights_bytes: int
    """Once an engine, though engines may share one file on disk."""
    total_bytes: int


@dataclass(frozen=True)
class VariantReport:
    """One of a bundle's graph variants."""

    name: str
    opset: int
    layout: str
    """``split`` where graphs have fixed shapes, one for each width."""
    bucket_files: dict[int, str]
    prefill: PrefillGraph | None
    masks: tuple[AttentionMask, ...]
    top_k: int | None
    inputs: tuple[FoldedTensor, ...]
    outputs: tuple[FoldedTensor, ...]
    weights_bytes: int
    """Of the graph files and the weights files they name, each once."""
    context_rows: int
    tree_rows: int
    """Rows for the tree beyond the context."""
    context_bytes: int
    """Of the key/value buffer's rows for the context."""
    tree_bytes: int
    """Of the key/value buffer's rows for the tree."""
    steps: tuple[StepMemory, ...]
    layouts: tuple[LayoutMemory, ...]


@dataclass(frozen=True)
class BundleReport:
    """A bundle in figures. The latency profile and the quantisation are the manifest's own."""

    manifest: BundleManifest
    files: tuple[FileSize, ...]
    variants: tuple[VariantReport, ...]

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


def report_bundle(bundle: Bundle, tree_rows: int = DEFAULT_TREE_ROWS) -> BundleReport:
    """Describe ``bundle``. ``tree_rows`` counts where graphs leave the number of rows open."""
    sizes = {name: bundle.path(name).stat().st_size for name in sorted(bundle.manifest.file_sha256)}
    variants = (_report_variant(bundle, variant, sizes, tree_rows) for variant in bundle.manifest.graphs)
    files = tuple(FileSize(name, size) for name, size in sizes.items())
    return BundleReport(bundle.manifest, files, tuple(variants))


def weights_format(manifest: BundleManifest) -> str:
    """How weights are stored: ``fp16``, or ``int4 weights (blocks of 32, asymmetric, head int8)``."""
    quantization = manifest.quantization
    if quantization is None:
        return manifest.precision
    block = f"blocks of {quantization.block}" if quantization.block else "a scale an output"
    parts = [block, "symmetric" if quantization.symmetric else "asymmetric"]
    parts.append("head in floats" if quantization.head_bits is None else f"head int{quantization.head_bits}")
    if quantization.embedding_bits is not None:
        parts.append(f"embeddings int{quantization.embedding_bits}")
    if quantization.activation_bits is not None:
        parts.append(f"activations int{quantization.activation_bits} with a scale a row")
    return f"int{quantization.bits} weights ({', '.join(parts)})"


def _report_variant(
    bundle: Bundle, variant: GraphVariant, sizes: dict[str, int], tree_rows: int
) -> VariantReport:
    manifest = bundle.manifest
    rows = variant.rows or manifest.max_context + tree_rows
    context_rows = min(rows, manifest.max_context)
    past_bytes = sum(spec.element_bytes for spec in variant.inputs if LAYER_TENSOR.match(spec.name))
    row_bytes = manifest.num_kv_heads * manifest.head_dim * past_bytes
    parts = {file: {file, *weights_files(bundle, file)} for file in variant.files}
    steps = [step_memory(manifest, variant, width, rows) for width in variant.buckets]
    if variant.prefill is not None:
        steps.append(step_memory(manifest, variant, variant.prefill.width, rows, prefill=True))
    engine_bytes = max(sum(sizes[name] for name in names) for names in parts.values())
    buffer_bytes = rows * row_bytes + max(step.total_bytes for step in steps)
    return VariantReport(
        name=variant.name,
        opset=variant.opset,
        layout="split" if len(set(variant.bucket_files.values())) > 1 else "profiles",
        bucket_files=dict(sorted(variant.bucket_files.items())),
        prefill=variant.prefill,
        masks=variant.masks,
        top_k=variant.top_k,
        inputs=fold(variant.inputs),
        outputs=fold(variant.outputs),
        weights_bytes=sum(sizes[name] for name in set().union(*parts.values())),
        context_rows=context_rows,
        tree_rows=rows - context_rows,
        context_bytes=context_rows * row_bytes,
        tree_bytes=(rows - context_rows) * row_bytes,
        steps=tuple(steps),
        layouts=tuple(
            LayoutMemory(layout, engines, engines * engine_bytes, engines * engine_bytes + buffer_bytes)
            for layout, engines in (("profiles", 1), ("split", len(steps)))
        ),
    )


def step_memory(
    manifest: BundleManifest, variant: GraphVariant, width: int, rows: int, prefill: bool = False
) -> StepMemory:
    """Bytes of the buffers of a step of ``width`` tokens, at the longest past that ``rows`` rows hold."""
    mask_names = {mask.name for mask in variant.masks}
    mask_bytes = sum(spec.element_bytes for spec in variant.inputs if spec.name in mask_names)
    columns = rows + width if variant.name == "portable" else rows
    if variant.top_k is None:
        logits_row = manifest.vocab_size * ELEMENT_BYTES["float"]
    else:
        number, token = ELEMENT_BYTES["float"], ELEMENT_BYTES["int64"]
        logits_row = variant.top_k * (number + token) + number
    new_bytes = sum(spec.element_bytes for spec in variant.outputs if spec.name.startswith("new_"))
    new_row = manifest.num_kv_heads * manifest.head_dim * new_bytes
    logits = logits_row * (1 if prefill else width)
    mask = width * columns * mask_bytes
    new_rows = width * new_row
    return StepMemory(width, prefill, logits, mask, new_rows, logits + mask + new_rows)


def fold(specs: Iterable[TensorSpec]) -> tuple[FoldedTensor, ...]:
    """Join tensors of consecutive layers that are alike, in the order of each one's first."""
    groups: dict[tuple[str, str, tuple[int | str, ...]], list[int]] = {}
    for spec in specs:
        match = LAYER_TENSOR.match(spec.name)
        kind = match["kind"] if match else spec.name
        groups.setdefault((kind, spec.dtype, spec.shape), []).extend([int(match["layer"])] if match else [])
    return tuple(
        FoldedTensor(f"{kind}.{_ranges(layers)}" if layers else kind, dtype, shape, max(len(layers), 1))
        for (kind, dtype, shape), layers in groups.items()
    )


def _ranges(layers: list[int]) -> str:
    """``0..3,7`` for 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], layer]
        else:
            runs.append([layer])
    return ",".join("..".join(map(str, run)) for run in runs)


def weights_files(bundle: Bundle, graph_file: str) -> list[str]:
    """The bundle's files that ``graph_file`` keeps its tensors in.

    Found by the bytes of a ``StringStringEntryProto`` (onnx.proto) of key ``location``: the device has no
    parser of graphs.
    """
    graph = bundle.path(graph_file).read_bytes()
    return [name for name in bundle.manifest.file_sha256 if _location_entry(name) in graph]


def _location_entry(name: str) -> bytes:
    assert len(name) < 128, name  # the length is one byte
    return b"\n\x08location\x12" + bytes([len(name)]) + name.encode()
