"""Every sentence of README.md stands or falls here, or in the test that is named beside it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from cwm.cli.demo.outcome import Continuation, DemoResult
from cwm.settings import load
from docs.generate import readme

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

# What a sentence promises, and the tests that hold it. Words of the sentence, then file::test.
PROMISES = {
    "shows in a browser what is there: each conversation as the tree of its turns": "tests/transport/console/test_pages.py::test_a_conversation_is_shown_as_its_tree",
    "It changes by itself while agents work": "tests/browser/test_live.py::test_a_list_and_a_tree_show_a_new_turn_without_a_reload",
    "thaws it token for token after the engine was killed": "tests/live/test_main_job.py::test_a_window_continues_token_for_token_after_sigkill",
    "freezes an LLM's context window under a name": "tests/live/test_main_job.py::test_a_window_continues_token_for_token_after_sigkill",
    "clones it into branches": "tests/live/test_main_job.py::test_clones_share_blocks_and_diverge",
    "vLLM and LMCache killed in between": "tests/live/test_demo.py",
    "they prepare the engine": "tests/live/test_demo.py",
    "a session becomes a window": "tests/live/test_readme_session.py",
    "read back from a lower tier": "tests/services/kv/test_store.py::test_a_window_is_durable_only_after_every_chunk_came_back_and_is_flushed_until_then",
    "tokens restored per tier, tokens recomputed": "tests/live/test_main_job.py::test_the_receipt_says_which_tier_each_token_came_from",
    "`partial`, with a warning that says how many tokens": "tests/live/test_main_job.py::test_chunks_that_are_gone_are_computed_again_and_counted",
    "A title request, a sub-agent or a retry under the same session id becomes a branch": "tests/live/test_turns.py::test_a_title_request_leaves_the_conversation_and_the_freeze_takes_that",
    "`cwm turns show` prints what was said": "tests/live/test_turns.py::test_what_was_said_can_be_read_in_the_shell",
    "any turn can be frozen while the session goes on": "tests/live/test_turns.py::test_a_session_that_is_kept_goes_on_and_its_window_thaws_to_the_state_of_the_freeze",
    "A client continues a window with only its new message": "tests/live/test_turns.py::test_a_client_that_never_saw_a_window_goes_on_from_it_token_for_token",
    "frees only blocks that no other window or live session uses": "tests/live/test_main_job.py::test_deleting_a_window_frees_only_blocks_that_nobody_else_uses",
    "loses no window and leaves no pin behind": "tests/live/test_kill_ladder.py::test_a_freeze_killed_at_any_step_is_whole_or_never_was",
    "of a freeze, thaw, clone or delete": "tests/live/test_kill_ladder.py::test_a_delete_killed_at_any_step_deletes_all_of_it_or_nothing",
    "the next gateway finishes or undoes the operation": "tests/live/test_retention.py::test_a_gateway_that_stops_while_it_cannot_store_goes_on_when_it_is_back",
    "Pins that LMCache's coordinator lost are set again": "tests/live/test_outages.py::test_a_coordinator_that_lost_its_state_is_told_every_pin_again",
    "that every tier lost are stored again": "tests/live/test_outages.py::test_a_window_that_every_tier_lost_is_stored_again",
    "`guaranteed`, within the tenant's quota": "tests/live/test_retention.py::test_a_quota_refuses_what_it_cannot_hold_and_the_session_goes_on",
    "It can have a time to live": "tests/live/test_retention.py::test_a_window_is_deleted_when_its_time_is_over",
    "an expired session can still be frozen or deleted": "tests/live/test_retention.py::test_an_idle_session_expires_and_can_still_be_frozen_and_deleted",
    "If a value was changed, truncated": "tests/live/test_integrity.py::test_a_changed_value_is_computed_again",
    "swapped with another one, in Redis or on disk, CWM computes it again": "tests/live/test_integrity.py::test_a_value_under_another_chunks_name_is_computed_again",
    "encrypted and bound to its own key": "tests/deploy/test_chunk_seal.py",
    "A freeze records what the model expects next at many places of the context": "tests/live/test_integrity.py::test_a_thaw_says_that_it_verified_and_what_that_cost_and_may_be_told_not_to",
    "If the KV is wrong, CWM discards it": "tests/live/test_integrity.py::test_wrong_kv_that_opens_is_found_deleted_where_it_is_and_never_continued_from",
    "nothing is discarded before the context, computed afresh, says so too": "tests/live/test_proof.py::test_beside_streams_wrong_kv_is_found_and_right_kv_is_left_alone",
    "CWM does not use the KV of a different engine": "tests/live/test_other_weights.py::test_neither_a_turn_nor_a_thaw_uses_kv_of_the_weights_that_were_there_before",
    "refuses a thaw when the tokenizer or chat template is different": "tests/live/test_deployments.py::test_a_window_whose_tokens_mean_something_else_now_is_refused_with_the_fix",
    "with their tools named `<server>_<tool>`": "tests/transport/mcp/upstreams/test_upstreams.py::test_tools_appear_under_the_upstreams_name_and_answer",
    "Each agent session has its own session with a server that keeps state": "tests/transport/mcp/upstreams/test_upstreams.py::test_each_mcp_session_has_its_own_session_with_a_stateful_upstream",
    "a server that is down affects no other": "tests/transport/mcp/upstreams/test_upstreams.py::test_a_dead_upstream_leaves_the_others_and_is_named",
    "in its own session, a workspace or the tenant": "tests/transport/mcp/context/test_context.py::test_what_one_agent_sets_another_of_its_tenant_gets",
    "Concurrent writers of one key lose no update": "tests/services/context/test_shared_context.py::test_a_hundred_writers_on_two_replicas_lose_no_update",
    "a snapshot is one consistent state": "tests/services/context/test_shared_context.py::test_an_agent_that_reads_a_snapshot_sees_one_state",
    "is still there after the gateway was killed": "tests/transport/mcp/context/test_context_crash.py::test_every_key_that_was_acknowledged_before_a_kill_is_there_after",
    "A result over its budget is stored whole, and the agent gets a preview": "tests/transport/mcp/results/test_budgets.py::test_a_long_text_is_shown_in_part_and_its_pages_put_together_are_the_text",
    "CWM counts the tokens of every result": "tests/adapters/tokens/test_bpe.py",
    "read the stored result page by page, byte for byte": "tests/transport/mcp/results/test_stored_results.py::test_pages_put_together_are_what_the_tool_returned",
    "query it by JMESPath, regular expression, words or lines": "tests/transport/mcp/results/test_stored_results.py::test_questions_are_answered_without_the_rest",
    "pass it to another tool without reading it": "tests/transport/mcp/results/test_real_budgets.py::test_a_300_kb_file_moves_between_two_tools_without_being_read",
    "other agents that ask the same get that answer without a second call": "tests/transport/mcp/upstreams/test_shared_answers.py::test_three_agents_that_read_package_json_cost_one_call",
    "access tokens of an OAuth authorization server": "tests/transport/http/test_oauth.py::test_a_machine_signs_in_with_its_credentials",
    "or API keys (`cwm keys`)": "tests/transport/http/test_authentication.py::test_a_revoked_key_is_refused_at_once_on_every_replica",
    "with scopes for each tool": "tests/transport/mcp/requests/test_permissions.py::test_a_tool_out_of_reach_is_refused_with_the_scopes_it_needs",
    "limited per session, user, tenant and tool": "tests/transport/mcp/middleware/test_limits.py::test_a_session_over_its_limit_is_told_in_the_words_of_the_contract",
    "tokens per user and tenant": "tests/transport/mcp/middleware/test_limits.py::test_a_turn_by_tool_spends_tokens_and_none_is_asked_of_the_engine_when_they_are_used_up",
    "A request is counted once, however many gateways there are": "tests/transport/mcp/middleware/test_limits.py::test_a_request_is_counted_once_however_many_replicas_there_are",
    "are records in a chained audit log of each tenant": "tests/transport/mcp/middleware/test_audit.py::test_an_operation_says_who_from_where_and_how_it_ended",
    "names each record that was changed or removed": "tests/cli/test_audit.py::test_damage_is_told_with_exit_code_1",
    "Prometheus metrics with alert rules and a dashboard": "tests/deploy/test_monitoring.py",
    "OpenTelemetry traces": "tests/traces/test_requests.py",
    "which dependency is down and since when": "tests/transport/endpoints/test_outages.py",
    "An image, a `compose.yaml` and a Helm chart": "tests/deploy/test_compose.py",
    "several gateways run behind a load balancer without sticky sessions": "tests/transport/mcp/listening/test_replicas.py::test_a_client_does_not_notice_that_its_calls_go_round",
    "You can replace them one by one while agents work": "tests/transport/mcp/listening/test_replicas.py::test_no_client_sees_that_three_replicas_are_replaced_one_by_one",
    "Clients of both MCP eras (with and without protocol sessions) are notified of changes": "tests/transport/mcp/listening/test_replicas.py::test_what_changes_on_one_replica_is_told_on_the_other_in_both_eras",
    "tenants never share KV": "tests/live/test_main_job.py::test_a_window_of_one_tenant_brings_another_tenant_no_cached_token",
    "It also changes with the engine's identity": "tests/domain/test_cache_salt.py",
    "A client that sends no session id is recorded in the session that its own id or what was said leads to": "tests/transport/llm/test_conversations.py::test_a_conversation_without_a_name_is_found_by_its_last_answer",
    "prints its configuration for both faces, and checks each with one request": "tests/cli/test_connect.py::test_each_client_gets_its_configuration_and_a_check_of_each_face",
    "`--write` writes it for Claude Code, Codex, opencode and pi, after showing what changes in their files": "tests/cli/test_connect.py::test_writing_keeps_what_a_file_has_and_shows_what_changes",
    "An agent that speaks only MCP": "tests/live/test_mcp.py",
    "names the fix for each fault": "tests/live/test_doctor.py",
    "works with a vLLM that has no LMCache, and says so": "tests/live/test_deployments.py::test_without_lmcache_windows_keep_tokens_and_everything_says_so",
    "token for token, in float32": "tests/live/test_main_job.py::test_a_window_continues_token_for_token_after_sigkill",
    "every thaw computes the tail again, which is one block at most": "tests/live/test_block_end.py::test_a_freeze_has_nothing_computed_and_the_thaw_continues_token_for_token",
    "listens on loopback only, unless": "tests/test_settings.py::test_an_address_beyond_loopback_is_refused_without_authentication",
    "`cwm stdio` serves the same tools to a client that starts it": "tests/cli/test_stdio.py::test_a_client_of_either_era_lists_and_calls_and_leaves_no_process",
    "and exits when its client does": "tests/transport/mcp/test_stdio.py::test_a_client_that_closes_standard_input_during_a_call_ends_the_server",
    "The gateway applies a changed `cwm.yaml` while it runs": "tests/settings/test_watch.py::test_a_file_saved_by_rename_is_applied_each_time",
    "An invalid file changes nothing, and the log says why": "tests/settings/test_watch.py::test_a_bad_file_keeps_what_is_in_force_and_the_next_good_one_is_applied",
    "An environment variable overrides `cwm.yaml`, which overrides the default": "tests/test_settings.py::test_the_environment_wins_over_the_file_and_the_file_over_the_default",
}


@pytest.mark.parametrize("words", PROMISES)
def test_a_promise_of_the_readme_is_held_by_a_test_that_exists(words: str) -> None:
    assert words in " ".join(README.split())
    path, _, name = PROMISES[words].partition("::")
    tree = ast.parse((ROOT / path).read_text())
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in defined if name else any(found.startswith("test_") for found in defined)


def test_the_demo_table_has_the_rows_that_the_demo_prints_and_its_figures_agree() -> None:
    shown = re.findall(r"^ {6}(\S.*?) {2,}(.*)$", README, re.MULTILINE)
    answer = Continuation((1,), (2,), "x", 0)
    outcome = DemoResult(
        "m", ("vllm",), ("vllm",), "float32", 6633, 64, 103, 303762759, True, 801, 30000, 333, "exact", 864, 9367, 6592,
        41, 6592, {"disk": 6592}, answer, answer,
    )  # fmt: skip
    assert dict(shown) == dict(outcome.facts())


def test_its_picture_is_light_to_load() -> None:
    (name,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    picture = (ROOT / name).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) <= 150_000


def test_the_generated_tables_are_current() -> None:
    assert readme.renewed(README) == README, "run .venv/bin/python -m docs.generate.readme"


def test_the_settings_that_it_lists_are_the_essential_ones() -> None:
    listed = re.findall(r"^\| `CWM_(\w+)` \|", README, re.MULTILINE)
    assert {name.lower() for name in listed} == readme.ESSENTIAL
    assert len(listed) == 12


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make ([a-z]+)", README))))
def test_every_make_target_of_the_readme_exists(target: str) -> None:
    dry = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


def test_the_addresses_are_those_of_the_default_settings() -> None:
    http = load({}).http
    addresses = set(re.findall(r"http://[\w.]+:\d+", README.split("## Settings")[0]))
    assert addresses == {f"http://{http.host}:{http.port}"}


def test_no_committed_file_names_a_package_index() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    index = re.compile(r"(index-url|find-links)\s+https?://|https?://\S*/simple/|https?://\S*\.whl")
    for name in tracked:
        if name != "tests/test_readme.py":
            assert not index.search((ROOT / name).read_text(errors="replace")), name
