"""Converts records of turns to the answers of tools."""

from __future__ import annotations

from typing import Final, Literal

from cwm.domain.clients.habit import Habit
from cwm.domain.divergence import Cause, Miss
from cwm.domain.facts import Fact
from cwm.domain.habits import switch_against
from cwm.domain.transcripts import anthropic, warning
from cwm.domain.turn import Joined, Turn, TurnTag
from cwm.domain.word_search import Finding
from cwm.services.turns.reading.compactions import LeftOut
from cwm.services.turns.reading.compare import Difference
from cwm.services.turns.reading.history import Transcript, TurnLog
from cwm.services.turns.reading.search import FindingPage
from cwm.transport.mcp.contract.render.scalars import moment
from cwm.transport.mcp.contract.schemas import turns as schemas

_MOST_FACTS: Final = 500


def turn_log(log: TurnLog) -> schemas.TurnLog:
    answer: schemas.TurnLog = {
        "success": True,
        "session_id": log.session_id,
        "turns": [_turn_item(turn, log.words.get(turn.id), log.habits.get(turn.id)) for turn in log.turns],
        "tags": [turn_tag(tag) for tag in log.tags],
        "has_more": log.has_more,
    }
    if log.origin is not None:
        answer["origin"] = log.origin
    if log.current_turn is not None:
        answer["current_turn"] = log.current_turn
    if log.has_more:
        answer["next_before"] = log.turns[-1].number
    return answer


def turn_tag(tag: TurnTag) -> schemas.TurnTag:
    answer: schemas.TurnTag = {
        "tag": tag.name,
        "turn": tag.turn_id,
        "session_id": tag.session_id,
        "author": tag.author,
        "created_at": moment(tag.created_at),
    }
    if tag.automatic:
        answer["automatic"] = True
    return answer


def turn_shown(transcript: Transcript, message_format: str = "openai") -> schemas.TurnShown:
    answer: schemas.TurnShown = {
        "success": True,
        "session_id": transcript.turn.session_id,
        "turn": _turn_item(transcript.turn, habit=transcript.habit),
        "messages": [message.content for message in transcript.messages if message.content],
    }
    if message_format == "anthropic":
        answer["system"], answer["messages"] = anthropic(answer["messages"])
    if transcript.token_ids is not None:
        answer["token_ids"] = list(transcript.token_ids)
    if (reason := warning(transcript.messages)) is not None:
        answer["warning"] = reason
    return answer


def turns_found(page: FindingPage) -> schemas.TurnsFound:
    answer: schemas.TurnsFound = {
        "success": True,
        "results": [_turn_found(finding) for finding in page.findings],
        "searched_messages": page.searched,
    }
    if page.next_cursor is not None:
        answer["next_cursor"] = page.next_cursor
    return answer


def _turn_found(finding: Finding) -> schemas.TurnFound:
    answer: schemas.TurnFound = {
        "session_id": finding.session_id,
        "turn": finding.turn_id,
        "number": finding.number,
        "role": finding.role,
        "excerpt": finding.excerpt,
        "asked_at": moment(finding.asked_at),
    }
    if finding.content is not None:
        answer["message"] = dict(finding.content)
    return answer


def turn_diff(difference: Difference) -> schemas.TurnDiff:
    answer: schemas.TurnDiff = {
        "success": True,
        "left_tokens": difference.left_tokens,
        "right_tokens": difference.right_tokens,
        "common_tokens": difference.common_tokens,
        "common_messages": difference.common_messages,
        "reused_tokens": difference.reused_tokens,
        "computed_tokens": difference.computed_tokens,
    }
    if difference.left_message is not None:
        answer["left_message"] = difference.left_message.content
    if difference.right_message is not None:
        answer["right_message"] = difference.right_message.content
    if difference.thaw_ms is not None:
        answer["thaw_ms"] = round(difference.thaw_ms, 1)
    return answer


def left_out(result: LeftOut) -> schemas.LeftOut:
    answer: schemas.LeftOut = {
        "success": True,
        "turn": result.turn.id,
        "before": result.before.id,
        "fact_count": result.fact_count,
        "left_out_count": len(result.facts),
        "facts": [_fact(fact) for fact in result.facts[:_MOST_FACTS]],
    }
    if result.tag is not None:
        answer["tag"] = result.tag
    return answer


def _fact(fact: Fact) -> schemas.LeftOutFact:
    role: Literal["user", "assistant"] = "user" if fact.role == "user" else "assistant"
    return {"kind": fact.kind.value, "text": fact.text, "message": fact.message, "role": role}


def _turn_item(
    turn: Turn, words: tuple[str, str] | None = None, habit: Habit | None = None
) -> schemas.TurnItem:
    answer: schemas.TurnItem = {
        "id": turn.id,
        "number": turn.number,
        "state": turn.state.value,
        "author": turn.author,
        "asked_at": moment(turn.asked_at),
    }
    if turn.client:
        answer["client"] = turn.client
    if turn.joined is not None:
        answer["joined"] = Joined(turn.joined).value
    if turn.ended_at is None:
        return answer
    answer["ended_at"] = moment(turn.ended_at)
    answer["relation"] = "begins" if turn.parent is None else "continues" if turn.continues else "branches"
    answer["line"] = "main" if turn.main else "side"
    answer["prompt_tokens"], answer["token_count"] = turn.prompt_tokens, turn.total_tokens
    if turn.parent is not None:
        answer["parent"], answer["parent_at"] = turn.parent, turn.parent_at
    _add_divergence(answer, turn, words, habit)
    if turn.cached_tokens is not None:
        answer["cached_tokens"] = turn.cached_tokens
    if turn.compacts is not None:
        answer["compacts"] = turn.compacts
    if turn.missed is not None:
        answer["missed"] = Miss(turn.missed).value
    if turn.first_token_ms is not None:
        answer["first_token_ms"] = turn.first_token_ms
    if turn.router_decision is not None:
        answer["router_decision"] = turn.router_decision
    return answer


def _add_divergence(
    answer: schemas.TurnItem, turn: Turn, words: tuple[str, str] | None, habit: Habit | None
) -> None:
    if turn.cause:
        answer["cause"] = Cause(turn.cause).value
    if turn.diverged_at is not None:
        answer["diverged_at"] = turn.diverged_at
    if habit is not None:
        answer["habit"] = habit.value
        if (switch := switch_against(habit, turn.client)) is not None:
            answer["habit_switch"] = switch
    if words is not None:
        answer["words"] = {"old": words[0], "new": words[1]}
