"""Packing of samples into TFRecord shards, and the verification of shards."""

from quantkit.data.packing.index import Index, read_index
from quantkit.data.packing.report import PackResult, VerificationResult
from quantkit.data.packing.verification import verify
from quantkit.data.packing.workflow import pack

__all__ = ["Index", "PackResult", "VerificationResult", "pack", "read_index", "verify"]
