"""Generated code and results are those that are written down: a change of the house changes neither."""

from __future__ import annotations

import json
from collections import Counter

import llvmlite
import pytest
from golden.golden import FILE, ISA, ir_digests, result_digest
from soak.draw import read

from convt3d.cpu.plan.host import llvm_host
from convt3d.cpu.plan.machine import LEVELS, architecture, host_level

GOLDEN = json.loads(FILE.read_text())
OFFERED = [level.name for level in LEVELS[architecture()]]


@pytest.mark.skipif(
    llvmlite.__version__ != GOLDEN["llvmlite"], reason="another llvmlite writes the same code differently"
)
def test_the_code_of_tiny_plans() -> None:
    assert ir_digests() == GOLDEN["ir"]


def test_the_bits_of_drawn_cases() -> None:
    best = host_level(architecture(), llvm_host()[1]).name
    if ISA not in OFFERED[OFFERED.index(best) :]:
        pytest.skip(f"this processor has no {ISA}")
    found = {text: result_digest(read(text)) for text in GOLDEN["results"]}
    assert Counter(text for text in found if found[text] != GOLDEN["results"][text]) == Counter()
