"""Base class of the reply types."""

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """Immutable reply of the service, or part of one."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
