"""The LLM face: forwards requests to the engine and returns its answers unchanged."""

from __future__ import annotations

from starlette.routing import Route

from cwm.domain.pooling import POOLING_PATHS
from cwm.ports.identity import Identity
from cwm.services.turns.sending.count_response import CountResponse
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.services.turns.sending.pooling import Pooling
from cwm.transport.llm.conversations import ConversationEndpoint, CreateEndpoint, ItemEndpoint, ItemsEndpoint
from cwm.transport.llm.count_tokens import CountEndpoint, CountResponseEndpoint
from cwm.transport.llm.endpoint import Endpoint, Serve, Unknown
from cwm.transport.llm.models import ModelsEndpoint
from cwm.transport.llm.pooling import PoolingEndpoint
from cwm.transport.llm.responses import CancelEndpoint, InputItemsEndpoint, ResponseEndpoint
from cwm.transport.llm.turns import TurnEndpoint


def routes(pass_through: PassThrough, identity: Identity) -> list[Route]:
    """Completions, chat completions, messages, responses, conversations and models under ``/v1``, with or without a slash at the end.

    What models serve that do not generate has vLLM's paths.

    The last route refuses all other paths.
    """
    turn, models = TurnEndpoint(pass_through), ModelsEndpoint(pass_through)

    def endpoint(methods: str, serve: Serve, path: str) -> Endpoint:
        limits, journal, engines = pass_through.limits, pass_through.journal, pass_through.directory
        return Endpoint(methods, serve, path, identity, limits, journal, engines)

    responses = pass_through.responses
    conversations = responses.conversations
    conversation, one_model = "/v1/conversations/{conversation}", "/v1/models/{model:path}"
    endpoints: tuple[tuple[str, str, Serve], ...] = (
        ("POST", "/v1/chat/completions", turn),
        ("POST", "/v1/completions", turn),
        ("POST", "/v1/messages", turn),
        ("POST", "/v1/messages/count_tokens", CountEndpoint(pass_through)),
        ("POST", "/v1/responses", turn),
        ("POST", "/v1/responses/input_tokens", CountResponseEndpoint(CountResponse(pass_through))),
        *(("POST", path, PoolingEndpoint(Pooling(pass_through))) for path in POOLING_PATHS),
        ("GET", "/v1/models", models),
        ("POST", "/v1/responses/compact", Unknown()),
        ("GET, DELETE", "/v1/responses/{response}", ResponseEndpoint(responses)),
        ("POST", "/v1/responses/{response}/cancel", CancelEndpoint(responses)),
        ("GET", "/v1/responses/{response}/input_items", InputItemsEndpoint(responses)),
        ("POST", "/v1/conversations", CreateEndpoint(conversations)),
        ("GET, POST, DELETE", conversation, ConversationEndpoint(conversations)),
        ("GET, POST", f"{conversation}/items", ItemsEndpoint(conversations)),
        ("GET, DELETE", f"{conversation}/items/{{item}}", ItemEndpoint(conversations)),
    )
    return [
        # Each route has an endpoint of its own, because spans are named after the route of an endpoint.
        *(
            Route(path + end, endpoint(methods, serve, path))
            for methods, path, serve in endpoints
            for end in ("", "/")
        ),
        Route(one_model, endpoint("GET", models, one_model)),
        Route("/v1/{rest:path}", Unknown()),
    ]
