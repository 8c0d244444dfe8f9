"""Which networks can be computed in integers."""

from models.neural.config import NetworkConfig

MAX_INT8_WIDTH = 1 << 17
"""Of what a layer reads, so that no sum of products of bytes leaves 32 bits."""

_IRRELEVANT_FIELDS = frozenset(
    {
        "cell",
        "layers",
        "embedding_size",
        "hidden_size",
        "window",
        "activation",
        "residual",
        "layer_norm",
        "learned_state",
        "tied",
        "self_normalised",
        # training only
        "orthogonal",
        "forget_bias",
        "dropout",
        "input_dropout",
        "hidden_dropout",
        "embedding_dropout",
        "weight_drop",
        "variational",
        # of options that are off
        "attention_window",
        "attention_size",
        "cutoffs",
    }
)
"""Fields of the configuration that do not decide."""


def unsupported_reason(config: NetworkConfig) -> str | None:
    """Why a network cannot be computed in integers; None if it can."""
    for name, field in NetworkConfig.model_fields.items():
        value = getattr(config, name)
        if name not in _IRRELEVANT_FIELDS and value != field.default:
            return f"int8 knows no {name} = {value!r}"
    width = max(config.layer_inputs)
    if width > MAX_INT8_WIDTH:
        return f"int8 knows no layer that reads more than {MAX_INT8_WIDTH} numbers, given {width}"
    return None
