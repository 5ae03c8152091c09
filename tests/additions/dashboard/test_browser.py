"""Pages in a real Chromium: accessible in both colour schemes, no wider than a phone, usable by keyboard."""

import gzip
import shutil
from pathlib import Path

import pytest

from docs.screenshots.traffic import fill, settings_of
from ragbandit.router.comparison.page import write_page
from tests.support.assessments import WHOLE
from tests.support.servers.http_service import Service
from tests.support.servers.path_proxy import PathProxy

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]

AXE = gzip.decompress((Path(__file__).parents[2] / "data" / "axe" / "axe.min.js.gz").read_bytes()).decode()
PAGES = (
    *("/ui/arms", "/ui", "/ui/decisions", "decision", "/ui/policies", "/ui/policies/v1", "/ui/feedback", "/ui/labels"),
    *("/ui/queues", "/ui/none", "page"),
)


#: texts of pictures that leave the page, or that cover another text of their picture
COVERED = """() => [...document.querySelectorAll('svg.plot')].flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')].map(one => [one.textContent, one.getBoundingClientRect()]);
    const shown = texts.filter(([_, box]) => box.width > 0);
    return shown.filter(([_, box], at) => box.left < 0 || box.right > innerWidth || shown.slice(at + 1).some(
        ([_, other]) => box.left < other.right - 1 && other.left < box.right - 1
            && box.top < other.bottom - 3 && other.top < box.bottom - 3)).map(([text]) => text);
})"""


#: rows of tiles that leave a part of their width empty
EMPTY = """() => [...document.querySelectorAll('.cards')].flatMap(all => {
    const right = all.getBoundingClientRect().right, rows = new Map();
    for (const box of [...all.children].map(one => one.getBoundingClientRect()))
        rows.set(Math.round(box.top), Math.max(rows.get(Math.round(box.top)) || 0, box.right));
    return [...rows.values()].filter(end => right - end > 2);
})"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A service with a few hours of made-up traffic."""
    folder = tmp_path_factory.mktemp("pages")
    service = Service(settings_of(str(folder)))
    fill(service.router, hours=4, each=3)
    service.file = folder / "page.html"
    write_page(service.file, WHOLE)
    yield service
    service.close()


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_tab(chromium, world):
    """A function from colours and width to a tab, whose console must stay empty."""
    contexts, said = [], []

    def opened(*, scheme: str = "light", width: int = 1200):
        context = chromium.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 800}, base_url=world.url
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in said if "404 (Not Found)" not in text] == []


def path_of(page: str, world) -> str:
    if page == "page":
        return world.file.as_uri()
    if page != "decision":
        return page
    answered = [row for row in world.http.get("/ui/decisions").text.split('href="/ui/decisions/')[1:] if row[8] == "-"]
    return "/ui/decisions/" + answered[0].partition('"')[0]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "rules"), [("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")])
def test_pages_are_accessible(open_tab, world, scheme, rules):
    """Axe finds no fault on any page, with everything that can be opened opened; colours have contrast in both."""
    tab = open_tab(scheme=scheme)
    for page in PAGES:
        tab.goto(path_of(page, world))
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        tab.evaluate(AXE)
        result = tab.evaluate(f"axe.run(document, {rules})")["violations"]
        told = [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in result]
        assert told == [], page


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_pages_fit_their_width(open_tab, world, width):
    """With everything opened, no page scrolls sideways, no row of tiles has an empty part, and no label of a picture is
    cut or covers another one.
    """
    tab = open_tab(width=width)
    drawn = 0
    for page in PAGES:
        tab.goto(path_of(page, world))
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, page
        assert tab.evaluate(COVERED) == [], page
        assert tab.evaluate(EMPTY) == [], page
        drawn += tab.locator("figure svg.plot").count()
    assert drawn >= 8


@pytest.mark.slow
def test_keys_reach_everything_in_order(open_tab):
    """Tab goes to the skip link, the pages, the colours; Enter on the skip link leads to the content."""
    tab = open_tab()
    tab.goto("/ui/decisions")
    order = []
    for _ in range(10):
        tab.keyboard.press("Tab")
        order.append(tab.evaluate("document.activeElement.textContent.trim() || document.activeElement.name"))
    assert order[:2] == ["To the content", "RagBandit"]
    assert order.index("Overview") < order.index("Decisions") < order.index("Queues") < order.index("Dark")
    tab.goto("/ui/decisions")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "content"
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.name") == "id"


def test_pages_work_under_a_path_of_a_proxy(open_tab, world):
    """Behind a proxy that strips /rag, a browser gets every file, follows the links and sends a form."""
    with PathProxy(world.url, x_forwarded_prefix="/rag") as proxy:
        tab = open_tab()
        failed = []
        tab.on("response", lambda reply: failed.append(reply.url) if reply.status >= 400 else None)
        for page in (*PAGES[:9], "/docs"):
            if page != "decision":
                tab.goto(f"{proxy.url}/rag{page}", wait_until="networkidle")
        assert tab.locator(".opblock").count() > 10
        tab.goto(f"{proxy.url}/rag/ui")
        tab.get_by_role("link", name="Decisions", exact=True).first.click()
        tab.locator('td a[href^="/rag/ui/decisions/"]').first.click()
        tab.goto(f"{proxy.url}/rag/ui/decisions")
        tab.get_by_role("button", name="Search").click()
        assert tab.url.startswith(f"{proxy.url}/rag/ui/decisions?")
        assert failed == []
