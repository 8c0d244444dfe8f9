"""Language models for other projects' decoders: shallow fusion over HTTP.

Nothing of those projects is imported: the adapters have the methods that the decoders document for
custom language models. Like the client, the package needs httpx and pydantic alone.
"""

from service.fusion.adapters import PyCTCDecodeLM, TorchaudioLM

__all__ = ["PyCTCDecodeLM", "TorchaudioLM"]
