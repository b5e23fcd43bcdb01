"""Channels: what happens to a row between its sender and its receivers.

A client does not mix the rows z of its neighbours but q, what arrives of them: z itself, a rounded z, z with noise, or
an estimate that both ends of a link keep up to date by compressed differences. A channel consists of two pure functions
on rows and a memory that both ends of a link keep:

    m = send(z, memory)                   what the sender puts on the link
    q, memory = receive(m, memory)        what every receiver takes z for

Both engines use the same channel: the simulator computes with q and counts the bytes of m, the distributed engine
encodes m, sends it and decodes it. If q = z always, a mixing is W z. Otherwise it is z + gain·(W − I) q, in which the
sender uses its own q too, if it knows it: what one end of a link gains the other end loses, so averages over clients
(and with them J y = J ν) are preserved.
"""

from depositum.channels.channel import ANNOUNCEMENT_BYTES, CHANNELS, Channel, Memory, as_channel
from depositum.channels.compressed import Compressed, Gain
from depositum.channels.compressors import Compressor, Half, Quantized, RandomK, Sign, TopK
from depositum.channels.lossless import Exact, Sparse
from depositum.channels.noise import Noise

__all__ = [
    "ANNOUNCEMENT_BYTES",
    "CHANNELS",
    "Channel",
    "Compressed",
    "Compressor",
    "Exact",
    "Gain",
    "Half",
    "Memory",
    "Noise",
    "Quantized",
    "RandomK",
    "Sign",
    "Sparse",
    "TopK",
    "as_channel",
]
