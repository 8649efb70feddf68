"""Shared by all reproductions: the parts of an experiment, the job loop, tables and pages."""

from slacktide.models import offer_entry_points
from slacktide_papers.harness.experiments import Contender as Contender
from slacktide_papers.harness.experiments import Experiment as Experiment
from slacktide_papers.harness.experiments import ExperimentCell as ExperimentCell
from slacktide_papers.harness.experiments import Goal as Goal
from slacktide_papers.harness.experiments import Point as Point
from slacktide_papers.harness.experiments import ResultRow as ResultRow
from slacktide_papers.harness.experiments import TraceScope as TraceScope
from slacktide_papers.harness.run import Publication as Publication
from slacktide_papers.harness.run import Reproduction as Reproduction
from slacktide_papers.harness.state import ReproduceError as ReproduceError

# Registers the policies that serve only as comparisons: by entry points, like any other package.
offer_entry_points()
