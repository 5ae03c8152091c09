"""Many questions in one call: each is admitted, decided or refused separately, also with a second router."""

from concurrent.futures import ThreadPoolExecutor

from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import Conflict, InvalidInput, Overloaded
from ragbandit.shared.types import Decision, Query
from tests.conftest import on_sqlite

QUESTION = "Who wrote Dracula?"


def test_admission_counts_the_questions_of_a_batch(settings):
    """While server.max_waiting questions wait, the others of the batch are refused, each with its own error."""
    configuration = settings(server={"max_waiting": 5}, encoder={"max_batch": 1})
    with Router.open(configuration, jobs=MemoryJobs()) as router:
        futures = router.submit_many([f"Who wrote {at}?" for at in range(40)])
        errors = [future.exception(10) for future in futures]
        refusals = [error for error in errors if error is not None]
        assert refusals
        assert {type(error) for error in refusals} == {Overloaded}
        assert errors[0] is None
        assert router.status().counters.decided == len(errors) - len(refusals)


def results_of(router, queries):
    """For each question its decision, or the error that its Future raises."""
    return [future.exception(30) or future.result() for future in router.submit_many(queries)]


def test_many_questions(router):
    """`submit_many` gives, in order, a decision or the error of each question; all decisions are committed."""
    queries = [QUESTION, "", Query(text=QUESTION, id="d1"), Query(text="Who wrote Emma?", id="d1")]
    first, empty, named, clash = results_of(router, queries)
    assert isinstance(first, Decision)
    assert isinstance(empty, InvalidInput)
    assert isinstance(named, Decision)
    assert isinstance(clash, Conflict)
    assert router.decision("d1").decision.pmf == named.pmf
    assert results_of(router, []) == []


@on_sqlite
def test_two_routers_at_once(settings, database):
    """Two batches with the same ids at two routers: every id has one decision, and both callers get that one."""
    configuration = settings(database_url=database.url.render_as_string(hide_password=False))
    with (
        Router.open(configuration, jobs=MemoryJobs()) as one,
        Router.open(configuration, jobs=MemoryJobs()) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        for turn in range(5):
            queries = [Query(text=QUESTION, id=f"d{turn}-{at}") for at in range(60)]
            told = list(pool.map(lambda router, asked=queries: results_of(router, asked), (one, two)))
            assert [decision.id for decision in told[0]] == [query.id for query in queries]
            assert len({(decision.id, decision.made_at) for decision in (*told[0], *told[1])}) == 60
        assert one.status().counters.decided == 300
