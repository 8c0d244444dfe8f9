"""The thread that loads models, when the service stops."""

import asyncio
import gc
import time

from service.engine.model_host import ModelReloader


class Host:
    """One that has a change under way and something to free."""

    needs_reaping = True

    def refresh(self):
        time.sleep(0.05)

    def reap(self):
        return False

    def stop(self):
        pass


def test_a_change_that_ends_while_the_service_stops_begins_nothing_more():
    told = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        keeper = ModelReloader(Host(), interval_s=0)
        change = keeper.refresh()
        await keeper.close(timeout_s=10)
        await change
        await asyncio.sleep(0.05)
        gc.collect()

    asyncio.run(main())
    assert told == []
