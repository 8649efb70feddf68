"""`slacktide demo`: Slacktide on this machine in one to two minutes, ending in a report.

This is not a benchmark (`bench/` has those): runs are short, seeds few, and server and client share
one machine. It uses only what users have too: the example models, `slacktide profile`, a separate
process of `slacktide serve`, and the load generator.
"""

from slacktide.lab.cli.demo.command import demo as demo
