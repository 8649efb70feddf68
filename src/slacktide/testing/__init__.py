"""Test doubles for extensions: a world in virtual time, an executor and a clock.

They need no test framework, model file, process or socket. docs/extending.md has an example for
each extension point.
"""

from slacktide.testing.fake_executor import FakeClock as FakeClock
from slacktide.testing.fake_executor import FakeExecutor as FakeExecutor
from slacktide.testing.fake_executor import FakeReplica as FakeReplica
from slacktide.testing.virtual_world import LinearTimes as LinearTimes
from slacktide.testing.virtual_world import VirtualWorld as VirtualWorld
from slacktide.testing.virtual_world import make_notice as make_notice
from slacktide.testing.virtual_world import make_request as make_request
from slacktide.testing.virtual_world import one_model_plan as one_model_plan
