"""An index in Elasticsearch behind the proxy of a company."""

import pytest

from ragbandit.additions.elasticsearch.retriever import FORMAT, ElasticsearchRetriever
from ragbandit.shared.errors import RagBanditError
from tests.support.servers.company_proxy import CLOSED, through  # noqa: F401 - a fixture
from tests.support.servers.scripted_http import ScriptedHttp, json_reply


def test_an_index_in_elasticsearch_is_asked_by_the_same_rule(through):  # noqa: F811 - the fixture
    """The retriever asks through the proxy, with the whole address and its password, and names a proxy that fails."""
    meta = {"x": {"mappings": {"_meta": {"ragbandit": {"format": FORMAT, "complete": True, "sha256": "0"}}}}}
    with ScriptedHttp(json_reply(meta, X_Elastic_Product="Elasticsearch")) as proxy:
        through(proxy.url)
        ElasticsearchRetriever("http://search.example:9200/es/", index="x", api_key="id:secret\n").opened()
        [(path, headers, _)] = proxy.seen
        ElasticsearchRetriever("http://search.example", index="x").opened()
        assert proxy.seen[-1][0] == "http://search.example:80/x/_mapping"
    assert path == "http://search.example:9200/es/x/_mapping"
    headers = {name.lower(): value for name, value in headers.items()}
    assert headers["proxy-authorization"].startswith("Basic ")
    assert headers["authorization"] == "ApiKey aWQ6c2VjcmV0"
    through(f"http://127.0.0.1:{CLOSED}")
    with pytest.raises(RagBanditError, match=f"through the proxy http://127.0.0.1:{CLOSED}") as caught:
        ElasticsearchRetriever("http://search.example:9200", index="x").opened()
    assert "hunter2" not in str(caught.value)
