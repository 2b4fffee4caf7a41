"""The wire between the acceptd service and its workers: messages, types, limits, errors.

Importing this package loads neither gRPC nor numpy; `acceptd.codec` loads numpy, `acceptd.v1` protobuf.
"""

__version__ = "0.1.0"
