"""The chore that fetches ratings."""

from collections.abc import Iterable

from ragbandit.additions.other_tools.ratings.poller import RatingPoller
from ragbandit.additions.other_tools.ratings.settings import RatingsSection, RatingsSettings
from ragbandit.router.telemetry.routines import StoreOutage
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context


class FetchedRatings(Chore):
    """Fetches the ratings of one source in the settings."""

    def __init__(self, context: Context, *, name: str, source: RatingsSettings) -> None:
        super().__init__(context)
        self._poller = RatingPoller(name, source, context=context)
        self.title, self.every_s = f"fetch ratings.{name}", source.every_s
        failing = f"cannot {self.title}; trying again. Check its url, key_env and the service"
        restored = f"ratings.{name} are fetched again"
        self.outage = StoreOutage(action="ratings", failing=failing, restored=restored)

    @classmethod
    def of(cls, context: Context) -> "Iterable[FetchedRatings]":
        return [
            cls(context, name=name, source=source)
            for name, source in context.settings.of(RatingsSection).ratings.items()
        ]

    def do(self) -> None:
        self._poller.poll()

    def end(self) -> None:
        self._poller.release()
