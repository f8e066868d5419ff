"""The environment variables of the ranks of a gang."""

from sparkdl.cluster.environ import gang_variables, without_credentials
from sparkdl.cluster.plan import Plan, Role


def test_an_evaluator_is_not_in_the_world_of_the_workers() -> None:
    roles = (Role(name="worker", count=2), Role(name="evaluator", count=1, must_return=False))
    gang = Plan(kind="allreduce", roles=roles, is_gang=True).members
    endpoints = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"]
    assert gang_variables("torch", gang, endpoints, 1, (1, 2))["WORLD_SIZE"] == "2"
    assert gang_variables("jax", gang, endpoints, 1, (1, 2))["JAX_NUM_PROCESSES"] == "2"
    assert gang_variables("torch", gang, endpoints, 2, (0, 1)) == {}
    assert '"evaluator"' in gang_variables("tensorflow", gang, endpoints, 2, (0, 1))["TF_CONFIG"]


def test_training_gets_no_secret_of_spark() -> None:
    secrets = {
        "_SPARK_AUTH_SECRET": "a",
        "_SPARK_SSL_KEY_STORE_PASSWORD": "b",
        "_SPARK_SSL_TRUST_STORE_PASSWORD": "c",
        "PYTHON_WORKER_FACTORY_SECRET": "d",
        "PYSPARK_GATEWAY_SECRET": "e",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": "f",
        "SPARK_JAVA_OPT_3": "-Dspark.ssl.keyPassword=g",
        "HADOOP_TOKEN_FILE_LOCATION": "/containers/1/tokens",
    }
    needed = {"HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "h", "SPARK_LOCAL_IP": "127.0.0.1"}
    assert without_credentials({**secrets, **needed}, "s3://bucket/runs/one") == needed
    on_hdfs = without_credentials({**secrets, **needed}, "hdfs://host/runs/one")
    assert on_hdfs == {**needed, "HADOOP_TOKEN_FILE_LOCATION": "/containers/1/tokens"}
