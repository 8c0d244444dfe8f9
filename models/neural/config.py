"""The shape of a network: the recipe's `neural.*` keys and a checkpoint's config.json."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

CellName = Literal["feed-forward", "elman", "lstm", "gru", "mingru"]


class NetworkConfig(BaseModel):
    """What rebuilds a network, its vocabulary's size aside.

    Attributes:
        cell: `lstm` (Hochreiter and Schmidhuber 1997, with forget gates), `gru` (Cho et al. 2014), …;
            the model's family has its name.
        layers: recurrent layers, one on top of the other.
        embedding_size: width of a token's vector.
        hidden_size: width of each recurrent layer.
        forget_bias: what an LSTM's forget gates start with (Jozefowicz et al. 2015).
        tied: whether embedding and output share their matrix (Press and Wolf 2017); where the two
            widths differ, a linear layer narrows the hidden state to the embedding's.
        dropout: share of values dropped in training before the output layer and, where the next two
            are not given, also of embeddings and between layers.
        input_dropout: share of the values of embeddings that is dropped.
        hidden_dropout: share of values dropped between layers.
        embedding_dropout: share of the vocabulary's tokens whose vector is dropped whole in each
            stretch of training text (Gal and Ghahramani 2016).
        weight_drop: share of the hidden-to-hidden weights dropped in each stretch (Merity et al. 2018).
        variational: whether a row of a stretch drops the same values at every step (Gal and
            Ghahramani 2016) instead of others at each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: CellName = "lstm"
    layers: int = Field(default=1, ge=1, le=16)
    embedding_size: int = Field(default=256, ge=1, le=8192)
    hidden_size: int = Field(default=512, ge=1, le=8192)
    forget_bias: float = Field(default=1.0, allow_inf_nan=False)
    tied: bool = True
    dropout: float = Field(default=0.2, ge=0, lt=1)
    input_dropout: float | None = Field(default=None, ge=0, lt=1)
    hidden_dropout: float | None = Field(default=None, ge=0, lt=1)
    embedding_dropout: float = Field(default=0.0, ge=0, lt=1)
    weight_drop: float = Field(default=0.0, ge=0, lt=1)
    variational: bool = True

    @property
    def of_inputs(self) -> float:
        """The dropout of embeddings."""
        return self.dropout if self.input_dropout is None else self.input_dropout

    @property
    def between_layers(self) -> float:
        """The dropout between layers."""
        return self.dropout if self.hidden_dropout is None else self.hidden_dropout
