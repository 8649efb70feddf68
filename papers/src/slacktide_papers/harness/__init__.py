"""Shared by all reproductions: the parts of an experiment, the job loop, tables and pages."""

from slacktide.models import offer_entry_points

# Policies that are only compared with are registered as those of any other package are.
offer_entry_points()
