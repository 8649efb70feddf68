"""What could be reached by knowing more than any server can. Simulation only.

`OracleSlack` is told the length of every request, `best_finish` of small cases also what will come.
Neither is a policy that can be named: they show how much is left to gain, and from what.
"""

from slacktide.simulation.yardsticks.beam import Case, best_finish
from slacktide.simulation.yardsticks.oracle_slack import KAPPAS, OracleSlack

__all__ = ["KAPPAS", "Case", "OracleSlack", "best_finish"]
