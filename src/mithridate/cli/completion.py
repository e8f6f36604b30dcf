"""`mithridate completion`: what a shell needs to complete commands, flags and choices, made from the parsers."""

import argparse
import shlex
from collections.abc import Iterable, Iterator

from mithridate._text import shortened
from mithridate.cli import _shared
from mithridate.cli._flags import Parser

_COMPLETION_EXAMPLES = """examples:
  mithridate completion bash > ~/.local/share/bash-completion/completions/mithridate
  mithridate completion zsh > ~/.zfunc/_mithridate      with fpath=(~/.zfunc $fpath) before compinit in ~/.zshrc
  mithridate completion fish > ~/.config/fish/completions/mithridate.fish
"""
# The words @COMMANDS, @CHOICES and @FLAGS stand for what comes from the parsers.
_BASH = """\
# Completion of mithridate for bash.
_mithridate() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
    local -a found=()
    # Bash makes three words of --flag=value.
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $before == "=" ]]; then
        before="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    if (( COMP_CWORD == 1 )); then
        found=(@COMMANDS)
    else
        case "${COMP_WORDS[1]} $before" in
@CHOICES
            (*) [[ $current == -* ]] && case "${COMP_WORDS[1]}" in
@FLAGS
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "${found[*]}" -- "$current"))
}
complete -o default -F _mithridate mithridate
"""
_ZSH = """\
#compdef mithridate
# Completion of mithridate for zsh.
_mithridate() {
    local current="$words[CURRENT]" before="$words[CURRENT-1]"
    local -a found
    if [[ $current == --*=* ]]; then
        before="${current%%=*}"
        current=""
        compset -P '*='
    fi
    if (( CURRENT == 2 )); then
        found=(@COMMANDS)
    else
        case "$words[2] $before" in
@CHOICES
            (*) [[ $current == -* ]] && case "$words[2]" in
@FLAGS
            esac ;;
        esac
    fi
    if (( $#found )); then
        compadd -a found
    else
        _files
    fi
}
if [[ $funcstack[1] == _mithridate ]]; then
    _mithridate "$@"
else
    compdef _mithridate mithridate
fi
"""
_SHELLS = ("bash", "zsh", "fish")


def add_completion(command: _shared.NewCommand) -> None:
    """Register `mithridate completion`."""
    parser = command(
        help="print what a shell needs to complete commands and flags",
        description="Print a script by which a shell completes commands, flags and their choices.",
        epilog=_COMPLETION_EXAMPLES,
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell that it is for")


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the script."""
    script = script_for(arguments.shell, _shared.new_parser())
    if arguments.json:
        _shared.print_json({"shell": arguments.shell, "script": script})
    else:
        print(script, end="")
    return 0


def script_for(shell: str, parser: Parser) -> str:
    """The script by which a shell completes what a parser knows."""
    if shell == "fish":
        return "".join(f"{line}\n" for line in _fish(parser))
    form = _BASH if shell == "bash" else _ZSH
    commands = parser.commands.items()
    return (
        form.replace("@COMMANDS", shlex.join([*parser.commands, *_flags(parser)]))
        .replace("@CHOICES", "\n".join(line for name, command in commands for line in _choices(name, command)))
        .replace("@FLAGS", "\n".join(_case([name], _flags(command)) for name, command in commands))
    )


def _flags(parser: Parser) -> list[str]:
    return [flag for action in parser.arguments for flag in action.option_strings if flag.startswith("--")]


def _choices(name: str, command: Parser) -> Iterator[str]:
    """What may follow the flags of a command, or the command itself, behind which flags may stand, too."""
    for action in command.arguments:
        if action.choices:
            found = [*map(str, action.choices), *([] if action.option_strings else _flags(command))]
            yield _case([f"{name} {word}" for word in action.option_strings or [name]], found)


def _case(patterns: Iterable[str], found: Iterable[str]) -> str:
    return f"            ({'|'.join(map(shlex.quote, patterns))}) found=({shlex.join(found)}) ;;"


def _fish(parser: Parser) -> Iterator[str]:
    """A line for each command, and for each of its flags."""
    yield "# Completion of mithridate for fish."
    start = "complete -c mithridate -n"
    for name, command in parser.commands.items():
        yield f"{start} __fish_use_subcommand -f -a {name} -d {_words(parser.summaries[name])}"
        within = f"{start} '__fish_seen_subcommand_from {name}'"
        for action in command.arguments:
            known = f" -a {shlex.quote(' '.join(map(str, action.choices)))}" if action.choices else ""
            if not action.option_strings:
                yield from [f"{within} -f{known}"] if known else []
                continue
            forms = "".join(f" -l {f[2:]}" if f.startswith("--") else f" -s {f[1:]}" for f in action.option_strings)
            value = "" if action.nargs == 0 else " -x" if known else " -r"
            yield f"{within}{forms}{value}{known} -d {_words(action.help)}"


def _words(text: str | None) -> str:
    # In fish a backslash counts between single quotes, too.
    return shlex.quote(shortened(text or "").replace("\\", "/"))
