# What this project uses of ONNX Runtime, which ships no types.
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

class SessionOptions:
    intra_op_num_threads: int
    inter_op_num_threads: int
    log_severity_level: int
    enable_mem_pattern: bool
    optimized_model_filepath: str
    def add_session_config_entry(self, key: str, value: str) -> None: ...

class NodeArg:
    name: str
    type: str
    shape: list[int | str]

class OrtValue:
    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: NDArray[Any], device_type: str = ..., device_id: int = ...
    ) -> OrtValue: ...
    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: type, device_type: str = ..., device_id: int = ...
    ) -> OrtValue: ...
    def data_ptr(self) -> int: ...
    def numpy(self) -> NDArray[Any]: ...

class IOBinding:
    def bind_cpu_input(self, name: str, arr_on_cpu: NDArray[Any]) -> None: ...
    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None: ...
    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None: ...
    def copy_outputs_to_cpu(self) -> list[NDArray[Any]]: ...
    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: type,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None: ...
    def bind_output(
        self,
        name: str,
        device_type: str = ...,
        device_id: int = ...,
        element_type: type | None = ...,
        shape: Sequence[int] | None = ...,
        buffer_ptr: int | None = ...,
    ) -> None: ...
    def synchronize_inputs(self) -> None: ...
    def synchronize_outputs(self) -> None: ...

class InferenceSession:
    def __init__(
        self,
        path_or_bytes: str | bytes,
        sess_options: SessionOptions | None = ...,
        providers: Sequence[str | tuple[str, dict[str, str]]] | None = ...,
        *,
        enable_fallback: int = ...,
    ) -> None: ...
    def get_providers(self) -> list[str]: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def get_outputs(self) -> list[NodeArg]: ...
    def io_binding(self) -> IOBinding: ...
    def run(
        self, output_names: Sequence[str] | None, input_feed: dict[str, NDArray[Any]]
    ) -> list[NDArray[Any]]: ...
    def run_with_iobinding(self, iobinding: IOBinding) -> None: ...

def get_available_providers() -> list[str]: ...

__version__: str
