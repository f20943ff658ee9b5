"""Integers for a matrix: what they stand for, how good they are, and that slicing changes nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from acespec.export import quantized_matrix
from acespec.export.quantized_matrix import QuantizedMatrix, quantize_matrix


class Form(NamedTuple):
    bits: int
    block: int | None
    symmetric: bool


FORMS = [
    Form(bits, block, symmetric)
    for bits in (4, 8)
    for block in (32, 128, None)
    for symmetric in (True, False)
]


def plain_rounding(block: NDArray[np.float32], form: Form) -> NDArray[np.float32]:
    """The textbook way for one block: a range that holds all values and zero, the nearest level of each."""
    if form.symmetric:
        top = 2 ** (form.bits - 1) - 1
        scale = float(np.abs(block).max()) / top or 1.0
        return np.array([round(float(value) / scale) * scale for value in block], np.float32)
    top = 2**form.bits - 1
    low, high = min(float(block.min()), 0.0), max(float(block.max()), 0.0)
    scale = (high - low) / top or 1.0
    zero = round(-low / scale)
    levels = [min(max(round(float(value) / scale) + zero, 0), top) for value in block]
    return np.array([(level - zero) * scale for level in levels], np.float32)


def blocks_of(matrix: NDArray[np.float32], form: Form) -> list[NDArray[np.float32]]:
    size = form.block or len(matrix)
    return [column[first : first + size] for column in matrix.T for first in range(0, len(matrix), size)]


weights = npst.arrays(
    np.float32, st.tuples(st.sampled_from([128, 256]), st.integers(1, 3)), elements=st.floats(-8, 8, width=16)
)


@pytest.mark.parametrize("form", FORMS)
@given(weight=weights)
@settings(max_examples=25)
def test_no_block_is_worse_than_by_plain_rounding(form: Form, weight: NDArray[np.float32]) -> None:
    error = quantize_matrix(weight, *form).dequantized() - weight
    for block, wrong in zip(blocks_of(weight, form), blocks_of(error, form), strict=True):
        plain = np.square(plain_rounding(block, form) - block).sum()
        rounding = 1e-10 * np.square(block).sum()  # float32 scales are off by 1e-6 or so
        assert np.square(wrong).sum() <= plain * 1.001 + rounding


@pytest.mark.parametrize("form", FORMS)
@given(weight=weights)
@settings(max_examples=10)
def test_values_fit_their_bits_and_scales_are_positive(form: Form, weight: NDArray[np.float32]) -> None:
    matrix = quantize_matrix(weight, *form)
    assert matrix.values.dtype == (np.int8 if form.symmetric else np.uint8)
    assert matrix.symmetric == form.symmetric
    low, high = (-(2 ** (form.bits - 1)), 2 ** (form.bits - 1)) if form.symmetric else (0, 2**form.bits)
    assert low <= matrix.values.min() <= matrix.values.max() < high
    columns = weight.shape[1]
    shape = (columns,) if form.block is None else (len(weight) // form.block, columns)
    assert matrix.scales.shape == shape
    assert matrix.scales.min() > 0
    if matrix.zero_points is not None:
        assert matrix.zero_points.shape == shape


@pytest.mark.parametrize("form", FORMS)
def test_values_on_the_grid_come_back(form: Form) -> None:
    generator, rows = np.random.default_rng(0), 256
    size = form.block or rows
    low, high = (
        (-(2 ** (form.bits - 1)) + 1, 2 ** (form.bits - 1) - 1) if form.symmetric else (0, 2**form.bits - 1)
    )
    codes = generator.integers(low, high + 1, (rows, 5))
    codes[::size], codes[1::size] = low, high  # every block uses its whole range
    zeros = np.zeros_like(codes)
    if not form.symmetric:
        zeros = np.repeat(generator.integers(low, high + 1, (rows // size, 5)), size, axis=0)
    scales = np.repeat(generator.uniform(0.01, 3, (rows // size, 5)), size, axis=0)
    weight = ((codes - zeros) * scales).astype(np.float32)
    np.testing.assert_allclose(quantize_matrix(weight, *form).dequantized(), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bits_are_better_for_a_search_of_the_range(symmetric: bool) -> None:
    weight = np.random.default_rng(1).standard_normal((1024, 16)).astype(np.float32)
    form = Form(4, 128, symmetric)
    plain = sum(np.square(plain_rounding(block, form) - block).sum() for block in blocks_of(weight, form))
    searched = np.square(quantize_matrix(weight, *form).dequantized() - weight).sum()
    assert searched < 0.9 * plain


@pytest.mark.parametrize("form", FORMS)
def test_a_block_of_zeros_stays_zero(form: Form) -> None:
    weight = np.zeros((128, 3), np.float32)
    weight[:, 1] = 1
    dequantized = quantize_matrix(weight, *form).dequantized()
    assert not dequantized[:, [0, 2]].any()
    np.testing.assert_allclose(dequantized[:, 1], 1, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_columns_do_not_depend_on_the_slice_they_are_worked_on_in(
    form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = np.random.default_rng(3).standard_normal((128, 11)).astype(np.float32)
    whole = quantize_matrix(weight, *form)
    monkeypatch.setattr(quantized_matrix, "SLICE_VALUES", 3 * 128)
    sliced = quantize_matrix(weight, *form)
    np.testing.assert_array_equal(whole.values, sliced.values)
    np.testing.assert_allclose(whole.scales, sliced.scales, rtol=1e-6)


def test_it_stands_for_value_minus_zero_point_times_scale() -> None:
    values = np.zeros((64, 2), np.uint8)
    values[0], values[33, 1] = 5, 15
    matrix = QuantizedMatrix(
        4, 32, values, np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 2], [0, 7]], np.uint8)
    )
    dequantized = matrix.dequantized()
    assert dequantized[0].tolist() == [4.0, 6.0]  # (5 - 1) * 1, (5 - 2) * 2
    assert dequantized[1].tolist() == [-1.0, -4.0]  # (0 - 1) * 1, (0 - 2) * 2
    assert dequantized[33].tolist() == [0.0, 32.0]  # (0 - 0) * 3, (15 - 7) * 4


def test_one_scale_a_column_stands_for_value_times_scale() -> None:
    values = np.array([[1, -2], [3, 4], [-5, 0]], np.int8)
    matrix = QuantizedMatrix(8, None, values, np.array([2, 0.5], np.float32))
    assert matrix.dequantized().tolist() == [[2.0, -1.0], [6.0, 2.0], [-10.0, 0.0]]
