"""Several servers that answer for each other (see README.md)."""

from slacktide.peers.loads import PeerCall as PeerCall
from slacktide.peers.loads import PeerLoads as PeerLoads
from slacktide.peers.messages import LoadReport as LoadReport
from slacktide.peers.messages import ModelLoad as ModelLoad
from slacktide.peers.messages import PeerHello as PeerHello
from slacktide.peers.reporter import LoadReporter as LoadReporter
from slacktide.peers.rule import ForwardingRule as ForwardingRule
from slacktide.peers.session_moves import SessionMoves as SessionMoves
