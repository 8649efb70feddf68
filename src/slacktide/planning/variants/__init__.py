"""Which variant of a model each replica runs, and which clients it serves (Jellyfish). Pure."""

from slacktide.planning.variants.family import Family as Family
from slacktide.planning.variants.family import FamilyVariant as FamilyVariant
from slacktide.planning.variants.fleet import UNMAPPED as UNMAPPED
from slacktide.planning.variants.fleet import Assignment as Assignment
from slacktide.planning.variants.fleet import AssignmentScore as AssignmentScore
from slacktide.planning.variants.fleet import Client as Client
from slacktide.planning.variants.fleet import Fleet as Fleet
from slacktide.planning.variants.fleet import Variant as Variant
from slacktide.planning.variants.frame_ends import FrameEnds as FrameEnds
from slacktide.planning.variants.moves import ordered as ordered
from slacktide.planning.variants.planned_family import VariantsStatus as VariantsStatus
from slacktide.planning.variants.planner import VariantsPlanner as VariantsPlanner
from slacktide.planning.variants.question import VariantsOptions as VariantsOptions
from slacktide.planning.variants.search import search as search
from slacktide.planning.variants.selection import Annealing as Annealing
from slacktide.planning.variants.selection import published as published
from slacktide.planning.variants.update import matched as matched
from slacktide.planning.variants.update import misses as misses
