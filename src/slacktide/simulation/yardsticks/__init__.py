"""What could be reached by knowing more than any server can. Simulation only.

`OracleSlack` is told the length of every request, `best_finish` of small cases also what will come.
Neither is a policy that can be named: they show how much is left to gain, and from what.
"""

from slacktide.simulation.yardsticks.beam import Case as Case
from slacktide.simulation.yardsticks.beam import best_finish as best_finish
from slacktide.simulation.yardsticks.oracle_slack import KAPPAS as KAPPAS
from slacktide.simulation.yardsticks.oracle_slack import OracleSlack as OracleSlack
from slacktide.simulation.yardsticks.oracle_slack import OracleSlackOptions as OracleSlackOptions
