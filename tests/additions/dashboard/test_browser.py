"""Pages in a real Chromium: accessible in both colour schemes, no wider than a phone, usable by keyboard."""

import gzip
import re
import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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


def test_fifty_decisions_fit_a_phone(open_tab):
    """At 360 pixels of width the mean row of the decisions is at most 95 high, so fifty rows take at most 5,000."""
    tab = open_tab(width=360)
    tab.goto("/ui/decisions")
    heights = tab.evaluate("[...document.querySelectorAll('table.dense tbody tr')].map(row => row.offsetHeight)")
    assert len(heights) >= 10
    assert sum(heights) / len(heights) <= 95


def test_the_search_is_folded_on_a_phone(open_tab):
    """A phone shows the first decision on its first screen, with names before its numbers, and unfolds the search; a
    wide screen shows the search, and each row's arm in one line.
    """
    phone, wide = open_tab(width=360), open_tab(width=1280)
    phone.goto("/ui/decisions")
    assert not phone.get_by_label("Session").is_visible()
    assert phone.locator("table.dense tbody tr").first.bounding_box()["y"] < 400
    named = "getComputedStyle(document.querySelector('td[data-label=Probability]'), '::before').content"
    assert "Probability" in phone.evaluate(named)
    phone.get_by_text("Search", exact=True).first.click()
    assert phone.get_by_label("Session").is_visible()
    wide.goto("/ui/decisions")
    wide.get_by_label("Session").fill("none")
    wide.get_by_role("button", name="Search").click()
    assert wide.url.split("?")[1].startswith("id=&session=none")


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


#: resolved addresses of the links, and of the forms that only read, of a page
TARGETS = """() => [...document.querySelectorAll('a[href]')].map(one => one.href).concat(
    [...document.querySelectorAll('form')].filter(one => one.method === 'get').map(one => one.action))"""
CHANGES = """() => [...document.querySelectorAll('form')].filter(one => one.method === 'post').map(one => one.action)"""


def kind_of(url: str) -> str:
    """The address with ids and values left out: links to other rows lead to the same page."""
    parts = urlsplit(url)
    path = re.sub(r"/[0-9a-f]{8}-[0-9a-f-]{27}", "/ID", parts.path)
    return f"{parts.netloc}{path}?{sorted(parse_qs(parts.query))}"


def test_every_page_works_under_a_path_of_a_proxy(open_tab, world):
    """Behind a proxy that strips /rag, a browser reaches all that pages link to, with every file of theirs; forms keep
    the path, and a request from /docs goes to OpenAPI's server. Outside /rag there is nothing.
    """
    with PathProxy(world.url, x_forwarded_prefix="/rag") as proxy:
        tab, base = open_tab(), f"{proxy.url}/rag"
        failed, forms = [], set()
        tab.on("response", lambda reply: failed.append((reply.url, reply.status)) if reply.status >= 400 else None)
        waiting = [f"{base}/", *(f"{base}{page}" for page in PAGES if page.startswith("/") and page != "/ui/none")]
        seen = {*map(kind_of, waiting)}
        while waiting:
            tab.goto(waiting.pop(), wait_until="networkidle")
            forms |= {*tab.evaluate(CHANGES)}
            for url in tab.evaluate(TARGETS):
                if url.startswith(proxy.url) and kind_of(url) not in seen:
                    seen.add(kind_of(url))
                    waiting.append(url)
        assert len(seen) >= 12
        assert forms
        assert [url for url in forms if not url.startswith(f"{base}/ui/")] == []
        tab.goto(f"{base}/ui/decisions")
        tab.get_by_role("button", name="Search").click()
        assert tab.url.startswith(f"{base}/ui/decisions?")
        tab.goto(f"{base}/docs")
        health = tab.locator(".opblock", has=tab.locator("[data-path='/health']"))
        health.locator(".opblock-summary-control").click()
        health.get_by_role("button", name="Try it out").click()
        with tab.expect_response(f"{base}/health") as replied:
            health.get_by_role("button", name="Execute").click()
        assert replied.value.status == 200
        assert failed == []
