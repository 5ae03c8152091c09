"""Doors: interfaces over HTTP, of the core and of additions."""

from ragbandit.router.api.door import Door
from ragbandit.router.api.doors import DOORS
from tests.support.waiting import until


class Line:
    """Something that is kept open."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


def test_what_a_door_opens_is_closed_with_its_loop(serve, monkeypatch):
    """Each of two ports opens what a door needs, and closes it once; a door may open nothing."""
    lines = []

    def opened(router):
        lines.append(Line())
        return lines[-1] if router.settings.server.admin_port is not None else None

    monkeypatch.setitem(DOORS, "lines", Door(place=200, endpoints=(), open=opened))
    service = serve(server={"admin_port": 0})
    assert service.http.get("/docs").status_code == 200
    until(lambda: len(lines) == 2)  # the port of operators may open after the public one
    assert [line.closed for line in lines] == [0, 0]
    service.close()
    assert [line.closed for line in lines] == [1, 1]
    serve().close()
    assert [line.closed for line in lines] == [1, 1, 0]


def test_the_first_page(serve):
    """`/` leads to the dashboard, and to /docs in a tree or a service without it."""
    for is_on in (True, False):
        http = serve(server={"dashboard": is_on}).http
        pages = "/ui" if is_on and "dashboard" in DOORS else "/docs"
        assert http.get("/").json()["pages"] == pages
        assert http.get("/", headers={"accept": "text/html"}).headers["location"] == pages
        assert http.get("/docs").status_code == 200
        missing = http.get("/ui/nothing")
        assert (missing.status_code, "<html" in missing.text) == (404, pages == "/ui")


def test_places_differ():
    """No two doors stand at one place, and the list has the order of the places."""
    places = [door.place for door in DOORS.values()]
    assert places == sorted(set(places))
