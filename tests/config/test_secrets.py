"""What is taken for a secret, and what must not be."""

from __future__ import annotations

from typing import Any

import pytest

from clusterdp import config
from clusterdp.errors import ConfigError

ADDRESS = "http://me:hunter2@proxy:3128"

SECRET: list[tuple[str, Any]] = [
    *((f"launch.env.{name}", "x") for name in ("WANDB_API_KEY", "PGPASSWORD", "MYSQL_PWD", "OPENAI_KEY", "DB_PASS")),
    *((f"launch.env.{name}", "x") for name in ("SSH_PRIVATE_KEY", "GITHUB_PAT", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")),
    *((f"launch.env.{name}", ADDRESS) for name in ("http_proxy", "HTTPS_PROXY", "REDIS_URL")),
    ("launch.env.FLAGS", "--verbose --password=hunter2"),
    ("checkpoint.url", "sftp://u:p@host/run"),
    ("checkpoint.url", "https://host/run?token=x"),
    ("checkpoint.start_from", "sftp://u:p@host/run"),
    ("checkpoint.storage_options.key", "AKIA"),
    ("checkpoint.storage_options.token", "anon"),
    ("checkpoint.storage_options.account_key", "x"),
    ("checkpoint.storage_options.connection_string", "AccountName=a;AccountKey=b"),
    ("checkpoint.storage_options.client_kwargs.aws_secret_access_key", "x"),
    ("checkpoint.storage_options.client_kwargs.headers.Authorization", "Bearer x"),
    ("metrics.options.wandb.settings.api_key", "x"),
    ("metrics.options.mlflow.tracking_uri", "https://me:hunter2@mlflow.example.org"),
    ("params.db.password", "x"),
    ("params.db.password", 12345),
    ("params.hub_token", "x"),
    ("params.apiKey", "x"),
    ("params.note", "ghp_" + "a1" * 18),
    ("params.token", "a1b2c3d4e5f6g7h8"),
    ("params.list", [{"secret": "x"}]),
    ("params.url", "https://a.blob.core.windows.net/c?sv=2024&sig=abc"),
    ("params.text", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"),
    ("notify.webhook_file", "https://hooks.slack.com/services/T0/B0/x"),
    ("notify.command", ["post", "--api-key", "abc"]),
    ("params.hook", "https://discord.com/api/webhooks/1/x"),
    ("launch.setup", "module load x\nexport WANDB_API_KEY=abc123"),
    ("launch.setup", ["pip install --extra-index-url https://me:hunter2@pypi.example.org/simple x"]),
    ("command", ["python", "train.py", "--api-key", "abc"]),
    ("command", "train --password=abc"),
    ("script", "mysql --password hunter2 <x.sql"),
    *(
        ("launch.setup", line)
        for line in (
            "wandb login 0123456789abcdef0123456789abcdef01234567",
            "wandb login --host https://w.example.org 0123456789abcdef0123456789abcdef01234567",
            "docker login -u me -p hunter2 registry.example.org",
            "curl -u me:hunter2 https://data.example.org/x -o x",
            "sshpass -p hunter2 ssh node hostname",
            "mysql -u me -phunter2 db <x.sql",
            "curl -H 'Authorization: Bearer abcdefgh12345678' https://api.example.org",
            'curl --header "X-API-Key: abcdefgh12345678" https://api.example.org',
        )
    ),
    ("command", "train --wandb-key 0123456789abcdef0123456789abcdef01234567"),
    ("notify.command", ["curl", "-H", "Authorization: Bearer abcdefgh12345678", "https://chat.example.org"]),
    ("params.auth", "me:hunter2"),
    ("params.http.auth", ["me", "hunter2"]),
    ("params.api_keys", ["abc", "def"]),
    ("params.tokens", ["a1b2c3d4e5f6g7h8"]),
    ("params.url", "https://me:$ecret9@data.example.org"),
    ("params.url", "https://me:{x}y@data.example.org"),
    ("params.url", "https://b.s3.amazonaws.com/x?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Expires=1&Signature=abc"),
    ("params.url", "https://b.s3.amazonaws.com/x?X-Amz-Credential=a&X-Amz-Security-Token=abc"),
    ("resources.extra.comment", "hf_" + "aB3" * 12),
    *(
        ("params.note", token)
        for token in (
            "AKIA" + "ABCDEFGH2345IJKL",
            "glpat-" + "a1" * 10,
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
            "npm_" + "a1" * 18,
            "AIza" + "a" * 35,
            "dckr_pat_" + "a1" * 12,
            "123456789:AA" + "a" * 33,
            "sk-ant-api03-" + "a" * 40,
            "AccountKey=" + "a" * 86 + "==",
            "nvapi-" + "a1" * 30,
        )
    ),
]

INNOCENT: list[tuple[str, Any]] = [
    ("params.tokenizer", "gpt2"),
    ("params.max_tokens", 512),
    ("params.tokens", "abc"),
    ("params.pad_token", "<pad>"),
    ("params.token", "word"),
    ("params.key", "image"),
    ("params.sort_key", "length"),
    ("params.key_dim", "64"),
    ("params.monkey", "x"),
    ("params.secretary", "x"),
    ("params.password_free", "yes"),
    ("params.use_auth_token", True),
    ("params.backward_pass", "two"),
    ("params.pattern", "x=y"),
    ("params.compass", "north"),
    ("params.prompt", "user: hello@example.org"),
    ("params.ratio", "3:2@x"),
    ("params.time", "12:30:00"),
    ("params.api_key", "$WANDB_API_KEY"),
    ("params.password", None),
    ("params.data", "s3://bucket/a:b/c@d"),
    ("launch.env.TOKENIZERS_PARALLELISM", "false"),
    ("launch.env.PAD_TOKEN", "<pad>"),
    ("launch.env.NUM_PASS", "2"),
    ("launch.env.SORT_KEY", "length"),
    ("launch.env.GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json"),
    ("launch.env.WANDB_API_KEY_FILE", "/home/me/key"),
    ("launch.env.http_proxy", "http://proxy:3128"),
    ("launch.env.NCCL_SOCKET_IFNAME", "eth0"),
    ("checkpoint.url", "s3://bucket/run"),
    ("checkpoint.url", "sftp://me@host:22/run"),
    ("checkpoint.storage_options.profile", "lab"),
    ("checkpoint.storage_options.client_kwargs.endpoint_url", "http://minio:9000"),
    ("launch.container.image", "nvcr.io#nvidia/pytorch@sha256:0123"),
    ("launch.setup", "export WANDB_API_KEY=$(cat ~/.wandb) HF_TOKEN=$HF_TOKEN KEY=3"),
    ("command", ["python", "-c", "api_key=os.environ['X']; token=tokenizer.next()"]),
    ("command", ["train", "--tokenizer", "gpt2", "--max-tokens", "5"]),
    ("script", "git clone git@github.com:me/x.git"),
    *(
        ("launch.setup", line)
        for line in (
            "wandb login $WANDB_API_KEY",
            "wandb login --relogin",
            "huggingface-cli login --token $HF_TOKEN",
            'docker login -u me -p "$PW" registry.example.org',
            "docker login -u me --password-stdin registry.example.org <~/.docker-password",
            "curl -u me:$pw https://data.example.org/x -o x",
            "pip install --index-url https://me:$pw@pypi.example.org/simple x",
            'curl -H "Authorization: Bearer $TOKEN" https://api.example.org',
            "mkdir -p logs; ssh login mkdir -p runs",
            "ssh login -p 22 hostname",
            "mysql -u me -p db",
            "curl -u me https://x",
        )
    ),
    ("params.url", "https://me:${oc.env:HOME}@x/y"),
    ("params.url", "https://me:<password>@data.example.org"),
    ("params.auth", "kerberos"),
    ("params.auth", True),
    ("params.use_auth", "yes"),
    ("params.keys", ["image", "label"]),
    ("params.stop_tokens", ["</s>", "<eos>"]),
    ("params.commit_key", "v1"),
    ("params.revision", "0123456789abcdef0123456789abcdef01234567"),
    ("params.cache_key", "0123456789abcdef0123456789abcdef"),
    ("params.header", "Authorization: none"),
    ("params.ask", "sk-learn"),
    ("params.time", "12:30:AA"),
]


def load(key: str, value: Any) -> config.Config:
    values: dict[str, Any] = {}
    inner = values
    *folders, last = key.split(".")
    for folder in folders:
        inner = inner.setdefault(folder, {})
    inner[last] = value
    return config.from_mapping(values if key in ("command", "script") else {"command": "true", **values})


@pytest.mark.parametrize(("key", "value"), SECRET)
def test_secret_in_any_config_value_is_refused_and_not_printed(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="secret") as refused:
        load(key, value)
    assert str(refused.value).removeprefix("Python: ").startswith(key)
    assert "hunter2" not in str(refused.value)
    assert len(str(value)) < 5 or str(value) not in str(refused.value)


@pytest.mark.parametrize(("key", "value"), INNOCENT)
def test_harmless_value_resembling_a_secret_is_accepted(key: str, value: Any) -> None:
    load(key, value)
