"""Where our own files lie."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.base.private_folders import state_folder


def test_what_stays_lies_in_the_users_own_folder() -> None:
    assert state_folder({"XDG_STATE_HOME": "/state"}) == Path("/state/ddpdoctor")
    assert state_folder({"XDG_STATE_HOME": "none", "HOME": "/home/ada"}) == Path("/home/ada/.local/state/ddpdoctor")
