"""Whatever stands in a config reaches the program unchanged, or is refused. A real bash is the judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.errors import ConfigError
from clusterdp.submission.render.script import directive
from tests.submission.conftest import HOSTILE, RunScript

TELL = "import json,os,sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['TELL'], 'w'))"


# In a config `${` is OmegaConf's, and `\\${` is a `${` for the program.
WRITTEN = [text.replace("${", "\\${") for text in HOSTILE]


def told(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    argv, environ = json.loads((tmp_path / "told").read_text())
    return argv, environ


def test_command_words_reach_the_program_unchanged(run_script: RunScript, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TELL, *WRITTEN]
    done = run_script({"command": command}, TELL=str(tmp_path / "told"))
    assert done.returncode == 0, done.stderr
    assert told(tmp_path)[0] == HOSTILE
    assert not (tmp_path / "pwned").exists()


def test_launch_env_values_reach_the_program_unchanged(run_script: RunScript, tmp_path: Path) -> None:
    env = {f"VALUE_{i}": text for i, text in enumerate(WRITTEN)}
    done = run_script({"command": [sys.executable, "-c", TELL], "launch": {"env": env}}, TELL=str(tmp_path / "told"))
    assert done.returncode == 0, done.stderr
    environ = told(tmp_path)[1]
    assert [environ[name] for name in env] == HOSTILE
    assert not (tmp_path / "pwned").exists()


def test_command_string_is_split_into_words_without_expansion(run_script: RunScript, tmp_path: Path) -> None:
    done = run_script(
        {"command": f"{sys.executable} -c '{TELL.replace(chr(39), chr(34))}' '$HOME' * '`id`' 'a  b'"},
        TELL=str(tmp_path / "told"),
    )
    assert done.returncode == 0, done.stderr
    assert told(tmp_path)[0] == ["$HOME", "*", "`id`", "a  b"]


def test_multi_line_script_of_the_config_runs_in_bash_unchanged(run_script: RunScript, tmp_path: Path) -> None:
    script = """
x="$HOME"; echo "$x" >out
if true; then
  echo "it's" >>out
fi
END_OF_SCRIPT() { echo ended >>out; }
END_OF_SCRIPT"""
    done = run_script({"script": script})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/code/out").read_text().splitlines() == [str(tmp_path), "it's", "ended"]


def test_script_line_equal_to_the_heredoc_delimiter_does_not_end_the_script(
    run_script: RunScript, tmp_path: Path
) -> None:
    done = run_script({"script": "cat >out <<X\nEND_OF_SCRIPT\nX\ntouch reached"})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/code/out").read_text() == "END_OF_SCRIPT\n"
    assert (tmp_path / "run/code/reached").exists()


@pytest.mark.parametrize("name", ["step", "MASTER_ADDR", "RANK", "program", "address", "CLUSTERDP_RUN_DIR"])
def test_launch_env_refuses_variables_set_by_the_batch_script(run_script: RunScript, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"launch\.env\.{name}: is a variable that the script sets"):
        run_script({"command": "true", "launch": {"env": {name: "x"}}})


def test_shell_options_of_launch_setup_do_not_end_the_batch_script(run_script: RunScript) -> None:
    setup = {"launch": {"setup": "set -euo pipefail\nexport FROM_SETUP=1"}, "restart": {"max_crashes": 0}}
    done = run_script({"command": ["bash", "-c", "exit 3"], **setup})
    assert done.returncode == 3
    assert "for the last time" in done.stderr  # -e would have ended the script before it said so


@pytest.mark.parametrize("text", HOSTILE)
def test_sbatch_directive_keeps_any_value_and_refuses_line_breaks(text: str) -> None:
    if "\n" in text:
        with pytest.raises(ConfigError, match="--comment"):
            directive("comment", text)
        return
    words = directive("comment", text)
    assert "\n" not in words
    assert read_directive(words) == f"--comment={text}"


def read_directive(line: str) -> str:
    """As sbatch 22.05 reads the words after #SBATCH: a # outside quotes ends the line, a backslash escapes in them.
    (tests/slurm has the same texts read by a real sbatch.)"""
    word, quote, escaped = "", "", False
    for char in line:
        if escaped:
            word, escaped = word + char, False
        elif quote and char == "\\":
            escaped = True
        elif quote:
            quote, word = ("", word) if char == quote else (quote, word + char)
        elif char in "\"'":
            quote = char
        elif char.isspace() or char == "#":
            break
        else:
            word += char
    assert not quote, "sbatch: Unmatched quote"
    return word


def test_bash_parses_the_batch_script_of_a_config_with_special_characters(
    run_script: RunScript, tmp_path: Path
) -> None:
    run_script({"command": ["true", *WRITTEN], "launch": {"env": {"A": "\n".join(WRITTEN)}}})
    subprocess.run(["bash", "-n", str(tmp_path / "run/job.sbatch")], check=True)
