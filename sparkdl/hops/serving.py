"""Runs on the driver. Serve models of the project over HTTP, as in hops-util-py.

A serving is a file of the project. `start` runs its server, `sparkdl.serving`, in this process,
where other processes of this host can ask it.
"""

import atexit
import json
import logging
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

from sparkdl import serving
from sparkdl.errors import ConfigError, ModelNotFoundError
from sparkdl.files import storage
from sparkdl.hops import kafka, servings
from sparkdl.hops.absent_names import absent_names
from sparkdl.hops.project import root
from sparkdl.hops.servings import Serving, all_servings, find, is_running

__all__ = [
    "RestAPIError",
    "Serving",
    "ServingNotFound",
    "create_or_update",
    "delete",
    "describe",
    "exists",
    "get",
    "get_all",
    "get_available_instances",
    "get_id",
    "get_internal_endpoints",
    "get_kafka_topic",
    "get_model_name",
    "get_model_path",
    "get_model_server",
    "get_model_version",
    "get_serving_tool",
    "get_status",
    "make_inference_request",
    "start",
    "stop",
]

__getattr__ = absent_names(__name__, __all__)

ServingNotFound = ModelNotFoundError
RestAPIError = OSError

_logger = logging.getLogger("sparkdl.hops")
REQUEST_S = 60.0
_SERVERS = ("TENSORFLOW_SERVING", "TENSORFLOW")
_VERBS = (":predict", ":classify", ":regress")

_KSERVE = "sparkdl.serving.kserve(name, version=...) writes the InferenceService for KServe"

# Arguments that need more than a server in this process, and what has their place.
_INSTEAD = {
    "predictor": "Put what the script does into the model, such as Keras's preprocessing layers",
    "transformer": "Put what the script does into the model, such as Keras's preprocessing layers",
    "kfserving": _KSERVE,
    "kserve": _KSERVE,
    "instances": "sparkdl.serving.kserve(name, min_replicas=...) writes the InferenceService of "
    "several instances; batching_enabled=True lets one server answer more requests",
    "transformer_instances": "Put the transformer into the model",
}

# The servers that this process runs, by the file of their serving.
_running: dict[tuple[str, str], serving.Server] = {}


# ---- servings


def create_or_update(
    serving_name: str,
    model_path: str,
    model_server: str = "TENSORFLOW_SERVING",
    model_version: int = 1,
    artifact_version: Any = None,
    predictor: str | None = None,
    transformer: str | None = None,
    kfserving: bool | None = None,
    batching_enabled: bool = False,
    topic_name: str | None = "CREATE",
    num_partitions: int = 1,
    num_replicas: int = 1,
    inference_logging: str | None = "ALL",
    instances: int = 1,
    transformer_instances: int | None = None,
    predictor_resource_config: Any = None,
    kserve: bool | None = None,
) -> None:
    """Create a serving, or change it. A server that this process runs is started anew.

    Args:
        serving_name: the name of the serving.
        model_path: `/Models/<name>` for a model of the registry, or the path that `model.export`
            has returned; or the path of another model: a local path, or one in the project.
        model_server: `TENSORFLOW_SERVING`.
        model_version: the version that is served.
        batching_enabled: compute rows of several requests at once.
        topic_name: the topic of the inference log; `CREATE` creates `<serving_name>-inference`, or
            keeps the log in files if `KAFKA_BROKERS` is not set; `NONE` for no log.
        num_partitions, num_replicas: of a topic that is created.
        predictor, transformer, kfserving, instances, transformer_instances: other values than the
            defaults are refused.
        kserve: the name of `kfserving` in version 3.0.
        artifact_version, inference_logging, predictor_resource_config: have no effect; records have
            the inputs and the predictions.

    Raises:
        ConfigError: if an argument is invalid.
        ModelNotFoundError: if there is no such model or version.
    """
    if "/" in serving_name:
        raise ConfigError(
            f"serving_name is {serving_name!r}; expected a name, and then the path of the model: "
            "the order of arguments is that of hops-util-py 2.5."
        )
    unsupported: dict[str, Any] = {"predictor": predictor, "transformer": transformer}
    unsupported["kfserving"] = kfserving or None
    unsupported["kserve"] = kserve or None
    unsupported["instances"] = None if instances == 1 else instances
    unsupported["transformer_instances"] = transformer_instances or None
    for name, value in unsupported.items():
        if value is not None:
            raise ConfigError(f"{name} is {value!r}, which has no counterpart. {_INSTEAD[name]}.")
    if model_server not in _SERVERS:
        raise ConfigError(
            f"model_server is {model_server!r}; expected 'TENSORFLOW_SERVING', for Keras files and "
            "SavedModels. Other models are applied to a DataFrame by Spark's mapInPandas."
        )
    model_name, version = servings.model_of(model_path, model_version)
    topic, log = _log_of(serving_name, topic_name, num_partitions, num_replicas)
    servings.new(
        Serving(
            name=serving_name,
            model_path=model_path,
            model_name=model_name,
            model_version=version,
            batching_enabled=bool(batching_enabled),
            kafka_topic=topic,
            log=log,
        )
    )
    if (root(), serving_name) in _running:
        stop(serving_name)
        start(serving_name)


def _log_of(
    name: str, topic: str | None, num_partitions: int, num_replicas: int
) -> tuple[str | None, str | None]:
    """Return the topic or the folder of the inference log, of which one or both are None."""
    if topic in (None, "NONE"):
        return None, None
    if topic == "CREATE":
        topic = f"{name}-inference"
        try:
            kafka.get_broker_endpoints()
        except ConfigError:
            return None, storage.join(root(), servings.FOLDER, name, "log")
        kafka.create_topic(topic, num_partitions, num_replicas)
    kafka.get_broker_endpoints()
    return topic, None


