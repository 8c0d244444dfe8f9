"""The shape of a recurrent network: the recipe's `neural.*` keys and a checkpoint's config.json."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RecurrentConfig(BaseModel):
    """What rebuilds a network, its vocabulary's size aside.

    Attributes:
        cell: long short-term memory or gated recurrent unit.
        layers: recurrent layers, one on top of the other.
        embedding_size: width of a token's vector.
        hidden_size: width of each recurrent layer.
        dropout: share of values dropped in training, of embeddings, between layers and before the output.
        tied: whether embedding and output share their matrix (Press and Wolf 2017); where the two
            widths differ, a linear layer narrows the hidden state to the embedding's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: Literal["lstm", "gru"] = "lstm"
    layers: int = Field(default=1, ge=1, le=16)
    embedding_size: int = Field(default=256, ge=1, le=8192)
    hidden_size: int = Field(default=512, ge=1, le=8192)
    dropout: float = Field(default=0.2, ge=0, lt=1)
    tied: bool = True
