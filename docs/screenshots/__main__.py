"""`make screenshots`: pages of commands, a service with made-up traffic, a real browser, and pictures in docs/images.

With a folder, every page is written there in light, dark and 360 pixels wide, for looking.
"""

import argparse
import asyncio
import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from docs.screenshots.traffic import fill, settings_of
from ragbandit.router.api.app import create_app
from ragbandit.router.api.server import make_server
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.queue.presence import QueueWork, WorkerState
from ragbandit.router.serving.router import Router

IMAGES: Final = Path(__file__).parents[1] / "images"
#: kind -> colours and width
KINDS: Final = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 360)}
#: name -> the page, the most of its height that is shown, and the kinds that it is shown in
PICTURES: Final[dict[str, tuple[str, int, tuple[str, ...]]]] = {
    "overview": ("/ui?time=week", 1560, ("light", "dark", "phone")),
    "arms": ("/ui/arms?time=week", 1240, ("light", "dark")),
    "decisions": ("/ui/decisions", 900, ("light", "phone")),
    "decision": ("decision", 1640, ("light",)),
    "policies": ("/ui/policies", 900, ("light",)),
    "policy": ("/ui/policies/v1", 1300, ("light", "dark")),
    "feedback": ("/ui/feedback", 900, ("light",)),
    "queues": ("/ui/queues", 1400, ("light",)),
}
#: name -> the command that writes its page, the most of its height that is shown, and the kinds that it is shown in
PAGES: Final[dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]]] = {
    "verdict": (
        ("ragbandit", "advise", "--table", "{root}/examples/handbook/table.jsonl", "--report", "{page}"),
        1310,
        ("light", "dark", "phone"),
    ),
    "learning-curve": (("ragbandit.examples.handbook.learning_curve", "--report", "{page}"), 700, ("light",)),
}
#: colours of a picture: pages have few, and a palette makes the file a quarter of the size
_COLOURS: Final = 256


class _Jobs(MemoryJobs):
    """A queue with the workers of a small installation."""

    def workers(self) -> list[WorkerState]:
        """States of two answer workers, one of them busy, and of the learner."""
        said = (("answer-1", "answer", "busy"), ("answer-2", "answer", "idle"), ("learn-1", "learn", "idle"))
        now = time.time()
        return [
            WorkerState(name=name, queue=queue, state=state, host="office-7", heard_at=now - 2 * place)
            for place, (name, queue, state) in enumerate(said, 1)
        ]

    def work(self) -> dict[str, QueueWork]:
        """What they have done in a week."""
        return {
            "answer": QueueWork(done=921, failed=15, seconds=1840.0),
            "judge": QueueWork(),
            "learn": QueueWork(done=612, seconds=22.0),
        }

    def depth(self) -> dict[str, int]:
        """Two questions wait."""
        return {"answer": 2, "learn": 0}


@contextlib.contextmanager
def served(folder: str) -> Iterator[tuple[str, Router]]:
    """A service in a thread with the traffic in its store: its address and its router."""
    settings = settings_of(folder)
    app = create_app(lambda: Router.open(settings, jobs=_Jobs()))
    server = make_server(app, settings=settings.server, loop="asyncio")
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="screenshots")
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined] # of uvicorn before 0.29
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", app.state.router
    finally:
        server.should_exit = True
        thread.join(30)


def explored_decision(router: Router) -> str:
    """The page of a decision that has the most to tell: three steps, and learned."""
    from ragbandit.additions.dashboard.search import Search, search

    wanted = Search(label=router.ledger.label, arm="multi_step", state="learned")
    found = search(router.database, wanted).decisions
    return f"/ui/decisions/{next(row.id for row in found if row.status == 'answered')}"


def written_pages(folder: Path) -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    """Run the commands of PAGES. Yields (name, address of the page, most of its height, kinds)."""
    for name, (command, most, kinds) in PAGES.items():
        page = folder / f"{name}.html"
        words = [word.format(root=IMAGES.parents[1], page=page) for word in command]
        # A verdict is also an exit code, so that only the page shows whether the command failed.
        subprocess.run([sys.executable, "-m", *words], cwd=folder, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
        yield name, page.as_uri(), most, kinds


def shoot(
    pages: Iterable[tuple[str, str, int, tuple[str, ...]]], *, folder: Path, every: bool = False
) -> Iterator[Path]:
    """Write the pictures of (name, address, most of its height, kinds). every: each in each kind, the whole of it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tabs = {}
        for kind, (scheme, width) in KINDS.items():
            size = {"width": width, "height": 780}
            context = browser.new_context(color_scheme=scheme, viewport=size)  # type: ignore[arg-type] # two words
            tabs[kind] = context.new_page()
        for name, address, most, kinds in pages:
            for kind in KINDS if every else kinds:
                tab, width = tabs[kind], KINDS[kind][1]
                reply = tab.goto(address)
                if reply is None or reply.status not in (0, 200):  # files have no status
                    raise SystemExit(f"{address} cannot be shown: {reply and reply.status}")
                tall = int(tab.evaluate("document.documentElement.scrollHeight"))
                height = tall if every else min(most, tall)
                cut = {"x": 0.0, "y": 0.0, "width": float(width), "height": float(height)}
                taken = tab.screenshot(full_page=True, clip=cut)  # type: ignore[arg-type] # these four
                yield _written(taken, file=folder / f"{name}-{kind}.png")
        browser.close()


def _written(taken: bytes, *, file: Path) -> Path:
    """The picture as a file with a palette: of the colours that most of it has, exactly these."""
    from PIL import Image

    with Image.open(io.BytesIO(taken)) as picture:
        drawn = picture.convert("RGB")
    found: Any = drawn.getcolors(drawn.width * drawn.height) or []
    most_used = [colour for _, colour in sorted(found, reverse=True)[:_COLOURS]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in most_used for part in colour])
    drawn.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)
    return file


def main() -> None:
    """Write the pages, fill a store, serve it, and take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m docs.screenshots", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=IMAGES, help="default: docs/images")
    folder = parser.parse_args().folder
    if shutil.which("chromium") is None:
        raise SystemExit("there is no chromium here: apt-get install chromium")
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as made, served(data) as (url, router):
        fill(router)
        decision = explored_decision(router)
        pictures = [
            (f"dashboard-{name}", url + (decision if path == "decision" else path), most, kinds)
            for name, (path, most, kinds) in PICTURES.items()
        ]
        for file in shoot([*written_pages(Path(made)), *pictures], folder=folder, every=folder != IMAGES):
            print(f"wrote {file}")


if __name__ == "__main__":
    main()
