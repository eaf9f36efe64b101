"""Messages of the sidecar's gRPC, and its stub: generated from the protocol, never by hand.

They need what `pip install tensorlane[grpc]` brings. The package itself speaks with the sidecar without them.

>>> from tensorlane.v1 import workload_pb2
>>> workload_pb2.Target(name="weights")
name: "weights"
<BLANKLINE>
"""
