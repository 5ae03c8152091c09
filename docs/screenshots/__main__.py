"""`make screenshots`: a service with made-up traffic, a real browser, and pictures in docs/images."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.screenshots.traffic import fill, settings_of
from ragbandit.router.api.app import create_app
from ragbandit.router.api.http_server.server import make_server
from ragbandit.router.jobs.memory_jobs import MemoryJobs
from ragbandit.router.serving.router import Router

IMAGES: Final = Path(__file__).parents[1] / "images"
#: name of a picture -> the page that it shows
PAGES: Final = {
    "overview": "/ui?time=week",
    "arms": "/ui/arms?time=week",
    "decisions": "/ui/decisions",
    "decision": "decision",
    "policies": "/ui/policies",
    "policy": "/ui/policies/v1",
    "feedback": "/ui/feedback",
    "queues": "/ui/queues",
}
#: kind of a picture -> colours and width; the pages of the second list are shown in each of them
KINDS: Final = {"light": ("light", 1200), "dark": ("dark", 1200), "phone": ("light", 360)}
_HEIGHT: Final = {"light": 900, "dark": 900, "phone": 780}


@contextlib.contextmanager
def served(folder: str) -> Iterator[tuple[str, Router]]:
    """A service in a thread with the traffic in its store: its address and its router."""
    settings = settings_of(folder)
    app = create_app(lambda: Router.open(settings, jobs=MemoryJobs()))
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
    from ragbandit.router.storage.decision_search import Search, search

    wanted = Search(label=router.ledger.label, arm="multi_step", state="learned")
    found = search(router.database, wanted).decisions
    return f"/ui/decisions/{next(row.id for row in found if row.status == 'answered')}"


def shoot(url: str, *, decision: str, folder: Path) -> list[Path]:
    """Write all pictures; which ones."""
    from playwright.sync_api import sync_playwright

    written = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for kind, (scheme, width) in KINDS.items():
            size = {"width": width, "height": _HEIGHT[kind]}
            context = browser.new_context(color_scheme=scheme, viewport=size)  # type: ignore[arg-type] # two words
            tab = context.new_page()
            for name, path in PAGES.items():
                reply = tab.goto(url + (decision if path == "decision" else path))
                if reply is None or reply.status != 200:
                    raise SystemExit(f"{path} cannot be shown: {reply and reply.status}")
                tab.wait_for_load_state("networkidle")
                file = folder / f"dashboard-{name}-{kind}.png"
                tab.screenshot(path=file, full_page=name not in ("decisions",))
                written.append(file)
        browser.close()
    return written


def main() -> None:
    """Fill a store, serve it, and take the pictures."""
    if shutil.which("chromium") is None:
        raise SystemExit("there is no chromium here: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    with tempfile.TemporaryDirectory() as data, served(data) as (url, router):
        fill(router)
        for file in shoot(url, decision=explored_decision(router), folder=folder):
            print(f"wrote {file}")


if __name__ == "__main__":
    main()
