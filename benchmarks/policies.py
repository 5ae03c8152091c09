"""Every policy that learns online, on the papers' routing table, 5 seeds x 5 folds: what `ragbandit simulate` prints.

Baselines: always one arm, uniform, the mixture line, the oracles. The table of questions is not part of the project;
where it does not lie beside the checkout this says so and measures nothing.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rich.console import Console

from benchmarks.figures import Figure, print_figures, timed
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.offline.processes import cores
from ragbandit.router.offline.simulation import Simulated, simulate
from ragbandit.router.offline.simulation.measure import print_training
from ragbandit.router.policies import POLICIES
from ragbandit.router.serving.setup.bootstrap import make_encoder

TABLE = Path(__file__).parents[2] / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
#: questions that the table was made from; those that no arm answered are not in it
TOTAL = 3000
#: with default params; a name that is not registered here is left out
NAMES = ("mba", "linucb", "vw")


def main() -> None:
    """Print the tables of `simulate`, then each policy against the mixture of two arms at the same steps."""
    if not TABLE.exists():
        print(f"policies: no routing table at {TABLE}, nothing is measured")
        return
    table, rows = read_table(TABLE), list[Simulated]()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=folder)

        def work() -> None:
            rows.extend(
                simulate(
                    table,
                    policies={name: {} for name in NAMES if name in POLICIES},
                    total=TOTAL,
                    settings=settings,
                    encoder=lambda: make_encoder(settings.encoder),
                    jobs=cores(),
                )
            )

        seconds = timed(work)
    print_training(rows, console=Console(width=130))
    print_figures(
        f"policies on {len(table.rows):,} questions, {TOTAL:,} in the denominator ({seconds:.0f} s, encoding included)",
        [
            Figure(
                name=f"EM of {row.policy} at {row.steps:.2f} steps",
                unit="%",
                ours=row.em,
                baseline=row.em - row.above_line,
                against="single_step and multi_step mixed, same steps",
                rising=True,
            )
            for row in rows
            if row.seeds
        ],
    )


if __name__ == "__main__":
    main()
