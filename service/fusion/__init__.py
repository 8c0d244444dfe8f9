"""Decoders of other projects with a served language model: shallow fusion over HTTP.

Nothing of those projects is imported: what they ask of a model of one's own is answered in the shape
that they document. Like the client, it needs httpx and pydantic alone.
"""

from service.fusion.pyctcdecode import PyCTCDecodeLM
from service.fusion.torchaudio import TorchaudioLM

__all__ = ["PyCTCDecodeLM", "TorchaudioLM"]
