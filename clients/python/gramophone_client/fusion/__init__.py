"""Language models for other projects' decoders: shallow fusion over HTTP.

The adapters have the methods that the decoders document for custom language models; they do not
import those projects. Like the client, the package requires only httpx and pydantic.
"""

from gramophone_client.fusion.adapters import PyCTCDecodeLM, TorchaudioLM

__all__ = ["PyCTCDecodeLM", "TorchaudioLM"]
