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
