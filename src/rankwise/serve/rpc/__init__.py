"""The gRPC side of the Open Inference Protocol."""

from __future__ import annotations
