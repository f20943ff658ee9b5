"""The bundle: a folder with a draft model's graphs, tokenizer and a manifest that describes and seals them.

``acespec export`` writes it, ``acespec profile`` adds latencies, the edge runtime reads it. Nothing in here
needs torch. A bundle is trusted only after every file's hash was compared with the manifest (`load_bundle`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from typing_extensions import Self

from acespec.errors import AcespecError
from acespec.models.files import sha256_of
from acespec.models.latency import LatencyProfile

FORMAT_VERSION = 3
MANIFEST_FILE = "manifest.json"
WIDEST_BUCKET = 1024
"""Tokens a step may have at most."""
MOST_POSITIONS = 2**24
"""Positions on the wire have 24 bits."""
DEFAULT_TREE_ROWS = 512
"""Rows for the tree beyond the context, where neither the graph nor the caller says how many."""
MASKED = -1e4
"""What a mask adds to a score that must not count: finite, so that a row which sees nothing stays finite, and
a number in every float type."""
ELEMENT_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    "float": 4,
    "int32": 4,
    "double": 8,
    "int64": 8,
}
"""By ONNX Runtime's name of a type."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# One folder deep, no way out of it: the manifest may come from somewhere else.
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=120)]
Width = Annotated[int, Field(ge=1, lt=2**31)]
BucketWidth = Annotated[int, Field(ge=1, le=WIDEST_BUCKET)]
Context = Annotated[int, Field(ge=1, lt=MOST_POSITIONS)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]
GraphName = Literal["portable", "ort", "native"]
Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


class BundleError(AcespecError):
    """A bundle is missing, damaged, or not one this version can read. ``cause`` says which file and why."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}; export it again with: acespec export MODEL -o BUNDLE")


class Sealed(BaseModel):
    """Base of what a manifest is made of: immutable, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorSpec(Sealed):
    """A graph input or output. In ``shape`` a string is a dimension that varies: ``N`` tokens, ``S`` rows."""

    name: str
    dtype: str
    """ONNX Runtime's spelling: ``float``, ``float16``, ``int64``."""
    shape: tuple[int | str, ...]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element. Raises `BundleError` for a type that no graph of ours has."""
        if self.dtype not in ELEMENT_BYTES:
            raise BundleError(f"the manifest has a tensor {self.name} of the unknown type {self.dtype!r}")
        return ELEMENT_BYTES[self.dtype]


class AttentionMask(Sealed):
    """A mask input of a graph, and how far back its layers look."""

    name: str
    window: Width | None = None
    """Positions a token attends to, its own included; None: all up to its own. Positions, not rows."""


class PrefillGraph(Sealed):
    """The graph that feeds a prompt: a wide step whose last token alone gets logits."""

    width: BucketWidth
    file: FileName


@dataclass(frozen=True)
class GraphStep:
    """A step that there is a graph for."""

    file: str
    width: int
    """Tokens it takes."""
    logit_rows: int
    """Tokens it gives logits of: all, or one."""


class GraphVariant(Sealed):
    """One way to run the model: a graph for each bucket (often the same file) and its interface.

    | input or output                     | shape                                                       |
    |-------------------------------------|-------------------------------------------------------------|
    | `input_ids`, `position_ids`         | `[1, N]` int64                                              |
    | `logit_rows`                        | `[M]` int64: the tokens of this step whose logits are wanted |
    | `past_length` (ort, native)         | `[1]` int32: rows in use before this step                   |
    | each of ``masks``                   | `[1, 1, N, T]`, added to the scores                         |
    | `past_key.i`, `past_value.i`        | portable: `[S, KVH, D]`; ort, native: `[1, KVH, R, D]`      |
    | -> `logits`                         | `[1, M, vocab_size]` float32, or instead of them            |
    | -> `top_logits`, `top_ids`          | `[1, M, K]` float32 and int64, the largest first            |
    | -> `log_sum_exp`                    | `[1, M]` float32, of the whole row                          |
    | -> `new_key.i`, ... (portable)      | `[N, KVH, D]`: the rows of this step                        |
    | -> `present_key.i`, ... (ort, native) | as the past, and bound to its memory: new rows in place   |

    N tokens in a step, S rows before it, R rows in the buffer, of which rows from S on may hold anything; T =
    S + N (portable, ort) or R (native). In the ort graph a token's row must come after the rows it sees, and
    the past begins with a row that masks hide: ``past_length`` is never 0.
    """

    name: GraphName
    """``portable``: primitives of opset 21; ``ort``: ONNX Runtime's fused operators; ``native``: opset 24."""
    opset: int
    bucket_files: dict[BucketWidth, FileName] = Field(min_length=1)
    """Bucket width -> graph file. One file for all, or one a bucket with fixed shapes."""
    prefill: PrefillGraph | None = None
    rows: Width | None = None
    """Rows of the key/value buffer: what graphs with fixed shapes are made for, and the most an ort graph's
    tables of positions serve."""
    masks: tuple[AttentionMask, ...] = Field(min_length=1)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        for kind, named in (("mask", self.masks), ("input", self.inputs), ("output", self.outputs)):
            if len({each.name for each in named}) != len(named):
                raise ValueError(f"two {kind}s share a name")
        return self

    @model_validator(mode="after")
    def _largest_logits_are_counted(self) -> Self:
        for spec in self.outputs:
            if spec.name == "top_logits" and not (spec.shape and isinstance(spec.shape[-1], int)):
                raise ValueError("the shape of top_logits does not end in a number")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """Every graph file, each once."""
        return tuple(dict.fromkeys(step.file for step in self.steps))

    @property
    def steps(self) -> tuple[GraphStep, ...]:
        """A step a bucket, by width, and last the one that feeds a prompt."""
        steps = [GraphStep(self.bucket_files[width], width, width) for width in self.buckets]
        if self.prefill is not None:
            steps.append(GraphStep(self.prefill.file, self.prefill.width, 1))
        return tuple(steps)

    @property
    def top_k(self) -> int | None:
        """How many logits of a row leave the graph; None: all."""
        sizes = [spec.shape[-1] for spec in self.outputs if spec.name == "top_logits"]
        return int(sizes[0]) if sizes else None

    @property
    def buckets(self) -> tuple[int, ...]:
        """Widths a step can run at, ascending."""
        return tuple(sorted(self.bucket_files))


