"""Settings of webhooks: who is told what happens, and how a receiver knows that it was us."""

from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field

from ragbandit.router.config.importers import Variable
from ragbandit.router.config.sections import Section, plain_address

#: what a webhook can be told
EventKind = Literal["verdict", "drift", "budget", "alarm"]
#: most webhooks
MAX_WEBHOOKS: Final = 10


class WebhookSettings(Section):
    """A receiver of events. See docs/webhooks.md."""

    #: where events are posted to, without user, password and query; redirects are not followed
    url: Annotated[str, AfterValidator(plain_address)]
    #: environment variable that holds the secret that they are signed with: whsec_ and base64 of 24 to 64 bytes
    secret_env: Variable
    #: what it is told: verdict (a version moves, the kill switch), drift (an arm changed), budget (.8 of a dollar
    #: budget is spent, and all of it), alarm (learning is stuck or starved, the log is uneven)
    events: Annotated[list[EventKind], Field(min_length=1)] = Field(default_factory=lambda: [*get_args(EventKind)])
