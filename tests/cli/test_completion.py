"""Completion: the script knows every command, option and problem, and a real shell offers them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from convt3d.cli import main as cli
from convt3d.cli.completion import SHELLS, _commands, _options
from convt3d.spec.problems import PROBLEMS, short_name


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_it(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    text = script(capsys, shell)
    for name, command in _commands(cli._parser()).items():
        assert name in text
        for option in (option for action in _options(command) for option in action.option_strings):
            assert (f"-l {option[2:]}" if shell == "fish" and option.startswith("--") else option[1:]) in text
    for slug in PROBLEMS:
        assert short_name(slug) in text


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("convt3d ex", "explain export"),
        ("convt3d run max", "max-max-sum"),
        ("convt3d run max-max-sum --dtype i", ""),
        ("convt3d run max-max-sum --dtype b", "bfloat16"),
        ("convt3d bench --suite s", "seeds small scaling"),
        ("convt3d completion f", "fish"),
    ],
)
def test_bash_offers_what_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, offered: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    file = tmp_path / "completion.bash"
    file.write_text(script(capsys, "bash"), encoding="utf-8")
    typed = words.split()
    asked = f'source {file}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _convt3d; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (offered, "")
