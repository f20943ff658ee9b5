"""Rows in device memory against a plain list of what each row should hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.edge_runtime.cuda import Cuda
from acespec.edge_runtime.device_rows import DeviceRows, RowLayout, row_moves
from fake_cuda import FakeCuda

LAYOUTS = {
    "portable": RowLayout(tensors=4, planes=1, rows=24, row_bytes=32),
    "portable, aligned": RowLayout(tensors=2, planes=1, rows=24, row_bytes=64),
    "native": RowLayout(tensors=4, planes=2, rows=24, row_bytes=16),
    "native, with gaps": RowLayout(tensors=4, planes=3, rows=24, row_bytes=12),
}


class Fixture:
    """Device rows whose every row is filled with bytes that tell it apart."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self.fake = FakeCuda()
        self.cuda = Cuda(self.fake)
        self.stream = self.cuda.create_stream()
        self.address = self.cuda.allocate(layout.total_bytes)
        self.rows = DeviceRows(self.cuda, self.stream, layout, self.address)
        self.cuda.synchronize(self.stream)

    def row(self, row: int) -> NDArray[np.uint8]:
        """What every plane of every tensor holds of a row, ``[tensors * planes, row_bytes]``."""
        layout = self.layout
        self.cuda.synchronize(self.stream)
        return np.stack(
            [
                self.fake.device(
                    start + plane * layout.plane_bytes + row * layout.row_bytes, layout.row_bytes
                )
                for start in self.rows.addresses
                for plane in range(layout.planes)
            ]
        )

    def append(self, content: NDArray[np.uint8], position: int) -> None:
        self.row(self.rows.num_rows)  # waits
        layout, row = self.layout, self.rows.num_rows
        places = [(start, plane) for start in self.rows.addresses for plane in range(layout.planes)]
        for (start, plane), values in zip(places, content, strict=True):
            at = start + plane * layout.plane_bytes + row * layout.row_bytes
            self.fake.device(at, layout.row_bytes)[:] = values
        self.rows.append(np.array([position]))


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_rows_stay_what_they_were_wherever_they_are_moved(name: str, data: st.DataObject) -> None:
    layout = LAYOUTS[name]
    fixture = Fixture(layout)
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    expected: list[tuple[NDArray[np.uint8], int]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        for _ in range(data.draw(st.integers(0, layout.rows - len(expected)))):
            content = random.integers(0, 255, (layout.tensors * layout.planes, layout.row_bytes), np.uint8)
            expected.append((content, len(expected)))
            fixture.append(*expected[-1])
        prefix = data.draw(st.integers(0, len(expected)))
        kept = sorted(data.draw(st.sets(st.integers(prefix, len(expected) - 1)))) if expected[prefix:] else []
        fixture.rows.compact(prefix, kept)
        expected = expected[:prefix] + [expected[row] for row in kept]
        cut = data.draw(st.integers(0, len(expected)))
        fixture.rows.truncate(cut)
        del expected[cut:]
        assert fixture.rows.num_rows == len(expected)
        assert fixture.rows.positions[: len(expected)].tolist() == [position for _, position in expected]
        for row, (content, _) in enumerate(expected):
            np.testing.assert_array_equal(fixture.row(row), content)


@given(st.integers(0, 20), st.sets(st.integers(0, 60)))
def test_moves_put_every_kept_row_in_its_place_and_never_overlap(prefix: int, rows: set[int]) -> None:
    kept = sorted(row for row in rows if row >= prefix)
    buffer = list(range(64))
    for move in row_moves(prefix, kept):
        assert 0 < move.count <= move.source - move.target
        buffer[move.target : move.target + move.count] = buffer[move.source : move.source + move.count]
    assert buffer[: prefix + len(kept)] == [*range(prefix), *kept]


def test_rows_that_are_in_place_already_are_not_copied() -> None:
    assert list(row_moves(3, [3, 4, 5])) == []
    assert [(move.source, move.count) for move in row_moves(3, [3, 4, 9, 10])] == [(9, 2)]


def test_a_path_far_behind_its_place_is_one_copy_for_all_layers() -> None:
    fixture = Fixture(LAYOUTS["portable"])
    for row in range(20):
        fixture.append(np.zeros((4, 32), np.uint8), row)
    fixture.rows.compact(2, [12, 13, 14, 15])
    assert fixture.fake.copies == [(4 * 32, 4)]


def test_new_rows_are_placed_behind_those_in_use_by_one_copy() -> None:
    fixture = Fixture(LAYOUTS["portable"])
    pitch = 256
    source = fixture.cuda.allocate(4 * pitch)
    content: NDArray[Any] = np.arange(4 * pitch, dtype=np.uint32).astype(np.uint8)
    fixture.fake.device(source, 4 * pitch)[:] = content
    fixture.append(np.full((4, 32), 7, np.uint8), 0)
    fixture.rows.place(source, pitch, 3)
    fixture.rows.append(np.array([1, 2, 3]))
    assert fixture.fake.copies == [(3 * 32, 4)]
    for row in range(1, 4):
        wanted = content.reshape(4, pitch)[:, (row - 1) * 32 : row * 32]
        np.testing.assert_array_equal(fixture.row(row), wanted)
    assert (fixture.row(0) == 7).all()
    assert (fixture.row(4) == 0).all()


def test_memory_is_zero_before_it_is_used() -> None:
    fixture = Fixture(LAYOUTS["native"])
    assert not any(fixture.row(row).any() for row in range(24))


@pytest.mark.parametrize("rows", [[5, 4], [1, 5], [4, 4], [12]])
def test_rows_out_of_order_or_out_of_use_are_a_bug(rows: list[int]) -> None:
    fixture = Fixture(LAYOUTS["portable"])
    for row in range(8):
        fixture.append(np.zeros((4, 32), np.uint8), row)
    with pytest.raises(AssertionError):
        fixture.rows.compact(3, rows)
