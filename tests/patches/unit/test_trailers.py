from __future__ import annotations

import pytest
from patch_forge import message

from sparkforge.core.errors import BadInput
from sparkforge.patches import drop, trailers
from sparkforge.patches.mail import read


def of(text):
    return trailers.parse(text.partition("\n\n")[2])[1]


def test_all_are_read(forge):
    text = message("V-03", depends=["V-01", "F-02"], tests=["tests/a/test_a.py", "tests/b.py"], body="Why.\n\nMore.")
    (patch,) = forge.patches((text, {"README": b"new\n"}))
    mail = read(forge.git, patch.name, patch.raw)
    found = mail.trailers
    assert (found.feature, found.depends_on) == ("V-03", ("V-01", "F-02"))
    assert found.tests == ("tests/a/test_a.py", "tests/b.py")
    assert (found.upstream_status, mail.body, mail.subject, mail.author) == (
        "Pending",
        "Why.\n\nMore.",
        "core: change a thing",
        "Jürgen Maintainer",
    )
    told = mail.facts("demo")
    assert (told["added"], told["removed"], told["files"]) == (1, 2, ("README",))
    assert trailers.faults(found) == []


def test_a_long_trailer_goes_on_in_the_next_line():
    found = of(message(drop="contains a.py :: x\n && missing b.py"))
    assert found.drop_when == "contains a.py :: x && missing b.py"


def test_a_last_paragraph_of_prose_is_body():
    body, found = trailers.parse("Why.\n\nSee: this\nis prose.")
    assert (body, found.lines) == ("Why.\n\nSee: this\nis prose.", ())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Upstream-Status: Pending\n", "", "Upstream-Status is missing"),
        ("Pending", "Someday", "is not one of Pending"),
        ("Pending", "Submitted [soon]", "is not one of Pending"),
        ("Pending", "Backport", "is not one of Pending"),
        ("Feature: V-01", "Feature: first", "is not a patch id"),
        ("Feature: V-01", "Feature: V-01\nFeature: V-02", "Feature is given 2 times"),
        ("Feature: V-01", "Depends-on: V-00\nFeature: V-01", "are not in the order"),
        ("Feature: V-01", "Featur: V-01", "Featur is not a trailer"),
        ("Test: tests/", "Test: ../tests/", "is not a Python file below tests/"),
        ("missing pkg/numbers.txt", "gone pkg/numbers.txt", "begins with none of"),
    ],
)
def test_faults(old, new, said):
    text = message().replace(old, new)
    assert text != message()
    assert any(said in fault for fault in trailers.faults(of(text)))


@pytest.mark.parametrize("status", ["Pending", "Submitted [https://example.org/pull/1]", "Backport [0.22.0]"])
def test_good_status(status):
    assert trailers.faults(of(message().replace("Pending", status))) == []


@pytest.mark.parametrize(
    ("fact", "so"),
    [
        ("contains pkg/code.py :: ^def two", True),
        ("contains pkg/code.py :: ^def four", False),
        ("contains pkg/gone.py :: .", False),
        ("lacks pkg/code.py :: ^def four", True),
        ("lacks pkg/code.py :: def", False),
        ("lacks pkg/gone.py :: x", False),
        ("exists pkg/code.py", True),
        ("exists pkg", False),
        ("missing pkg/gone.py", True),
        ("missing pkg/code.py", False),
        ("exists pkg/code.py && missing pkg/gone.py", True),
        ("exists pkg/code.py && missing pkg/code.py", False),
    ],
)
def test_drop_when(forge, fact, so):
    assert drop.holds(forge.git, forge.place.tree, fact) is so


@pytest.mark.parametrize(
    "fact", ["", "contains a.py", "exists a.py :: x", "contains a.py :: (", "contains :: x", "exists", "exists a b"]
)
def test_drop_when_that_says_nothing(fact):
    with pytest.raises(BadInput, match="Drop-When"):
        drop.parse(fact)
