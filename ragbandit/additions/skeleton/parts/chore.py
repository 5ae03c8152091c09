"""A chore: once a minute, every process that learns logs how many rows the ledger has."""

import logging

from ragbandit.hooks import Chore


class OwnChore(Chore):
    title = "log how much is learned"
    every_s = 60.0

    def do(self) -> None:
        logging.getLogger("ragbandit.own").info("the ledger has %d rows", self.context.ledger.last_seq())
