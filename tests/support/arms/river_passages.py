"""A question, and passages that share words with it."""

from ragbandit.strategies.base import Passage

QUESTION = "Which river is in Paris?"
ROWS = [
    Passage(id="seine", title="", text="The Seine is a river in Paris, France."),
    Passage(id="vistula", title="", text="A river of Poland: the Vistula."),
    Passage(id="film", title="", text="Paris has a director who wrote a film, before and after the river ran dry."),
    Passage(id="city", title="", text="What is the capital of France? Paris."),
    Passage(id="dracula", title="", text="Who was born in the city by the river? Dracula."),
    Passage(id="rhine", title="", text="Cologne, a Roman city, sits at the river Rhine."),
]