class Quantization(Sealed):
    """How weights are stored in integers, and whether activations are."""

    bits: Literal[4, 8]
    """Of the layers' weights."""
    block: Literal[32, 128] | None
    """Inputs that share a scale; None: one scale for all inputs of an output."""
    symmetric: bool
    """Without zero points."""
    head_bits: Literal[4, 8] | None
    """None: the head stays in floats."""
    embedding_bits: Literal[8] | None = None
    activation_bits: Literal[8] | None = None
    """8: activations are rounded too, with one scale a row, and products are of integers."""


class BundleManifest(Sealed):
    """What a bundle holds. ``manifest.json`` is this model's JSON."""

    format_version: int = FORMAT_VERSION
    model_name: str
    source_fingerprint: str
    """Fingerprint of the model folder the graphs were exported from."""

    vocabulary_hash: str
    """A target is compatible when its tokenizer has the same hash."""
    vocab_size: Width
    """The tokenizer's size, and the width of the logits."""
    end_token_ids: tuple[TokenId, ...]
    bos_token: str | None
    eos_token: str | None
    tokenizer_file: FileName
    chat_template_file: FileName | None

    num_layers: Width
    num_kv_heads: Width
    head_dim: Width
    max_context: Context
    """Positions the draft may be fed: 0 .. max_context - 1."""
    precision: Precision
    """How the layers' weights are stored. Logits are float32 in all."""
    quantization: Quantization | None = None
    """How the weights of ``int8`` and ``int4`` are quantised; None for the others."""

    graphs: tuple[GraphVariant, ...] = Field(min_length=1)
    file_sha256: dict[FileName, Sha256]
    """Every file of the bundle but the manifest itself."""
    latency: LatencyProfile | None = None
    """Measured by ``acespec profile``; None until then."""

    @model_validator(mode="after")
    def _names_are_sealed(self) -> Self:
        named = {self.tokenizer_file}
        for graph in self.graphs:
            named.update(graph.files)
        if self.chat_template_file is not None:
            named.add(self.chat_template_file)
        unsealed = sorted(named - self.file_sha256.keys())
        if unsealed:
            raise ValueError(f"no hash for {', '.join(unsealed)}")
        if len({graph.name for graph in self.graphs}) != len(self.graphs):
            raise ValueError("two graphs share a name")
        return self


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose files were checked."""

    folder: Path
    manifest: BundleManifest

    def path(self, file_name: str) -> Path:
        """Path of one of the bundle's files."""
        assert file_name in self.manifest.file_sha256, file_name
        return self.folder / file_name

    @property
    def tokenizer_path(self) -> Path:
        return self.path(self.manifest.tokenizer_file)

    @property
    def chat_template(self) -> str | None:
        """Text of the chat template, or None when the model has none."""
        name = self.manifest.chat_template_file
        return None if name is None else self.path(name).read_text(encoding="utf-8")

    def graph(self, name: str) -> GraphVariant:
        """The variant called ``name``. Raises `BundleError` when the bundle lacks it."""
        for variant in self.manifest.graphs:
            if variant.name == name:
                return variant
        known = ", ".join(variant.name for variant in self.manifest.graphs)
        raise BundleError(f"bundle {self.folder} has no {name!r} graph (it has: {known})")


