"""A placement's phases and steps: the table, and its diagram in the docs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from slacktide.domain import Plan, PlanChanged
from slacktide.engine.phases import TRANSITIONS, Phase, Step

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "placement.md"


def test_the_page_has_the_table_as_its_diagram():
    lines = ["stateDiagram-v2", "    [*] --> paused"]
    lines += [
        f"    {phase.label} --> {after.label} : {step.value}"
        for phase, steps in TRANSITIONS.items()
        for step, after in steps.items()
    ]
    text = PAGE.read_text()
    (diagram,) = re.findall(r"```mermaid\n(.*?)\n```", text, re.DOTALL)
    assert diagram == "\n".join(lines)
    assert all(f"| `{phase.label}` |" in text for phase in Phase)


def test_every_phase_can_be_reached_and_a_lost_replica_always_leads_back():
    reached = {after for steps in TRANSITIONS.values() for after in steps.values()}
    assert reached == set(TRANSITIONS) == set(Phase)
    for phase, steps in TRANSITIONS.items():
        assert phase is Phase.PAUSED or steps[Step.LOST] is Phase.PAUSED


def test_a_step_that_is_not_in_the_table_is_a_fault(world):
    (placement,) = world.engine.state.lanes["lane0"].placements
    assert placement.phase is Phase.UP
    with pytest.raises(ValueError, match="m:1 on lane0 cannot start: it is up"):
        placement.go(Step.START)


def test_a_model_that_is_kept_after_all_still_gets_its_new_replica(world, one_model_plan):
    """Reloaded while a batch runs, taken out of the plan, and in it again before the batch ends."""
    world.submit(1)
    (placement,) = world.engine.state.lanes["lane0"].placements
    plan = one_model_plan("1")
    plan = replace(plan, deployments=(replace(plan.deployments[0], generation=1),))
    phases = []
    for changed in (plan, Plan(plan.lanes), plan):
        world.send(PlanChanged(changed))
        phases.append(placement.phase)
    assert phases == [Phase.RESTARTING, Phase.RETIRING, Phase.RESTARTING]
    before = world.started[-1]
    world.finish()
    assert placement.phase is Phase.STARTING
    assert world.started[-1].id != before.id
