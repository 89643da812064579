"""Refuses secrets in a config, because the config is kept in the run folder, where others may read it. One rule holds
for all values: the name of the key or the value itself shows a secret. The last word of a name decides: `api_key` and
`PGPASSWORD` are secrets; `password_free`, `max_tokens` and `tokenizer` are not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from clusterdp.config.tree import Config

OURS = ("launch.secrets", "launch.secret_files")  # these keys hold only names, of secrets or of files
IN_A_STORE = "checkpoint."
IN_SHELL = ("script", "launch.setup")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
PASSWORDS = ("password", "passwd", "passphrase")  # also if only a word's end: PGPASSWORD
SECRETS = {"secret", "secrets", "pwd", "apikey", "credential", "credentials", "authorization"}
# A name that ends in one of these words is a secret only after a word in AFTER. In the name of a shell variable, it is
# a secret after every word except those in BUT.
AFTER = {
    "key": {"api", "access", "account", "secret", "private", "storage", "encryption", "signing", "shared", "ssh"},
    "token": {"api", "access", "auth", "bearer", "refresh", "session", "security", "sas", "hf", "hub", "bot"}
    | {"github", "gitlab", "wandb", "slack"},
    "pass": {"db", "user", "smtp", "admin", "root"},
    "pat": {"github", "gitlab", "azure"},
    "string": {"connection"},
}
BUT = {
    "key": {"public", "sort", "group", "primary", "foreign", "partition", "cache", "index", "state", "dict", "col"}
    | {"column", "batch", "input", "output", "label", "target", "image", "text", "mon", "query", "dim"},
    "token": {"pad", "eos", "bos", "unk", "mask", "sep", "cls", "stop", "start", "end", "special", "image", "per"},
    "pass": {"num", "max", "first", "second", "single", "forward", "backward", "by", "two"},
    "pat": {"file", "name"},
}
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.~-]{16,}")

# Secrets within any text: an address with a password, an assignment, and keys in the forms of well-known services.
# In an address, a shell variable, a placeholder or stars may stand for the password. Only in lines for a shell may the
# variable have small letters.
_STANDS_FOR_IT = r"(?:\$\{[^}@]*\}|\$\([^)@]*\)|\{\{?[\w ]*\}\}?|<[^>@]*>|\*+|\$[A-Z_][A-Z0-9_]*)@"
_IN_ADDRESS = re.compile(rf"[A-Za-z][\w+.-]*://[^\s/:@]*:(?!{_STANDS_FOR_IT})[^\s/@]+@")
_IN_A_SHELL = re.compile(r"://[^\s/:@]*:\$[a-z_]\w*@")
_ASSIGNED = re.compile(r"(?<![\w$-])(?:--?)?([A-Za-z][\w.-]*)=[\"']?([\w+/.~!@#%^*:=-]+)(?=[\s\"';,)&|]|$)")
_AN_OPTION = re.compile(r"(?<!\S)--([A-Za-z][\w-]*)[ \t]+[\"']?(?!-)([\w+/.~!@#%^*:=-]+)")
_SIGNED = re.compile(r"[?&](?:sig|Signature|X-(?:Amz|Goog|OSS)-(?:Signature|Security-Token)|AWSAccessKeyId)=", re.I)
# The forms of keys and tokens, after the rules of gitleaks and detect-secrets
_KNOWN = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\bAccountKey=[\w+/=]{40,}|\b(?:gh[pousr]_\w{30,}|github_pat_\w{30,}"
    r"|gl(?:pat|dt|ft|rt|oas|cbt|ptt|soat|agent)-[\w-]{20,}|(?:hf|api_org|npm|gsk|xai)_[A-Za-z0-9]{30,}|wandb_v\d_\w{20,}"
    r"|r8_\w{30,}|sk-[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}|(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}|pypi-AgE[\w-]{50,}|SG\.[\w-]{20,}\.[\w-]{40,}|[rs]k_(?:live|test)_\w{10,}"
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|dckr_[op]at_[\w-]{20,}|do[opr]_v1_\w{40,}|nvapi-[\w-]{40,}"
    r"|dapi[a-f0-9]{32}|KGAT_\w{30,}|shp(?:at|ss|ca|pa)_[a-fA-F0-9]{30,}|ATATT3[\w-]{50,}|\d{8,10}:AA[\w-]{33}\b)"
)
# A header with a credential, and words of well-known commands: curl -u me:PASSWORD, docker login -p PASSWORD
_IN_A_COMMAND = re.compile(
    r"(?i:\b(?:authorization|private-token|(?:x-)?(?:[\w]+-)?(?:api-?key|auth-?token|access-?token)))[\"']?\s*:\s*[\"']?"
    r"(?:(?i:bearer|basic|token)\s+)?(?![$<{%])[\w+/=.~-]{8,}"
    r"|\b(?:curl|wget|http)\b[^\n;|&]*\s(?:-u|--user)[ =]?[\"']?[^\s:\"'$]+:(?!\$)[^\s\"']+"
    r"|\b(?:docker|podman|buildah|skopeo|helm|oras|apptainer|singularity|az|oc)\b[^\n;|&]*\blogin\b[^\n;|&]*"
    r"\s-p[ =]?[\"']?(?![$-])[^\s\"'-]|\bsshpass\s+-p\s*[\"']?(?!\$)\S|\bmysql\w*\b[^\n;|&]*\s-p(?!\$)[^\s-]"
    r"|\bwandb\s+login\s+(?:--[\w-]+(?:[ =]https?\S+)?\s+)*[\"']?(?![$-])[\w-]{20,}"
)
# Anybody who knows the address of a webhook can send messages there: Slack, Discord, Teams and Google Chat.
_WEBHOOK = re.compile(
    r"hooks\.slack\.com/\w+/\w|\bdiscord(?:app)?\.com/api/webhooks/\w|\.webhook\.office\.com/\w"
    r"|\bchat\.googleapis\.com/v1/spaces/\w"
)
WEBHOOK_PROBLEM = "has the address of a webhook, a secret that would be stored in the run folder"
WEBHOOK_REMEDY = "Put it into a file that you alone can read (chmod 600), and name that in notify.webhook_file"


def secrets(config: Config, sections: Collection[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """Yields (key, problem, remedy) for each value that is a secret or contains a secret. If `sections` is given, only
    these sections are searched."""
    found = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    for key, name, value in _leaves({name: found[name] for name in found if sections is None or name in sections}):
        if key.startswith(OURS):
            continue
        strict = key.startswith(IN_A_STORE)
        value = _IN_A_SHELL.sub("://:$NAME@", value) if key.startswith(IN_SHELL) and isinstance(value, str) else value
        if is_secret(name, value, strict):
            yield key, "is a secret by its name, and would be stored in the run folder", _remedy(key)
        elif isinstance(value, str) and _WEBHOOK.search(value):
            yield key, WEBHOOK_PROBLEM, WEBHOOK_REMEDY
        elif isinstance(value, str) and holds_secret(value, strict):
            yield key, "contains a secret, which would be stored in the run folder", _remedy(key)


def is_secret(name: str, value: Any, strict: bool = False) -> bool:
    """Returns whether a value with this name is a secret. With `strict`, for options of a store, the name `key` or
    `token` alone means a secret."""
    if value is None or isinstance(value, bool) or value == "" or str(value).startswith("$"):
        return False  # a value `$NAME` is a shell variable in place of the secret
    words = [word.lower() for word in _WORD.findall(name)]
    last, before = (words or [""])[-1], words[-2:-1]
    last = last[:-1] if last in ("keys", "tokens") else last
    if last.endswith(PASSWORDS):
        return True
    if not isinstance(value, str) or name in ("PWD", "OLDPWD"):
        return False
    if last == "auth":
        return bool(re.search(r"[\w.@-]+[:\n](?![$/])\S+", value))  # a user's name and a password
    if last in SECRETS:
        return last != "credentials" or not value.startswith(("/", "~", "."))  # a file's path is not a secret
    if last not in AFTER:
        return False
    if not before:
        return strict or bool(_RANDOM.fullmatch(value))
    if before[0] in AFTER[last]:
        return True
    if before[0] not in BUT.get(last, ()) and re.fullmatch(r"[0-9a-f]{32,}", value):
        return True
    return bool(_VARIABLE.fullmatch(name)) and last in BUT and before[0] not in BUT[last] and not value.isdigit()


def holds_secret(text: str, strict: bool = False) -> bool:
    """Returns whether a text (an address, a command line, lines for a shell) contains a secret."""
    if any(form.search(text) for form in (_IN_ADDRESS, _SIGNED, _KNOWN, _IN_A_COMMAND)):
        return True
    return any(
        is_secret(match[1], match[2], strict) for form in (_ASSIGNED, _AN_OPTION) for match in form.finditer(text)
    )


def _leaves(values: Any, key: str = "", name: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields (dotted key, last name, value) of each scalar in `values`. A list of words is joined to one text, because
    an option may be two words."""
    if isinstance(values, Mapping):
        for own, value in values.items():
            yield from _leaves(value, f"{key}.{own}" if key else str(own), str(own))
    elif dataclasses.is_dataclass(values):
        for each in dataclasses.fields(values):
            yield from _leaves(getattr(values, each.name), f"{key}.{each.name}", each.name)
    elif isinstance(values, (list, tuple)):
        if values and all(isinstance(value, str) for value in values):
            yield key, name, "\n".join(values) if not key.endswith("command") else " ".join(values)
        else:
            for value in values:
                yield from _leaves(value, key, name)
    else:
        yield key, name, values


def _remedy(key: str) -> str:
    if key.startswith(IN_A_STORE):
        return "Leave it out: the store's own environment variables or files of credentials are read on every node"
    return "Leave it out, and name the variable that has it in launch.secrets, or a file in launch.secret_files"
