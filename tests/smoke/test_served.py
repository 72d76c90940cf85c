from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sparkforge.core.store import Store
from sparkforge.smoke.run import smoke
from sparkforge.smoke.venv_site import VenvSite

pytestmark = pytest.mark.slow


def test_vllm_passes(cpu_venv, tmp_path):
    report = smoke(VenvSite(cpu_venv), store=Store.open(tmp_path))
    print(report.table())
    report.demand()
    assert [one.name for one in report.checks] == [
        "first token",
        "completion",
        "stream",
        "deterministic",
        "chat",
        "regret",
        "shutdown",
        "as another user",
    ]


@dataclass(frozen=True)
class Faulty(VenvSite):
    """Serves a model with a fault, while the reference has the true one."""

    plant: object = field(kw_only=True)

    def start(self, model, flags, env, *, user):
        wrong: Path = self.plant(model)
        return replace(super().start(wrong, flags, env, user=user), model=str(model))


def test_vllm_with_a_planted_fault_fails_by_regret_alone(cpu_venv, tmp_path, faults):
    def plant(model):
        return faults["experts shuffled in one layer"](model, tmp_path / "faulty")

    report = smoke(Faulty(cpu_venv, plant=plant), store=Store.open(tmp_path / "store"))
    print(report.table())
    assert [one.name for one in report.checks if one.verdict.value == "failed"] == ["regret"]
