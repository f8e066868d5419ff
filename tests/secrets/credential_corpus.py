"""Texts with and without credentials. No credential is real: each is put together from parts."""

__all__ = ["HARMLESS", "HARMLESS_CODE", "SECRET", "SECRET_CODE"]

FAKE = "F4ke0nly"
HEX = "0a1b2c3d4e5f6071"


def fake(prefix: str, length: int) -> str:
    """A value of a vendor's form that says what it is."""
    return prefix + (FAKE * 10)[:length]


def fake_hex(prefix: str, length: int) -> str:
    return prefix + (HEX * 4)[:length]


WORD = "hunter" + "22"
AWS_ID = "AK" + "IA" + "FAKEFAKEFAKEFAKE"
AWS_KEY = "/".join(["wJalrFake", "K7MDENG", "bPxRfiCYEXAMPLEKEY00"])
JWT = ".".join(["ey" + "JhbGciOiJGQUtF", "eyJzdWIiOiJGQUtFIn0", "abc-DEF_1234"])
PEM = "-----BEGIN {0} KEY-----\n" + FAKE * 4 + "\n" + FAKE * 4 + "\n-----END {0} KEY-----"

# Program text: a template and the credential in it.
SECRET_CODE: list[tuple[str, str]] = [
    ("password = '{}'", WORD),
    ('os.environ["HF_TOKEN"] = "{}"', fake("hf" + "_", 34)),
    ('os.environ["WANDB_API_KEY"]="{}"', fake_hex("", 40)),
    ('os.environ.setdefault("HF_TOKEN", "{}")', "abcdef123"),
    ('DB_PASSWORD = "{}"', WORD),
    ('PGPASSWORD="{}"', WORD),
    ('client = Client(clientSecret="{}", retries=3)', "a-b-c-d"),
    ("accessToken='{}'", "abcdefgh"),
    ('db_pwd="{}"', WORD),
    ("{{'api_key': '{}', 'lr': 0.1}}", "abcdef123"),
    ('db_password: str = "{}"', WORD),
    ("requests.get(url, auth=('ann', '{}'), timeout=5)", "letmein"),
    ('spark.conf.set("fs.s3a.secret.key", "{}")', AWS_KEY),
    ('reader.option("password", "{}").load()', WORD),
    ('token = f"{}"', fake("", 24)),
    ('API_KEY = """{}"""', "abcdef123"),
    ('requests.get(url, headers={{"Authorization": "Bearer {}"}})', fake("", 24)),
    ('engine = create_engine("postgres://ann:{}@db:5432/x")', "pa55word"),
    ('spark.config("spark.hadoop.fs.s3a.access.key", "{}")', AWS_ID),
    ('dsn = "host=db user=ann password={}"  # for tests', WORD),
]

# Logs, errors and files: a template and the credential in it.
SECRET: list[tuple[str, str]] = [
    ("AWS_SECRET_ACCESS_KEY={}", AWS_KEY),
    ("s3://{}@bucket/x", "key:top" + "secret"),
    ("InvalidAccessKeyId: {} does not exist", AWS_ID),
    ("remote: {} is not allowed to push", fake("gh" + "p_", 36)),
    ("using {}", fake("github" + "_pat_", 40)),
    ("PRIVATE-TOKEN: {}", fake("gl" + "pat-", 20)),
    ("Cookie: session={}", JWT),
    ("cannot connect: host=db password={} user=ann", WORD),
    ("jdbc:mysql://db/x?user=ann&password={}", "swordfish"),
    (
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={};EndpointSuffix=y",
        fake("", 40) + "==",
    ),
    ("Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey={}", fake("", 32) + "="),
    ("databricks token {}", fake_hex("da" + "pi", 32)),
    ("https://maps/api?key={}", fake("AI" + "za", 35)),
    ("  File x.py, line 3\n    wandb.login(key='{}')", fake_hex("", 40)),
    ("slack: {}", fake("xo" + "xb-1234567890-", 20)),
    ("posting to https://hooks.slack.com/services/{}", "T0FAKE/B0FAKE/" + FAKE * 3),
    ("Stripe: No such key {}", fake("sk" + "_live_", 16)),
    ("npm ERR! {}", fake("np" + "m_", 36)),
    ("twine upload -p {}", fake("py" + "pi-", 40)),
    ("sendgrid {}", ".".join(["S" + "G", FAKE * 2, FAKE * 3])),
    ("curl -H 'Authorization: Basic {}' https://x", "dXNlcjpGQUtF" + "RkFLRQ=="),
    ("https://x.blob.core.windows.net/c?sv=1&sig={}&se=2", fake("", 40) + "%3D"),
    ("key:\n{}\nend", PEM.format("RSA " + "PRIVATE")),
    ('{{"type": "service_account", "private_key": "{}"}}', "abc\\nDEF012345"),
    ("machine x login ann password {}", WORD),
    ("mysql --user=ann --password {} db", WORD),
    ("redis.exceptions.AuthenticationError: redis://:{}@cache:6379", "pa55word"),
    ("password: {}", WORD),
    ("environ({{'HOME': '/root', 'MLFLOW_TRACKING_PASSWORD': '{}'}})", WORD),
    ("ALTER USER ann IDENTIFIED BY '{}'", WORD),
]

