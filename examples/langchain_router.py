"""LangChain: the service chooses which of two chains answers (pip install '.[langchain]').

    ragbandit up --config examples/bring_your_own_pipelines.yaml
    python -m ragbandit.examples.langchain_router

The models are LangChain's fake ones: put yours in their place.
"""

import uuid

from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from ragbandit import Client
from ragbandit.integrations.langchain import RoutedRunnable


def main() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Answer in a few words."), ("user", "{question}")])
    fast = prompt | FakeListChatModel(responses=["Bram Stoker"]) | StrOutputParser()
    deep = prompt | FakeListChatModel(responses=["Abraham Stoker, in 1897"]) | StrOutputParser()
    with Client() as client:
        chain = RoutedRunnable(client, runnables={"fast": fast, "deep": deep})
        run_id = uuid.uuid4()  # id of the run in your traces, and of the decision
        answer = chain.invoke({"question": "Who wrote Dracula?"}, config={"run_id": run_id})
        print(answer)
        client.feedback(str(run_id), rating="Stoker" in answer)


if __name__ == "__main__":
    main()
