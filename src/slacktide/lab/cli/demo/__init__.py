"""`slacktide demo`: Slacktide on this machine in one to two minutes, ending in a report.

Not a benchmark (those are in `bench/`): short runs, few seeds, one machine shared by server and
client. Everything it uses a user has too: the example models, `slacktide profile`,
`slacktide serve` as a process of its own, and the load generator.
"""

from slacktide.lab.cli.demo.command import demo as demo
