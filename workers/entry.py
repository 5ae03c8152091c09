"""Entry point of the command `ragbandit`. It answers `status --line` before the parser of commands is loaded."""

import sys

from ragbandit.router.cli.status_line import line_of_command


def main() -> None:
    line = line_of_command(sys.argv[1:])
    if line is not None:
        sys.stdout.write(f"{line}\n")
        return
    from ragbandit.workers.cli import main as run_command  # the module loads the parser and the table of verbs

    run_command()