def load_bundle(path: Path | str) -> Bundle:
    """Read the bundle in folder ``path`` and compare every file with its hash.

    Raises `BundleError`, naming the file and the remedy, when the folder or a file is missing, a file was
    changed, or the manifest is of another format.
    """
    folder = Path(path)
    manifest = _read_manifest(folder)
    for weights in sorted(folder.glob("*.data")):  # graphs point to them, and the manifest does not
        if weights.name not in manifest.file_sha256:
            raise BundleError(f"bundle file {weights} is not the bundle's: its manifest has no hash for it")
    for name, expected in manifest.file_sha256.items():
        file = folder / name
        if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe would wait for ever
            raise BundleError(f"bundle file {file} is not a regular file")
        try:
            actual = sha256_of(file)
        except OSError as error:
            raise BundleError(f"bundle file {file} cannot be read ({_reason(error)})") from None
        if actual != expected:
            raise BundleError(f"bundle file {file} is damaged: its sha256 is not the manifest's")
    return Bundle(folder, manifest)


def _read_manifest(folder: Path) -> BundleManifest:
    file = folder / MANIFEST_FILE
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it has no {MANIFEST_FILE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"bundle file {file} cannot be read ({_reason(error)})") from None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"bundle file {file} is not JSON ({_reason(error)})") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version != FORMAT_VERSION:
        raise BundleError(
            f"bundle file {file} has format version {version!r}, this program reads {FORMAT_VERSION}"
        )
    try:
        manifest = BundleManifest.model_validate(raw)
        manifest.model_dump_json()  # half a surrogate pair, which JSON can spell, is no text
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join(".".join(str(part) for part in first["loc"]).split()) or "manifest"
        raise BundleError(f"bundle file {file} is invalid at {where} ({first['msg']})") from None
    except ValueError:  # pydantic's, of what it cannot write
        raise BundleError(f"bundle file {file} holds text that is not Unicode") from None
    return manifest


def write_manifest(folder: Path, manifest: BundleManifest) -> None:
    """Write ``manifest.json`` into ``folder`` so that a reader sees the old or the new one, never a part.

    Raises ``AcespecError`` when the folder cannot be written to.
    """
    beside = folder / f".{MANIFEST_FILE}.{os.getpid()}"
    try:
        beside.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
        beside.replace(folder / MANIFEST_FILE)
    except OSError as error:
        raise AcespecError(
            f"cannot write {folder / MANIFEST_FILE} ({_reason(error)}); check its rights"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # a read-only disk refuses to remove even what is not there
            beside.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Raise ``AcespecError`` where ``write_manifest`` would: for those who have long to measure before it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise AcespecError(
            f"cannot write {folder / MANIFEST_FILE} ({_reason(error)}); check its rights"
        ) from None


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return re.sub(r"\s+", " ", text)
