"""Guards, taken out one at a time: the tests of a fault must fail then.

Run by name, `python -m tests.guards [PART OF A ROW]...`; it takes some minutes, and works on a copy of
the project. That each guard's text is still in its file is checked by `test_faults.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("flhe", "strategies", "sim", "apps", "tests", "docs", "pyproject.toml", "README.md")
LINKED = ("strategies", "sim", "apps")
"""Packages that are beside `flhe` and imported from inside of it."""

LIMIT_S = 300.0
"""Seconds that the tests of one guard may take."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A line or two without which a fault goes unnoticed.

    Parameters
    ----------
    row : str
        The fault, as docs/faults.md says what happens.
    file : str
        Where the guard is.
    text : str
        It, as it stands there once.
    without : str
        What stands there when it is gone.
    tests : tuple of str
        Tests that must fail then, below `tests/`.
    """

    row: str
    file: str
    text: str
    without: str
    tests: tuple[str, ...]

    @property
    def source(self) -> str:
        """The file as it is."""
        return (ROOT / self.file).read_text(encoding="utf-8")

    @property
    def removed(self) -> str:
        """The file without the guard."""
        return self.source.replace(self.text, self.without)


GUARDS = (
    # --- somebody crashes ---
    Guard(
        "Killed between the keys of a new epoch and its session",
        "flhe/mods/node.py",
        "opened, ranged = max(floor.opened, 0 if model is None else model.round), floor.ranged",
        "opened, ranged = 0, 0",
        ("mods/test_dishonest_server.py::test_a_round_has_one_sum_across_a_crash",),
    ),
    Guard(
        "Killed after the claim, before or while encrypting",
        "flhe/rounds/session.py",
        "        claim(slot.round, slot.attempt)\n        return sealer.encrypt(",
        "        return sealer.encrypt(",
        ("mods/test_rounds.py::test_a_crash_between_claim_and_sending",),
    ),
    Guard(
        "Killed between a sum and what belongs to it",
        "strategies/ledger.py",
        "self.ranges[total.slot.round] = to_bytes(total)\n        self.save()",
        "self.ranges[total.slot.round] = to_bytes(total)",
        ("strategies/test_ledger.py::test_mean_squares_are_on_disk_before_anybody_is_sent_them",),
    ),
    # --- messages ---
    Guard(
        "A message of another run or number is replayed",
        "flhe/keys/messages.py",
        "if name in expect and getattr(self, name) != expect[name]:",
        "if False:",
        ("mods/test_agreement_stages.py::test_a_message_of_another_run_or_epoch",),
    ),
    Guard(
        "A round number that is past, or far ahead",
        "flhe/rounds/session.py",
        "if not model.round < round_ <= last + MAX_AHEAD:",
        "if False:",
        ("mods/test_rounds.py::test_the_round_before_is_not_trained_again",),
    ),
    # --- run, roster, version, policy ---
    Guard(
        "The server speaks another version",
        "flhe/records.py",
        "if spoken == PROTOCOL:",
        "if spoken:",
        ("mods/test_receipts.py::test_a_server_of_another_version_is_refused_by_name",),
    ),
    Guard(
        "The server changes the terms under way",
        "flhe/mods/node.py",
        "if kept is not None and kept[1] != announced:",
        "if False:",
        (
            "mods/test_agreement_stages.py"
            "::test_terms_changed_between_advertise_and_the_first_round",
            "mods/test_agreement_stages.py::test_terms_changed_under_way",
        ),
    ),
    Guard(
        "A roster is pinned anew in the middle of a run",
        "flhe/mods/node.py",
        "if pinned is not None and pinned.hash != agreed.roster.hash:",
        "if False:",
        ("mods/test_agreement_stages.py::test_a_roster_pinned_anew_in_the_middle_of_a_run",),
    ),
    Guard(
        "A group, or a sum, of fewer than roster or node ask for",
        "flhe/rounds/session.py",
        "if len(total.senders) < need:",
        "if False:",
        ("mods/test_rounds.py::test_too_few_senders",),
    ),
    # --- keys and views ---
    Guard(
        "The server swaps a member's X25519 key",
        "flhe/keys/messages.py",
        "    verify(header.sender, signature, _signed(header, payload_sha256))",
        "    _signed(header, payload_sha256)",
        ("keys/test_epoch.py::test_server_swaps_an_ephemeral_key",),
    ),
    Guard(
        "The server shows two members different lists",
        "flhe/keys/epoch.py",
        "if not hmac.compare_digest(t2, state.t2):",
        "if False:",
        ("keys/test_epoch.py::test_server_shows_two_sets_of_shares",),
    ),
    Guard(
        "A member gives each peer another secret",
        "flhe/keys/epoch.py",
        "if not hmac.compare_digest(mac, _mac(key, state.t2, sender)):",
        "if False:",
        ("keys/test_epoch.py::test_a_member_who_gives_each_peer_another_secret",),
    ),
    Guard(
        "Two results of one round are told to different members",
        "flhe/keys/receipts.py",
        "if receipt.history != slot.history:",
        "if False:",
        ("mods/test_receipts.py::test_a_server_that_tells_two_stories_is_named_one_round_later",),
    ),
    Guard(
        "Receipts are left out, forged or of another attempt",
        "flhe/keys/receipts.py",
        "    Envelope(header, _payload(slot, receipt), signature).verify({}, senders=[sender])\n",
        "",
        ("keys/test_receipts.py::test_a_receipt_of_another_member_or_attempt_or_changed",),
    ),
    # --- sums ---
    Guard(
        "1 is added to one coordinate",
        "flhe/rounds/verdict.py",
        "if not all(fits):",
        "if False:",
        ("strategies/test_cheating_sums.py::test_another_sum_is_refused_by_all[flashe-one more]",),
    ),
    Guard(
        "A tag is changed",
        "flhe/schemes/sum_tags.py",
        "rest % Q == 0 and 0 <= tag < most",
        "0 <= tag < most",
        ("schemes/test_sum_tags.py::test_a_tag_that_changed",),
    ),
    # --- twice ---
    Guard(
        "A second sum of a round",
        "flhe/keys/store.py",
        "elif not hmac.compare_digest(kept_hash, result_hash):",
        "elif False:",
        ("mods/test_rounds.py::test_a_second_sum_of_a_round_opens_nothing",),
    ),
    Guard(
        "A second sum comes as a checkpoint",
        "flhe/mods/follow.py",
        "if model.round == own.round > 0 and model.history != own.history:",
        "if False:",
        ("mods/test_dishonest_server.py::test_no_second_sum_comes_as_a_checkpoint",),
    ),
    Guard(
        "A mask is asked for twice",
        "flhe/keys/store.py",
        "        kept.check_rising(after.mark)\n",
        "",
        ("keys/test_store.py::test_attempts_only_rise",),
    ),
    Guard(
        "A second set of survivors, or an update after one was signed (SASH)",
        "flhe/mods/node.py",
        "if last[0] == round_ and last[2] == CONSIST:",
        "if False:",
        ("mods/test_survivors.py::test_after_signing_nothing_is_encrypted_in_that_round",),
    ),
    Guard(
        "The same update with noise, again and again, to take the mean",
        "flhe/mods/node.py",
        "if most and before >= most:",
        "if False:",
        (
            "strategies/test_selected_rounds.py"
            "::test_a_node_sends_as_many_noisy_updates_as_its_policy_allows",
        ),
    ),
    # --- plaintext ---
    Guard(
        "A server without flhe asks to train",
        "flhe/mods/he_mod.py",
        'policy.check_scheme("plain")',
        "pass",
        ("mods/test_refusals.py::test_a_plain_message_is_refused_and_the_app_does_not_run",),
    ),
    Guard(
        "A plain message in the middle of an encrypted run, where plain ones are allowed",
        "flhe/mods/he_mod.py",
        "if node.encrypted_before():",
        "if False:",
        ("mods/test_refusals.py::test_plain_is_refused_once_a_session_began",),
    ),
    # --- the state directory ---
    Guard(
        "The disk is full before the claim",
        "flhe/keys/files.py",
        'f"cannot {what} in the state directory: {error.strerror}"',
        'f"cannot {what} in the state directory: {error}"',
        ("keys/test_store.py::test_a_full_disk_is_ours",),
    ),
    Guard(
        "The disk is full at any write of a node",
        "flhe/mods/he_mod.py",
        "except Exception:  # a full disk must not become the answer",
        "except KeyError:",
        ("strategies/test_full_disks.py::test_a_node_whose_disk_is_full_loses_a_round_at_most",),
    ),
    Guard(
        "The directory or a file is open to others",
        "flhe/keys/files.py",
        "if status.st_mode & 0o077:",
        "if False:",
        ("keys/test_store.py::test_a_directory_open_to_others",),
    ),
    Guard(
        "The directory belongs to another user",
        "flhe/keys/files.py",
        "if status.st_uid != os.geteuid():",
        "if False:",
        ("keys/test_store.py::test_a_directory_of_another_user",),
    ),
    Guard(
        "A link, a file or a FIFO stands in the place of the directory, a file or a log",
        "flhe/keys/files.py",
        "SAFE = os.O_CLOEXEC | os.O_NOFOLLOW",
        "SAFE = os.O_CLOEXEC",
        ("mods/test_refusals.py::test_a_link_in_the_place_of_the_log_is_not_followed",),
    ),
    Guard(
        "Two processes use one state directory",
        "flhe/keys/store.py",
        "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        ("keys/test_store.py::test_lock_excludes_and_waits",),
    ),
    Guard(
        "The directory is copied",
        "flhe/keys/keyfile.py",
        "if stamp != self.stamp:",
        "if False:",
        ("mods/test_rounds.py::test_a_copy_of_the_state_directory_encrypts_nothing",),
    ),
    Guard(
        "Somebody tidies up: claims, or records of openings, are gone",
        "flhe/keys/store.py",
        "            had = keys.exists()\n            files.erase(keys)\n",
        "            had = keys.exists()\n",
        ("mods/test_rounds.py::test_no_claims_directory_no_keys",),
    ),
    Guard(
        "The machine starts anew, perhaps from an older disk",
        "flhe/keys/keyfile.py",
        "if boot != self.boot:",
        "if False:",
        ("keys/test_store.py::test_keys_from_before_a_restart_of_the_machine_encrypt_nothing",),
    ),
    # --- encodings ---
    Guard(
        "A message is longer than its kind may be",
        "flhe/keys/canonical.py",
        "if len(data) > max_bytes:",
        "if False:",
        ("keys/test_canonical.py::test_length_is_checked_first",),
    ),
    Guard(
        "A second encoding of a value that was signed or hashed",
        "flhe/keys/canonical.py",
        "if again != data:",
        "if False:",
        ("keys/test_canonical.py::test_refused",),
    ),
    # --- secrets ---
    Guard(
        "An exception of the app has patient data in its text",
        "flhe/mods/he_mod.py",
        "Error(code=refusal.code, reason=refusal.slug)",
        "Error(code=refusal.code, reason=repr(error))",
        ("mods/test_refusals.py::test_an_exception_of_the_app_stays_at_home",),
    ),
    Guard(
        "An exception that nobody thought of",
        "flhe/mods/he_mod.py",
        "what = str(error) if isinstance(error, FlheError) else type(error).__name__",
        "what = str(error)",
        ("mods/test_refusals.py::test_what_is_logged_on_the_console_names_no_secret",),
    ),
    # --- waits ---
    Guard(
        "A process holds the state directory for ever",
        "flhe/keys/store.py",
        "if time.monotonic() >= until:",
        "if False:",
        ("mods/test_full_disk.py::test_a_second_process_waits_so_long_and_says_so",),
    ),
    Guard(
        "A node never answers",
        "strategies/grid.py",
        'if timeout is None or not timeout < float("inf"):',
        "if timeout is None:",
        ("strategies/test_stream_grid.py::test_a_bound_is_a_number_of_seconds",),
    ),
    # --- values, members, the app ---
    Guard(
        "The app's update holds NaN or infinity",
        "flhe/coding/clip.py",
        '    raise NotFiniteError(\n        "the update holds NaN or infinity; '
        'lower the learning rate or clip gradients"\n    )',
        "    return",
        ("mods/test_refusals.py::test_an_answer_that_cannot_be_sealed",),
    ),
    Guard(
        "It sends an update in another's name, or a stolen one",
        "strategies/federation.py",
        "if part.senders != (agreed.rank(node),):",
        "if False:",
        ("strategies/test_he_strategy.py::test_a_forged_update_is_left_out_and_named",),
    ),
    Guard(
        "It replies without arrays, metrics or a whole number of examples",
        "flhe/mods/training.py",
        "if len(arrays) != 1 or len(answer.metric_records) != 1:",
        "if False:",
        ("mods/test_refusals.py::test_an_answer_that_cannot_be_sealed",),
    ),
    # --- what does not last ---
    Guard(
        "It does so in the middle of an agreement",
        "flhe/mods/node.py",
        "if self.store.boot and boot != self.store.boot:",
        "if False:",
        (
            "mods/test_lasting.py::test_an_agreement_on_a_disk_that_was_put_back_is_not_finished_again",
        ),
    ),
    Guard(
        "A second federation is begun from the same model, for a second sum of each round",
        "flhe/keys/federations.py",
        "if most and count >= allowed:",
        "if False:",
        ("mods/test_lasting.py::test_a_server_begins_as_many_federations_as_a_node_allows",),
    ),
    Guard(
        "A coordinate is taken out of a sparse sum, to learn whether it is zero",
        "flhe/rounds/verdict.py",
        "bounds = [support.digest() for support in total.supports]",
        "bounds = [b''] * len(total.supports)",
        ("mods/test_lasting.py::test_no_coordinate_is_taken_out_of_a_sparse_sum",),
    ),
    Guard(
        "An epoch's marks are gone with its keys: the site left and came back, or the file is damaged",
        "flhe/mods/node.py",
        "marks = marks.raised(here)",
        "pass",
        ("mods/test_lasting.py::test_a_round_that_may_have_been_signed_stays_so",),
    ),
)


def copy_to(place: Path) -> None:
    """Copy the project, so that the copy is what is imported there."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            skipped = shutil.ignore_patterns(*LINKED) if name == "flhe" else None
            shutil.copytree(source, place / name, ignore=skipped)
        else:
            shutil.copy2(source, place / name)
    for name in LINKED:
        (place / "flhe" / name).symlink_to(Path("..") / name)
    asked = "import flhe, flhe.strategies; print(flhe.__file__, flhe.strategies.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=place, check=True, capture_output=True, text=True
    )
    for file in done.stdout.split():
        if not Path(file).is_relative_to(place):
            raise SystemExit(f"the copy is not what is imported, but {file}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tests said in the copy.

    Parameters
    ----------
    code : int
        Exit code of pytest; 1 if tests failed.
    said : str
        What one of them failed with.
    seconds : float
        How long they took.
    """

    code: int
    said: str
    seconds: float


def run(place: Path, tests: tuple[str, ...]) -> Outcome:
    """Run tests in the copy."""
    began = time.monotonic()
    names = [f"tests/{test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(-1, f"no end after {LIMIT_S:g} s", time.monotonic() - began)
    lines = done.stdout.splitlines()
    failures = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    said = (failures or lines[-1:] or [done.stderr[-200:]])[0]
    return Outcome(done.returncode, said, time.monotonic() - began)


def try_without(place: Path, guard: Guard) -> Outcome:
    """Run a guard's tests in the copy while it is gone there."""
    path = place / guard.file
    source = path.read_text(encoding="utf-8")
    if source.count(guard.text) != 1:
        raise SystemExit(f"{guard.file}: the guard's text is not there once: {guard.text!r}")
    path.write_text(guard.without.join(source.split(guard.text)), encoding="utf-8")
    try:
        return run(place, guard.tests)
    finally:
        path.write_text(source, encoding="utf-8")


def main(parts: list[str]) -> int:
    """Try all guards, or those whose row has one of `parts` in it; how many go unnoticed."""
    guards = [g for g in GUARDS if not parts or any(part in g.row for part in parts)]
    with tempfile.TemporaryDirectory(prefix="flhe-guards-") as folder:
        place = Path(folder).resolve()
        copy_to(place)
        whole = run(place, tuple(dict.fromkeys(test for g in guards for test in g.tests)))
        print(f"all guards there: {whole.said} ({whole.seconds:.0f} s)", flush=True)
        if whole.code != 0:
            return 1
        unnoticed = 0
        for number, guard in enumerate(guards, 1):
            outcome = try_without(place, guard)
            noticed = outcome.code == 1
            unnoticed += not noticed
            word = "noticed" if noticed else "UNNOTICED"
            print(
                f"{number:2}/{len(guards)} {word:9} {outcome.seconds:4.0f} s  {guard.row[:60]:60}  "
                f"{guard.file}: {guard.text.strip()[:50]!r}: {outcome.said[:90]}",
                flush=True,
            )
    print(f"{len(guards) - unnoticed} of {len(guards)} guards are missed when they are gone")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