HARMLESS_CODE: list[str] = [
    "num_tokens = 5",
    "tokenizer = 'bert'",
    "x = 'password'",
    "a: 'b'",
    "pad_token = '[PAD]'",
    "tokenizer.pad_token = 'PAD'",
    "tokenizer.add_special_tokens({'mask_token': '<mask>', 'eos_token': '</s>'})",
    "pooling_token = 'cls'",
    'os.environ["KERAS_BACKEND"] = "tensorflow"',
    "password = os.environ['DB_PASSWORD']",
    "password = getpass.getpass('Password: ')",
    'f"postgres://{user}:{password}@{host}/db"',
    "connect(password=password, token=args.token, api_key=key)",
    "def connect(user: str, password: str | None = None): ...",
    "feature_cols = ['token', 'label', 'password_length']",
    "df.select('token', 'label').join(other, key='id')",
    "token = 'the'",
    "if token == 'hello': count += 1",
    "secret_name = 'prod/db'",
    "sort_key = 'created', primary_key='id'",
    "password_file = '/run/secrets/db'",
    "keys = {'monkey': 'banana', 'key': 'value'}",
    "token_type_ids = 'segment'  # of credentials. Ordinary words",
    "headers['Authorization'] = f'Bearer {self.token}'",
    "api_key = '${API_KEY}'",
]

HARMLESS: list[str] = [
    "KERAS_BACKEND=tensorflow",
    "NCCL_DEBUG=INFO",
    "TF_FORCE_GPU_ALLOW_GROWTH=true TOKENIZERS_PARALLELISM=false",
    "https://x.org/a?page=2&sort=key",
    "File '/usr/lib/python3.11/site-packages/tensorflow/python/ops.py', line 12",
    "commit 8f14e45fceea167a5a36dedd4bea2543b1c2d3e4",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "run 123e4567-e89b-12d3-a456-426614174000 has ended",
    "Epoch 3/10 - loss: 0.2134 - accuracy: 0.9731 - tokens/s: 1203",
    "ValueError: unknown token: 'the' in line 3",
    "password: incorrect. Please try again",
    "KeyError: 'api_key'",
    "the token has expired, the password is required",
    "wrote artifacts/model/train_best.keras",
    "serving_default: signature=serving_default",
    "max_tokens=512, num_tokens=4096, token_dim=64",
    "s3://bucket/path/to/keys/part-0001.parquet",
    "spark://host:7077, hdfs://name:8020/user/ann",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ ann@laptop",
    "risk-adjusted-return-on-capital-2021-v2, task-based-learning-2024-final",
    "Basic understanding of Bearer authentication",
    "connect(host, password=password)  # TypeError: got str",
    "hf_transformer_block_with_residual_connection_v2",
    "secrets=['***'], env={'HF_TOKEN': '***'}",
    "learning_rate=0.001 optimizer=adam key=3 author=ann",
]
