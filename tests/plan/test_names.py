"""Names of arrays: equal ones are the same array, and each says what people call it."""

from __future__ import annotations

import pytest

import convt3d as ct
from convt3d.gpu.pieces import BetweenName, PreparedName
from convt3d.plan.names import INPUT, OUTPUT, ArrayName, OperandName, StatisticsName, ValueName

STATISTICS = StatisticsName(0)
TITLES = {
    INPUT: "the input",
    OUTPUT: "the output",
    OperandName(1): "bias",
    ValueName(0): "value 0",
    ValueName(1): "value 1",
    STATISTICS.vector("shift"): "shift of statistics 0",
    STATISTICS.vector("scale"): "scale of statistics 0",
    StatisticsName(1).vector("shift"): "shift of statistics 1",
    PreparedName(0): "prepared 0",
    BetweenName(0): "value between 0",
}


@pytest.mark.parametrize(("name", "title"), TITLES.items())
def test_titles(name: ArrayName, title: str) -> None:
    """Also that no two arrays have one name: of equal keys the table would have kept the first."""
    assert name.title(ct.Pipeline(ct.ConvTranspose3d(bias=True))) == title


def test_a_vector_of_statistics_is_made_with_the_others() -> None:
    assert STATISTICS.vector("shift").made == STATISTICS.vector("scale").made == STATISTICS
    assert ValueName(0).made == ValueName(0) != OperandName(0)
