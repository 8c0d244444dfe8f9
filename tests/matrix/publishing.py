"""The models of some cells in one registry."""

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from tests.matrix.cells import CELLS, FLOAT32, Cell
from tests.matrix.texts import TEXTS, tokenizer
from tests.matrix.zoo import BACKWARD, PARTS, model

CARD = "MODEL_CARD.md"

DEFAULT = "default"
"""A model beside those of the matrix: it answers requests that name none, so it cannot be unloaded."""


def publish_all(root, cells) -> LocalRegistry:
    """A registry with the models of cells, what those are made of, and the default."""
    registry, made = LocalRegistry(root, create=True), {}

    def path_of(cell):
        if cell.model not in made:
            parts = [cell._replace(family=part, precision=FLOAT32) for part in PARTS.get(cell.family, ())]
            made[cell.model] = _publish(registry, cell.model, cell, [path_of(part) for part in parts])
        return made[cell.model]

    for cell in cells:
        path_of(cell)
    _publish(registry, DEFAULT, CELLS[0], [])
    return registry


def _publish(registry: LocalRegistry, name: str, cell: Cell, parts):
    direction = "backward" if cell.family in BACKWARD else "forward"
    golden, card = tokenizer(cell.tokens).encode_all(TEXTS), {CARD: f"# {name}\n".encode()}
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, golden, card, direction=direction)
    whole, tokens = model(cell.family, cell.tokens), tokenizer(cell.tokens)
    version = registry.publish(
        name, lambda folder: write_checkpoint(folder, whole, tokens, about, parts=parts)
    )
    return version.path
