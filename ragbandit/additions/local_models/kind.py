"""The generator "local" before it is loaded."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from ragbandit.additions.local_models.generator import DECODER_ONLY, LocalGenerator
from ragbandit.additions.local_models.settings import LocalSection
from ragbandit.router.encoders.weights import config_on_disk, is_at_hand, resolve
from ragbandit.router.telemetry.logs import set_up_log
from ragbandit.shared.errors import ConfigError, RagBanditError
from ragbandit.shared.processes.this_process import end_with_parent
from ragbandit.strategies.base import Generator, Need
from ragbandit.workers.setup.generator_kinds import GeneratorKind


class LocalKind(GeneratorKind):
    packages = ("torch", "transformers")
    extra = "models"
    is_local = True
    speed = frozenset({"threads", "max_batch"})

    @property
    def capabilities(self) -> frozenset[Need]:
        trained = frozenset[Need]({"trained_tokens"} if self.settings.of(LocalSection).trained_tokens else ())
        capabilities = LocalGenerator.capabilities | trained
        # A model that is not on this disk yet is checked when it is loaded.
        has_encoder = config_on_disk(self.settings.model).get("is_encoder_decoder") is True
        return capabilities - DECODER_ONLY if has_encoder else capabilities

    @property
    def concurrency(self) -> int | None:
        return None

    def load(self, *, threads: int | None = None) -> Generator:
        chosen, own, context = self.settings, self.settings.of(LocalSection), self.settings.known_context
        assert context is not None, "only a server's model may have an unknown context"
        return LocalGenerator(
            resolve(chosen.model, setting="generator.model").folder,
            name=chosen.model,
            precision=own.precision,
            device=own.device,
            threads=own.threads or threads,
            trained_tokens=own.trained_tokens,
            max_batch=own.max_batch,
            context_tokens=context,
        )

    def check(self, *, fetch: bool) -> None:
        super().check(fetch=fetch)
        model = self.settings.model
        if not is_at_hand(model, setting="generator.model") and fetch:
            _fetch_in_child(model)


def _fetch_in_child(model: str) -> None:
    """Download and convert a model in a child process, so that its memory is free again afterwards."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, initializer=_begin_fetching) as fetching:
        try:
            fetching.submit(resolve, model, setting="generator.model").result()
        except RagBanditError:
            raise
        except BrokenProcessPool as error:
            message = f"the process that made {model!r} ready was killed"
            remedy = "most often memory ran out: give a model that is in safetensors already, or a smaller one"
            raise ConfigError(message, field="generator.model", remedy=remedy) from error
        except Exception as error:  # parsers of the user's files may raise anything
            message = f"{model!r} cannot be made ready: {type(error).__name__}: {error}"
            raise ConfigError(message, field="generator.model", remedy="give another file or folder") from error


def _begin_fetching() -> None:
    end_with_parent()
    set_up_log("INFO")
