"""`convt3d completion SHELL`: a script that completes commands, options, their choices and names of problems.

It is written from the parser itself, so it cannot lag behind it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from ..spec.problems import PROBLEMS, short_name
from .report import OK, emit

SHELLS = ("bash", "zsh", "fish")
_USE = {
    "bash": 'eval "$(convt3d completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(convt3d completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "convt3d completion fish | source   # in config.fish",
}


def completion(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    commands = _commands(parser)
    script = _fish(commands) if args.shell == "fish" else _bash(commands)
    start = "autoload -U +X bashcompinit && bashcompinit\n" if args.shell == "zsh" else ""
    emit(f"# {_USE[args.shell]}\n{start}{script}")
    return OK


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return found.choices


def _options(command: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in command._actions if action.option_strings]


def _values(action: argparse.Action) -> list[str]:
    """What may stand for it, where that is known; files are what a shell offers anyway."""
    if str(action.metavar).partition(" ")[0] == "SLUG":
        return [short_name(slug) for slug in PROBLEMS]
    return list(map(str, action.choices or ()))


def _words(command: argparse.ArgumentParser) -> Iterator[str]:
    for action in command._actions:
        yield from action.option_strings or _values(action)


def _bash(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    after = [
        f'        "{name} {option}") words="{" ".join(_values(action))}" ;;'
        for name, command in commands.items()
        for action in _options(command)
        for option in action.option_strings
        if _values(action)
    ]
    within = [f'        "{name} "*) words="{" ".join(_words(command))}" ;;' for name, command in commands.items()]
    cases = "\n".join([*after, *within])
    return f"""_convt3d() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} words="{" ".join(commands)}"
    if [ "$COMP_CWORD" -gt 1 ]; then
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _convt3d convt3d"""


def _fish(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = [f"complete -c convt3d -n __fish_use_subcommand -f -a '{' '.join(commands)}'"]
    for name, command in commands.items():
        seen = f"complete -c convt3d -n '__fish_seen_subcommand_from {name}'"
        for action in command._actions:
            values = _values(action)
            given = f" -x -a '{' '.join(values)}'" if values else ""
            flags = "".join(
                f" -l {option[2:]}" if option.startswith("--") else f" -s {option[1:]}"
                for option in action.option_strings
            )
            takes = " -r" if action.option_strings and action.nargs is None and not values else ""
            if flags or values:
                lines.append(f"{seen}{flags}{takes}{given if flags else given.replace(' -x', '')}")
    return "\n".join(lines)