def exists(serving_name: str) -> bool:
    """Return True if there is such a serving."""
    return any(each.name == serving_name for each in all_servings())


def delete(serving_name: str) -> None:
    """Stop a serving, and remove it. Its model and its log stay."""
    stop(serving_name)
    servings.forget(serving_name)


def start(serving_name: str) -> None:
    """Start the server of a serving in this process, on a free port.

    It ends with `stop`, or with this process. A server that runs already is left alone.

    Raises:
        ServingNotFound: if there is no such serving.
        ConfigError: if packages are missing.
    """
    known_serving = find(serving_name)
    if is_running(known_serving):
        _logger.info("the serving %s runs already, at %s", serving_name, known_serving.url)
        return
    server = serving.start(
        known_serving.model_name,
        version=known_serving.model_version,
        batching=known_serving.batching_enabled or None,
        log=_sink(known_serving),
        port=0,
        root=root(),
    )
    _running[root(), serving_name] = server
    atexit.register(server.stop)  # Records of the log are written then.
    servings.keep(replace(known_serving, url=server.url, process=servings.this_process()))


def _sink(known_serving: Serving) -> Any:
    if known_serving.kafka_topic is None:
        return known_serving.log
    settings = kafka.get_kafka_default_config()
    settings.pop("group.id")  # It is for consumers.
    brokers = settings.pop("bootstrap.servers")
    url = f"kafka://{brokers}/{known_serving.kafka_topic}"
    return serving.Log(serving.KafkaSink(url, settings))


def stop(serving_name: str) -> None:
    """Answer the requests that have come, and end the server. It may be stopped already.

    Raises:
        ServingNotFound: if there is no such serving.
        ConfigError: if another process runs it.
    """
    known_serving = find(serving_name)
    server = _running.pop((root(), serving_name), None)
    if server is None and is_running(known_serving):
        raise ConfigError(
            f"the serving {serving_name!r} is run by another process, {known_serving.process}. "
            "Stop it there, or end that process."
        )
    if server is not None:
        server.stop()
        atexit.unregister(server.stop)
    servings.keep(replace(known_serving, url=None, process=None))


# ---- requests


def make_inference_request(serving_name: str, data: Any, verb: str = ":predict") -> Any:
    """Send a request to the server of a serving, and return the answer.

    Args:
        serving_name: the name of the serving.
        data: the body, such as `{"instances": rows}`; or a list of rows.
        verb: `:predict`, `:classify` or `:regress`.

    Raises:
        ServingNotFound: if there is no such serving.
        ConfigError: if it does not run, or `verb` is another word.
        RestAPIError: if the server has refused the request.
    """
    if verb not in _VERBS:
        raise ConfigError(f"verb is {verb!r}; expected one of {', '.join(map(repr, _VERBS))}.")
    known_serving = find(serving_name)
    if known_serving.url is None:
        raise ConfigError(f"the serving {serving_name!r} does not run: call serving.start first.")
    body = {"instances": data} if isinstance(data, list) else data
    url = f"{known_serving.url}/v1/models/{servings.served_name(known_serving)}{verb}"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=REQUEST_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            text = exc.read().decode(errors="replace")
        raise RestAPIError(f"{url} has answered with code {exc.code}: {text}") from exc


# ---- what there is


def get_all() -> list[Serving]:
    """Return the servings of the project."""
    return all_servings()


def get(serving_name: str) -> Serving | None:
    """Return a serving; None if there is no such serving."""
    return find(serving_name) if exists(serving_name) else None


def get_id(serving_name: str) -> int | None:
    """Return the id of a serving; None if there is no such serving."""
    known_serving = get(serving_name)
    return None if known_serving is None else known_serving.id


def get_model_path(serving_name: str) -> str:
    """Return the path of the model, as it was given."""
    return find(serving_name).model_path


def get_model_name(serving_name: str) -> str:
    """Return the name of the model, which is part of the addresses of the server."""
    return servings.served_name(find(serving_name))


def get_model_version(serving_name: str) -> int:
    """Return the version that is served."""
    return find(serving_name).model_version


def get_model_server(serving_name: str) -> str:
    """Return `TENSORFLOW_SERVING`."""
    return find(serving_name).model_server


def get_serving_tool(serving_name: str) -> str:
    """Return `DEFAULT`."""
    return find(serving_name).serving_tool


def get_available_instances(serving_name: str) -> int:
    """Return 1 if the server runs, otherwise 0."""
    return int(is_running(find(serving_name)))


def get_kafka_topic(serving_name: str) -> str | None:
    """Return the topic of the inference log; None, with a warning, if the log is not in Kafka."""
    known_serving = find(serving_name)
    if known_serving.kafka_topic is None:
        where = (
            f"its log is in files: {known_serving.log}" if known_serving.log else "it keeps no log"
        )
        _logger.warning(
            "the serving %r has no topic of Kafka; %s. Set KAFKA_BROKERS, and call "
            "serving.create_or_update again; sparkdl.monitoring reads both.",
            serving_name,
            where,
        )
    return known_serving.kafka_topic


def get_status(serving_name: str) -> str:
    """Return `Running` if the server answers, otherwise `Stopped`."""
    return find(serving_name).status


def get_internal_endpoints(serving_name: str) -> list[str] | None:
    """Return the address of the server in a list; None if it does not run."""
    known_serving = find(serving_name)
    return [known_serving.url] if known_serving.url and is_running(known_serving) else None


def describe(serving_name: str) -> None:
    """Print what there is to say about a serving."""
    known_serving = find(serving_name)
    fields = {**vars(known_serving), "status": known_serving.status}
    print(", ".join(f"{name}: {value}" for name, value in fields.items()))
