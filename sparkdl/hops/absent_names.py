"""Runs anywhere. Names of hops-util-py that sparkdl does not have, and what to write for each."""

from collections.abc import Callable, Sequence
from typing import Any

from sparkdl.host import missing_names

__all__ = ["INSTEAD", "absent_names"]

_NO_SERVICE = "It is a service of Hopsworks, which has no counterpart here."
_TLS = (
    "There are no certificates of Hopsworks. Those of Kafka are settings of librdkafka in the file "
    "that KAFKA_PROPERTIES names: kafka.get_kafka_default_config returns them."
)
_NAMENODE = "There is no NameNode. hdfs.open_file, or fsspec with hdfs.abs_path, opens any store."
_NO_HADOOP = "Hadoop's and Flink's own settings tell, such as HADOOP_HOME."
_REST = "There is no REST server of Hopsworks. Use requests, or urllib.request."
_CONNECT = f"There is nothing to connect to: SPARKDL_ROOT names the project. {_REST}"
_REDSHIFT = "Spark reads Redshift by its JDBC source, and boto3 gives the passwords."
_DEBUGGER = "It belongs to TensorFlow 1. Use tf.debugging.experimental.enable_dump_debug_info."

# What to write in place of a name of hops-util-py 2.5, by module; `""` has the modules themselves.
INSTEAD: dict[str, dict[str, str]] = {
    "": {
        "constants": f"{_NO_SERVICE} Settings are environment variables, see docs/settings.md.",
        "credentials_provider": f"{_NO_SERVICE} boto3 assumes roles of AWS.",
        "dataset": "Files of the project are read and written by sparkdl.hops.hdfs.",
        "elasticsearch": f"{_NO_SERVICE} elasticsearch-hadoop has the connector.",
        "exceptions": "RestAPIError is sparkdl.hops.serving.RestAPIError.",
        "featurestore": f"{_NO_SERVICE} hsfs reads feature groups as DataFrames.",
        "hive": f"{_NO_SERVICE} spark.sql reads tables of Hive.",
        "jobs": f"{_NO_SERVICE} spark-submit starts programs, see docs/batch-jobs.md.",
        "secret": f"{_NO_SERVICE} sparkdl.secrets hides values; environment variables carry them.",
        "service_discovery": _NO_SERVICE,
        "tls": _TLS,
        "user": _NO_SERVICE,
        "version": "sparkdl.__version__ is the version.",
        "xattr": "Files have no attributes here: write a JSON file beside them.",
    },
    "hdfs": {
        "capacity": "The tools of the store tell, for a disk shutil.disk_usage.",
        "get": _NAMENODE,
        "get_fs": _NAMENODE,
        "get_webhdfs_host": _NAMENODE,
        "get_webhdfs_port": _NAMENODE,
        "is_tls_enabled": _TLS,
        "project_id": "Projects have names and no numbers: hdfs.project_name().",
    },
    "kafka": {"KafkaTopicDTO": "kafka.get_schema takes the name of the topic."},
    "model": {
        "ModelArchiveExists": "A download replaces nothing: catch FileExistsError.",
        "MultipleModelFilesFound": "A version of a model is one file, or one folder.",
        "download_model": "Use sparkdl.models.get(name, version).download(folder).",
    },
    "project": {
        "connect": _CONNECT,
        "create": "A project is a folder: hdfs.mkdir, or SPARKDL_ROOT.",
        "get_project_info": "A project is a folder: hdfs.ls tells what is in it.",
        "get_project_info_as_shared": "A project is a folder: hdfs.ls tells what is in it.",
        "project_id_as_shared": "Projects have names and no numbers: hdfs.project_name().",
    },
    "serving": {
        "export": "Use model.export.",
        "get_artifact_path": "A version of a model is its only artifact: use get_model_path.",
        "get_artifact_version": "A version of a model is its only artifact: use get_model_version.",
        "get_predictor": "The model does all: there are no predictors.",
        "get_predictor_resource_config": "The server uses what this process may use.",
        "get_transformer": "The model does all: there are no transformers.",
        "get_version": "Use get_model_version.",
    },
    "tensorboard": {"interactive_debugger": _DEBUGGER, "non_interactive_debugger": _DEBUGGER},
    "util": {
        "attach_jupyter_configuration_to_notebook": "Notebooks are not kept with runs.",
        "connect": _CONNECT,
        "get_flink_conf_dir": _NO_HADOOP,
        "get_flink_lib_dir": _NO_HADOOP,
        "get_hadoop_classpath_glob": _NO_HADOOP,
        "get_hadoop_home": _NO_HADOOP,
        "get_job_name": "spark.sparkContext.appName is the name of the program.",
        "get_jwt": _REST,
        "get_redshift_username_password": _REDSHIFT,
        "get_requests_verify": _REST,
        "get_secret": "Secrets are environment variables: os.environ.",
        "http": _REST,
        "parse_redhift_jdbc_url": _REDSHIFT,
        "send_request": _REST,
        "set_auth_header": _REST,
        "write_b64_cert_to_bytes": _TLS,
    },
}


def absent_names(module: str, public: Sequence[str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module of `sparkdl.hops`.

    Args:
        module: the name of the module.
        public: the names that the module has.

    Example:
        >>> absent_names("sparkdl.hops", ["hdfs"])("jobs")
        Traceback (most recent call last):
        AttributeError: module 'sparkdl.hops' has no 'jobs'. ... See docs/hopsml.md.
    """
    instead = INSTEAD.get(module.removeprefix("sparkdl.hops").removeprefix("."))
    return missing_names.absent_names(module, public, page="docs/hopsml.md", instead=instead)
