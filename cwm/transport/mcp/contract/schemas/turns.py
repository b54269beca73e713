"""The answers of the tools for turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.scalars import Timestamp


class TurnWords(TypedDict):
    old: str
    new: str


class TurnItem(TypedDict):
    id: str
    number: Annotated[int, Field(description="Counts the turns of a session in the order they were asked")]
    state: Literal["asked", "ended"]
    relation: NotRequired[
        Annotated[
            Literal["begins", "continues", "branches"],
            Field(description="How it came from its parent; begins: it has none"),
        ]
    ]
    parent: NotRequired[str]
    parent_at: NotRequired[Annotated[int, Field(description="Token at which it leaves its parent")]]
    line: NotRequired[
        Annotated[
            Literal["main", "side"],
            Field(
                description="main: of the conversation. side: a title, a summary, a sub-agent or another branch"
            ),
        ]
    ]
    prompt_tokens: NotRequired[int]
    token_count: NotRequired[Annotated[int, Field(description="Tokens of prompt and answer")]]
    cached_tokens: NotRequired[
        Annotated[int, Field(description="Prompt tokens that were not computed again")]
    ]
    joined: NotRequired[
        Annotated[
            Literal["client", "id", "answers", "assumed"],
            Field(
                description="How it is known that it belongs here; id: by a tool call of an answer, assumed: nobody else could be meant"
            ),
        ]
    ]
    compacts: NotRequired[
        Annotated[
            str,
            Field(description="The line's turn before, where this goes on from a summary; see turn_left_out"),
        ]
    ]
    missed: NotRequired[
        Annotated[
            Literal["evicted", "another_engine"],
            Field(
                description="The likely cause why cached_tokens is over a block less than parent_at; "
                "another_engine: or another salt"
            ),
        ]
    ]
    first_token_ms: NotRequired[
        Annotated[
            int,
            Field(
                description="Until the first piece of the answer arrived; of an answer in one piece, until that"
            ),
        ]
    ]
    router_decision: NotRequired[
        Annotated[str, Field(description="What the router in front of the engines says that it chose")]
    ]
    diverged_at: NotRequired[
        Annotated[int, Field(description="Message at which its request left those of the then current turn")]
    ]
    cause: NotRequired[
        Annotated[
            Literal[
                "system_text",
                "tools",
                "tool_order",
                "moved",
                "compacted",
                "edited",
                "dropped",
                "inserted",
                "rendered",
                "template",
                "repeated",
                "unrelated",
            ],
            Field(
                description="Why it left them; rendered: an answer came back with other words; template: it left none, "
                "but they are other tokens from parent_at on, by the model's template or tokenizer, and there is no diverged_at"
            ),
        ]
    ]
    habit: NotRequired[
        Annotated[
            Literal["billing_block", "date", "git_status", "moved_reminder", "reordered_tools"],
            Field(description="What clients are known to change by themselves, if it left them by that"),
        ]
    ]
    habit_switch: NotRequired[
        Annotated[str, Field(description="The client's own setting or variable against its habit")]
    ]
    words: NotRequired[
        Annotated[
            TurnWords, Field(description="A few words of both messages around where they differ; in turn_log")
        ]
    ]
    author: str
    client: NotRequired[Annotated[str, Field(description="User agent of the client, as it says itself")]]
    asked_at: Timestamp
    ended_at: NotRequired[Timestamp]


class TurnTag(TypedDict):
    tag: str
    turn: str
    session_id: str
    author: str
    created_at: Timestamp
    automatic: NotRequired[
        Annotated[bool, Field(description="true: set before a compaction; it goes with its session")]
    ]


class TurnTagged(TurnTag):
    success: bool


class TurnLog(TypedDict):
    success: bool
    session_id: NotRequired[str]
    current_turn: NotRequired[Annotated[str, Field(description="The turn whose context it is")]]
    origin: NotRequired[
        Annotated[
            str, Field(description="The turn of another session that it begins with: a branch or a thaw")
        ]
    ]
    turns: list[TurnItem]
    tags: Annotated[list[TurnTag], Field(description="Names of turns, the newest 1,000")]
    has_more: bool
    next_before: NotRequired[Annotated[int, Field(description="Pass as before for the next page")]]


class TurnShown(TypedDict):
    success: bool
    session_id: str
    turn: TurnItem
    messages: Annotated[
        list[dict[str, Any]],
        Field(
            description="In message_format; in OpenAI's a raw prompt has the role prompt, its answer completion"
        ),
    ]
    system: NotRequired[Annotated[str, Field(description="The system text, in Anthropic's format")]]
    token_ids: NotRequired[list[int]]
    warning: NotRequired[Annotated[str, Field(description="Why messages are missing")]]


class TurnFound(TypedDict):
    session_id: str
    turn: Annotated[str, Field(description="The turn that added the message; turn_show reads its context")]
    number: int
    role: str
    excerpt: Annotated[str, Field(description="Up to 240 characters of the message around the first word")]
    asked_at: str
    message: NotRequired[Annotated[dict[str, Any], Field(description="The whole, in OpenAI's format")]]


class TurnsFound(TypedDict):
    success: bool
    results: list[TurnFound]
    searched_messages: Annotated[int, Field(description="Messages that this call read")]
    next_cursor: NotRequired[Annotated[str, Field(description="Pass as cursor to search on")]]


class TurnDiff(TypedDict):
    success: bool
    left_tokens: int
    right_tokens: int
    common_tokens: Annotated[int, Field(description="Tokens from the beginning that are equal")]
    common_messages: int
    left_message: NotRequired[Annotated[dict[str, Any], Field(description="The first message that differs")]]
    right_message: NotRequired[dict[str, Any]]
    reused_tokens: Annotated[int, Field(description="Tokens of right that a switch from left reuses")]
    computed_tokens: Annotated[int, Field(description="Tokens of right that it computes")]
    thaw_ms: NotRequired[Annotated[float, Field(description="Predicted time of a thaw of right")]]


class LeftOutFact(TypedDict):
    kind: Literal["url", "path", "quotation", "identifier", "number", "name", "instruction"]
    text: str
    message: Annotated[int, Field(description="Position of the message that says it first")]
    role: Literal["user", "assistant"]


class LeftOut(TypedDict):
    success: bool
    turn: Annotated[str, Field(description="The turn that goes on from the summary")]
    before: Annotated[str, Field(description="The last turn of the whole conversation")]
    tag: NotRequired[Annotated[str, Field(description="Its tag: tag:NAME stands for before")]]
    fact_count: Annotated[int, Field(description="Facts that the conversation had")]
    left_out_count: int
    facts: Annotated[list[LeftOutFact], Field(description="Those that are gone, at most 500")]


class TurnMoved(TypedDict):
    success: bool
    session_id: str
    turn: str
    token_count: int


class TurnsDeleted(TypedDict):
    success: bool
    deleted_turns: int
