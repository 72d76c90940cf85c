"""What others reported: every file is of one form, and none is above the roof of its configuration."""

from __future__ import annotations

import re

import pytest

from sparkforge.core.errors import BadInput, CheckFailed
from sparkforge.results.reported import FOLDER, every, read

GOOD = """source: a page
date: "2026-01-09"
engine: vLLM
machine: one DGX Spark
configuration: dense layers in BF16
roof: {layers: moe, kv: bf16}
samples:
  - {test: tg32, value: 31.6, unit: tok/s}
  - {test: tg32@d4096, value: 90.0, unit: tok/s}
caveats: [eager]
"""


def test_every_file_reads_and_says_who_when_and_what_to_beware_of():
    found = every()
    assert len(found) == len(list(FOLDER.glob("*.yaml"))) > 15
    assert all(re.fullmatch(r"2026-\d\d(-\d\d)?", one.date) for one in found)
    assert {sample.unit for one in found for sample in one.samples} == {"tok/s", "ms"}


def test_the_anchors_of_the_byte_model_are_among_them():
    known = {one.decode for one in every()}
    assert {31.62, 57.85, 60.07} <= known


def test_a_figure_above_its_roof_is_refused_with_the_arithmetic(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(GOOD)
    assert read(path).decode == 31.6
    path.write_text(GOOD.replace("31.6", "56.0"))
    with pytest.raises(CheckFailed, match=r"56\.0 tok/s is above the roof") as refused:
        read(path)
    assert "273 GB/s allow 54" in str(refused.value)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [("caveats: [eager]", "caveats: []", "no samples or no caveats"), ("engine: vLLM", "motor: vLLM", "motor")],
)
def test_another_form_is_refused(tmp_path, was, now, said):
    path = tmp_path / "run.yaml"
    path.write_text(GOOD.replace(was, now))
    with pytest.raises(BadInput, match=said):
        read(path)
