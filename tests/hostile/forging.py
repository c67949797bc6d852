"""Run folders as someone else might send them: every checksum fits, and what they say is chosen to harm."""

from __future__ import annotations

import tomli_w

from noback.journal import Journal, Record, Seal, read_journal


def records_in_order(contents) -> list[Record]:
    """A journal's records as they were written."""
    found: list[Record] = []
    for step in range(len(contents.steps) + 1):
        found += [one for one in contents.evaluations if one.step == step]
        found += [one for one in contents.eps_changes if one.step == step]
        found += contents.steps[step : step + 1]
    return found + ([Seal(len(contents.steps))] if contents.sealed else [])


def forge(folder, *, header=None, records=None) -> None:
    """Write a run's journal and run.toml anew, with what these functions make of its header and records."""
    contents = read_journal(folder / "journal")
    changed = dict(contents.header)
    if header is not None:
        header(changed)
    kept = records_in_order(contents)
    (folder / "journal").unlink()
    journal = Journal.create(folder / "journal", changed)
    for record in kept if records is None else records(kept):
        journal.append(record)
    (folder / "run.toml").write_text(tomli_w.dumps(changed["config"]))
