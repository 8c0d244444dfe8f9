"""Language models for other projects' decoders: shallow fusion over HTTP.

Adapters have the methods that decoders document for custom language models; they do not
import those projects. Like the client, the package requires only httpx and pydantic.
"""

from gramophone_client.fusion.adapters import PyCTCDecodeLM, TorchaudioLM

__all__ = ["PyCTCDecodeLM", "TorchaudioLM"]
