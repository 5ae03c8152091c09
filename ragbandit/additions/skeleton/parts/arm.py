"""An arm: searches once, and answers in few words."""

from ragbandit.strategies import Answer, Need, PassagePool, Run, gather, parsed_template, read


class OwnArm:
    needs: frozenset[Need] = frozenset({"completion", "stop"})

    def __init__(self, *, name: str, words: int = 3) -> None:
        self.name, self.params = name, {"words": words}
        prompt = f"[passage]\n{{text}}\n[body]\n{{passages}}Answer in {words} words: {{question}}"
        self._template = parsed_template(prompt, name=name)

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(3))
        if run.begin_round(cap=1):
            await gather(run, query=question, pool=pool, k=3)
        text = await read(run, question=question, template=self._template, style="direct", max_tokens=8, pool=pool)
        return Answer(text=text, stop_reason="answered" if text else "empty_answer")
