"""`PlacedPipeline`: a pipeline to place, and the fields of the plan that its placement writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.domain.pipelines import Pipeline
from slacktide.planning.planner import PlanField, Stated, stated_as
from slacktide.planning.scaling.scaled_state import ScaledModel
from slacktide.planning.variants.family import Family

OWNED = frozenset(
    (
        PlanField.REPLICAS,
        PlanField.PLACEMENT,
        PlanField.BATCH_CAPS,
        PlanField.ROUTES,
        PlanField.WINDOWS,
    )
)
OF_FAMILY = OWNED - {PlanField.BATCH_CAPS, PlanField.ROUTES}


@dataclass(frozen=True, slots=True)
class PlacedPipeline:
    """A pipeline that this planner places, as stated under its name."""

    stages: Mapping[str, str]
    """The model of each stage."""
    pipeline: Pipeline | None = None
    """Its edges and its deadline; None if the planner knows them from elsewhere."""


def fields_of(model: str, stated: Stated) -> frozenset[PlanField]:
    """Return the fields of a model that a placement writes. Within the placement's bounds, planners
    of cores and of variants decide the other fields: all fields of a model whose cores or replicas
    have a range, and the variants and batches of a family."""
    if model in stated_as(ScaledModel, stated):
        return frozenset()
    family = stated_as(Family, stated).get(model)
    return OWNED if family is None or family.planner == "none" else OF_FAMILY
