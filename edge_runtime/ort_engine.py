"""A draft engine on ONNX Runtime: runs a bundle's graph over rows held in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from acespec.edge_runtime.budget import bucket_for
from acespec.edge_runtime.cuda import load_cuda
from acespec.edge_runtime.engine import check_step
from acespec.edge_runtime.ort_graph import GraphFile, choose_graph, open_files
from acespec.edge_runtime.ort_inputs import StepInputs
from acespec.edge_runtime.ort_interface import FLOAT_TYPES, check_variant, row_names, row_type
from acespec.edge_runtime.ort_logits import LogitsBuffers
from acespec.edge_runtime.ort_rows import DevicePortableRows, GraphRows, InPlaceRows, PortableRows, RowTensors
from acespec.edge_runtime.ort_session import EngineError, SessionSettings, warn_if_slow
from acespec.models.manifest import Bundle, GraphName
from acespec.speculation import DraftLogits


class OnnxRuntimeEngine:
    """`DraftEngine` over a bundle's ort graph, or its portable one.

    On the CPU a step of n tokens runs at exactly n: it costs what the bucket it is planned in costs, or less.
    Graphs with fixed shapes, and devices, run it at the smallest bucket N >= n. Providers other than the CPU
    run the portable graph. That path was not run on a GPU so far.
    """

    def __init__(
        self,
        bundle: Bundle,
        threads: int = 1,
        tree_rows: int = 512,
        max_context: int | None = None,
        accuracy_level: int = 4,
        provider: str = "cpu",
        graph: GraphName | None = None,
        spin: bool = False,
    ) -> None:
        """``tree_rows`` is room beyond ``max_context`` rows, if the graph has as much; ``max_context``
        lowers the bundle's.

        ``provider`` is one of `PROVIDERS` or ``auto``; ``graph`` is chosen by it unless given; the others are
        `SessionSettings`. Raises `EngineError` when the graph does not load or is not what the manifest says,
        `ProviderError` when a provider asked for by name does not run.
        """
        manifest = bundle.manifest
        self.provider, variant = choose_graph(bundle, provider, graph)
        check_variant(bundle, variant)
        if self.provider == "cpu":
            warn_if_slow(manifest)
        self._variant = variant
        self._buckets = variant.buckets
        self._prefill_width = variant.prefill.width if variant.prefill else self._buckets[-1]
        self._max_context = min(manifest.max_context, max_context or manifest.max_context)
        self._max_rows = self._max_context + tree_rows
        if variant.name == "ort" and variant.rows is not None:
            self._max_rows = min(self._max_rows, variant.rows)
        self._vocab_size = manifest.vocab_size
        runs_on = SessionSettings(self.provider, threads, spin, accuracy_level)
        self._files = open_files(bundle, variant, runs_on)
        is_fixed = any(file.width is not None for file in self._files.values())
        if is_fixed:
            assert variant.rows is not None
            self._max_rows = variant.rows
            self._max_context = min(self._max_context, variant.rows)
        self._is_padded = is_fixed or self.provider != "cpu"
        try:
            self._allocate(bundle, is_fixed)
        except MemoryError as error:
            raise EngineError(
                f"there is no memory for the {self._max_context} positions of {bundle.folder} ({error}); "
                "export it again with a smaller --context"
            ) from None
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}

    def _allocate(self, bundle: Bundle, is_fixed: bool) -> None:
        """Make every buffer whose place the graph is told."""
        widest = max(self._prefill_width, self._buckets[-1])
        self._rows = self._make_rows(bundle, widest, is_fixed)
        self._inputs = StepInputs(self._variant, widest, self._buckets[-1], self._max_rows)
        self._logits = LogitsBuffers(self._buckets[-1], self._vocab_size, self._variant.top_k)

    def _make_rows(self, bundle: Bundle, widest: int, is_fixed: bool) -> GraphRows:
        manifest = bundle.manifest
        is_portable = self._variant.name == "portable"
        tensors = RowTensors(
            row_names("past", manifest.num_layers),
            row_names("new" if is_portable else "present", manifest.num_layers),
            (manifest.num_kv_heads, manifest.head_dim),
            FLOAT_TYPES[row_type(self._variant)],
        )
        if self.provider != "cpu":
            return DevicePortableRows(tensors, self._max_rows, widest, load_cuda(), "cuda")
        if is_portable:
            return PortableRows(tensors, self._max_rows, is_fixed)
        return InPlaceRows(tensors, self._max_rows)

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._buckets

    @property
    def prefill_width(self) -> int:
        return self._prefill_width

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def max_rows(self) -> int:
        return self._max_rows

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_rows(self) -> int:
        return self._rows.buffer.num_rows

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> DraftLogits:
        """Run one step; see `DraftEngine.forward`."""
        count, past = len(tokens), self.num_rows
        widest = self._prefill_width if last_only else self._buckets[-1]
        assert count <= widest, count
        check_step(self, tokens, positions, mask)
        file, width = self._file_for(count)
        num_logits = file.logit_rows or (1 if last_only else width)

        self._inputs.write(tokens, positions, width)
        binding = self._binding(file, width, num_logits)
        past_positions = self._rows.buffer.positions[:past]
        self._inputs.bind_masks(binding, self._rows.columns(width), width, mask, past_positions, positions)
        self._rows.bind_past(binding)
        if self.provider == "cpu":
            file.run(binding)
        else:
            self._inputs.bind(binding, width, num_logits)  # copies them to the device
            binding.synchronize_inputs()
            file.run(binding)
            binding.synchronize_outputs()
        self._rows.append(width, positions)
        if last_only:
            return self._logits.read(0 if num_logits == 1 else count - 1, 1)
        return self._logits.read(0, count)

    def _file_for(self, count: int) -> tuple[GraphFile, int]:
        """The graph a step of ``count`` tokens runs on, and how wide."""
        variant = self._variant
        if count <= self._buckets[-1]:
            bucket = bucket_for(count, self._buckets)
            file = self._files[variant.bucket_files[bucket]]
        else:
            assert variant.prefill is not None
            bucket, file = self._prefill_width, self._files[variant.prefill.file]
        return file, bucket if self._is_padded else count

    def _binding(self, file: GraphFile, width: int, num_logits: int) -> ort.IOBinding:
        """The binding of all steps of one shape. Whatever their memory and shape are always is bound once."""
        binding = self._bindings.get((width, num_logits))
        if binding is None:
            binding = self._bindings[width, num_logits] = file.session.io_binding()
            self._inputs.bind(binding, width, num_logits)
            self._rows.bind(binding, width)
            self._logits.bind(binding, num_logits)
        return binding

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        self._rows.buffer.compact(prefix, rows)

    def truncate(self, num_rows: int) -> None:
        self._rows.buffer.truncate(num_rows)
