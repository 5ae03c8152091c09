"""Settings of the generator "local"."""

from typing import Literal

from pydantic import Field

from ragbandit.router.config.section import Count, Section


class LocalSection(Section):
    """Settings that the generator "local" adds to the section `generator`."""

    #: "local": number format; "auto": bfloat16 if the processor or GPU supports it in hardware, else float32
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    #: "local": device of the model; "auto": the GPU if there is one
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: "local": torch threads; None to divide the cores evenly among the local models of all `workers.answer` workers
    threads: Count | None = None
    #: "local": maximum number of texts generated in one batch; None for 8 on a CPU, 64 on CUDA
    max_batch: Count | None = None
    #: "local": names of the special tokens of a model that was trained for the arm `self_rag_trained`
    trained_tokens: list[str] = Field(default_factory=list)
