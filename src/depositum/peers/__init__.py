"""One member of a federation: connections with its neighbours over mutual TLS, and the run over them."""

from depositum.peers.account import verify
from depositum.peers.member_run import run_member
from depositum.peers.peer_communicator import PeerCommunicator

__all__ = ["PeerCommunicator", "run_member", "verify"]
