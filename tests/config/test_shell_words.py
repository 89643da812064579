"""The text of a command is refused where a shell would act on it. A real bash is the judge."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.config.shell_words import for_a_shell
from clusterdp.errors import ConfigError
from clusterdp.submission.render.script_spec import words_of

# Their words are the same to bash and to us.
PLAIN = [
    "python -c 'import x; x.main()'",
    "train --name 'a|b'",
    "awk '{print $1}'",
    "python train.py ~trainer.logger",
    'train --filter "a > b && c; d"',
    "train '$HOME' \\$HOME \"\\$HOME\" 'it'\\''s' a\\;b '`id`' \"\\`id\\`\"",
    "python train.py lr=0.1 trainer.path=~/x --data=~/x x~/y",
    "curl 'https://a.org/?x=1&y=2' \"https://a.org/?x=1&y=2\"",
    "train x[0] a* b?c [ab]",
    "train foo$ $/x 100% a@b a#b !x ^y",
    "'A=1' x",
    "A\\=1 x",
    "env A=1 python train.py",
    "train \\\n  --lr 0.1 \\\n  --name 'x y'",
    'train "a\'b" "c\\"d" \'e"f\'',
    "train \\~/x '~' \"~/x\" '#' a\\ #",
    "1A=2 x",
]
# bash acts on this piece of them.
FOR_A_SHELL = [
    ("cd src && python train.py", "'&&'"),
    ("python a.py || true", "'||'"),
    ("python train.py | tee log.txt", "'|'"),
    ("python train.py > out", "'>'"),
    ("python train.py >> out", "'>>'"),
    ("python train.py 2>&1", "'>'"),
    ("python train.py < in", "'<'"),
    ("cd src; python train.py", "';'"),
    ("python train.py &", "'&'"),
    ("curl https://a.org/?x=1&y=2", "'&'"),
    ("python train.py $HOME/y", "'$HOME'"),
    ('python train.py "$HOME/y"', "'$HOME'"),
    ("python train.py $1 x", "'$1'"),
    ("python train.py $(id -u)", "'$('"),
    ('python train.py "$(id -u)"', "'$('"),
    ("python train.py `id -u`", "'`'"),
    ('python train.py "`id -u`"', "'`'"),
    ("python train.py $'a\\tb'", '"$\'"'),
    ("python train.py ~/x", "'~'"),
    ("python ~ x", "'~'"),
    ("python train.py data=~/x", "'data=~'"),
    ("CUDA_VISIBLE_DEVICES=0 python train.py", "'CUDA_VISIBLE_DEVICES=0'"),
    ("A='x y' B=2 train", "'A=x y'"),
    ("python train.py # the baseline", "'# the baseline'"),
    ("cd src\npython train.py\n", "'python train.py'"),
    ("a '\\' $HOME", "'$HOME'"),
]


def words_in_bash(text: str, folder: Path) -> list[str] | None:
    """As a program gets them that bash starts; None if the line does not run."""
    show = "printf '%s\\0' \"$@\""
    words = ["bash", "-c", f"set -- {text}\n{show}"]
    done = subprocess.run(words, cwd=folder, env={"HOME": "/h", "PATH": "/usr/bin:/bin"}, capture_output=True)
    return None if done.returncode or done.stderr else done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("text", PLAIN)
def test_command_is_accepted_if_bash_leaves_its_words_unchanged(text: str, tmp_path: Path) -> None:
    assert words_in_bash(text, tmp_path) == words_of(text, "command")
    assert for_a_shell(text) is None
    assert config.from_mapping({"command": text}).command == text


@pytest.mark.parametrize(("text", "piece"), FOR_A_SHELL)
def test_command_with_shell_syntax_is_refused(text: str, piece: str, tmp_path: Path) -> None:
    in_front = re.match(r"[A-Z]\w*=", text)  # to `set`, it is a word as any other
    assert in_front or words_in_bash(text, tmp_path) != words_of(text, "command")
    with pytest.raises(ConfigError, match=rf"^Python: command: {re.escape(piece)} ") as caught:
        config.from_mapping({"command": text})
    assert "\n" not in str(caught.value)
    assert config.from_mapping({"command": words_of(text, "command")})


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("CUDA_VISIBLE_DEVICES=0 python train.py", "Write launch.env: {CUDA_VISIBLE_DEVICES: '0'}, and let"),
        ("train $HOME/x", "Write ${oc.env:HOME}, which is filled in at submit. Or put the lines below script:"),
        ("train ~/x", "Write ${oc.env:HOME}, or the path."),
        ("a && b", "Put the lines below script:, which bash reads; if the program is to get it, put it in single"),
    ],
)
def test_command_with_shell_syntax_is_refused_with_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.from_mapping({"command": text})
    assert remedy in str(caught.value)


@pytest.mark.parametrize("value", ["a&b", "$HOME", "`id`", "a | b", "~/x", "A=1"])
def test_interpolated_params_may_hold_shell_syntax(value: str) -> None:
    found = config.from_mapping({"command": "echo \"${params.x}\" ${params.x} '${params.x}'", "params": {"x": value}})
    assert found.command == f"echo \"{value}\" {value} '{value}'"
    assert config.from_mapping({"command": "${params.x}", "params": {"x": value}}).command == value
    assert config.from_mapping({"command": "echo ${oc.env:NONE,${params.x}}", "params": {"x": value}})
    again = config.from_resolved({"command": found.command, "params": {"x": value}}, ["params.x=1"])
    assert again.command == found.command


def test_interpolated_value_does_not_hide_shell_syntax_after_it() -> None:
    with pytest.raises(ConfigError, match="command: '&&' is for a shell"):
        config.from_mapping({"command": "echo ${params.x} && b", "params": {"x": "'"}})
    with pytest.raises(ConfigError, match="command line: command: '&&' is for a shell"):
        config.from_resolved({"command": "echo '&&'"}, ["command=a && b"])


def test_each_swept_command_is_checked_for_shell_syntax() -> None:
    from clusterdp.config.elements import resolve_sweep

    points = {"command": "a", "sweep": {"points": [{"command": "echo 'a|b'"}, {"command": "echo a|b"}]}}
    with pytest.raises(ConfigError, match=r"command: '\|' is for a shell"):
        resolve_sweep(config.read(points))


def test_secret_assigned_in_front_of_a_command_is_not_printed() -> None:
    with pytest.raises(ConfigError, match=r"command: contains a secret.*launch\.secrets") as caught:
        config.from_mapping({"command": "WANDB_API_KEY=f00f00f00f00f00f python train.py"})
    assert "f00f" not in str(caught.value)
