"""New versions and moved aliases while a soak goes on."""

import shutil

_KEPT_VERSIONS = 3


class Swaps:
    """By turns publishes a copy of a model as its next version, and moves an alias to the other of two.

    It is made before the service is started, which serves by that alias and follows both.

    Args:
        registry: of the service.
        published: the model that gets new versions.
        aliased: the model whose alias `champion` is moved.
    """

    def __init__(self, registry, published, aliased):
        self._registry = registry
        self._published, self._aliased = published, aliased
        self._count = 0
        if len(registry.versions(aliased)) < 2:
            self._publish(aliased)
        registry.set_alias(aliased, "champion", registry.versions(aliased)[0])

    def swap(self):
        """Do the next one."""
        self._count += 1
        if self._count % 2:
            self._publish(self._published)
            for number in self._registry.versions(self._published)[:-_KEPT_VERSIONS]:
                self._registry.delete(self._published, number)
        else:
            first, second = self._registry.versions(self._aliased)[:2]
            now = self._registry.aliases(self._aliased)["champion"]
            self._registry.set_alias(self._aliased, "champion", second if now == first else first)

    def _publish(self, name):
        newest = self._registry.version(name, self._registry.versions(name)[-1])
        self._registry.publish(name, lambda folder: shutil.copytree(newest.path, folder, dirs_exist_ok=True))
