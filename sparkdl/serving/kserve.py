"""Runs on the driver. Describe a model of the registry as an InferenceService of KServe.

Source of the format: https://kserve.github.io/website/docs/reference/crd-api, version v1beta1 of
KServe 0.20 and newer.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.model_formats import LOADER_FILE
from sparkdl.models import ModelVersion, registry

# KServe writes it into each event of the log; monitoring reads the name of the model there.
MODEL_ANNOTATION = "sparkdl/model"

_TENSORFLOW = {"modelFormat": {"name": "tensorflow", "version": "2"}, "protocolVersion": "v1"}
_SECRETS = "/etc/sparkdl"

# What Knative scales on, and what the autoscaler of Kubernetes does.
_MODES = {"Standard": ("cpu", "memory"), "Knative": ("concurrency", "rps")}
_TARGETS = {"cpu": 80, "memory": 80, "concurrency": 100, "rps": 200}


def kserve(
    name: str,
    *,
    version: int | str | None = None,
    canary: dict[int | str, int] | None = None,
    min_replicas: int = 1,
    max_replicas: int = 1,
    scale_on: str | None = None,
    batch: int | None = None,
    log_to: str | None = None,
    mode: str = "Standard",
    cpu: str = "1",
    memory: str = "2Gi",
    gpus: int = 0,
    image: str | None = None,
    token_secret: str | None = None,
    workers: int = 1,
    root: str | None = None,
) -> str:
    """Return the InferenceService that serves a model on a Kubernetes cluster with KServe, as YAML.

    KServe's TensorFlow Serving loads a SavedModel from the registry, which must be on a store that
    the cluster reaches, such as `s3://`. A model with a loader, see `models.export`, is served by
    `sparkdl serve` in a container of yours.

    Args:
        name: the name of the model.
        version: the number of the version, or an alias; by default the newest version.
        canary: percent of the requests for another version, by number or alias: `{"canary": 10}`.
        min_replicas: the least number of servers; 0 needs `mode="Knative"`.
        max_replicas: the largest number of servers.
        scale_on: `cpu` or `memory` (80 percent), or in the mode Knative `concurrency` (100) or
            `rps` (200 requests per second).
        batch: the most rows that are computed at once; None for no batches.
        log_to: the URL that gets each request and answer as CloudEvents; None for no log.
        mode: `Standard` or `Knative`, the deployment mode of KServe.
        cpu: cores of a server, as Kubernetes writes quantities.
        memory: memory of a server, as Kubernetes writes quantities.
        gpus: number of GPUs of a server.
        image: for a model with a loader, the image of the container: with
            `sparkdl-platform[serving]` and the packages that the loader imports.
        token_secret: for a model with a loader, the name of the Kubernetes secret whose key
            `token` is the secret that requests need, of at least 16 characters.
        workers: for a model with a loader, the number of processes of a server, each with the
            model in memory; TensorFlow Serving uses all cores with one.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Raises:
        ModelNotFoundError: if there is no such model or version.
        ConfigError: if an argument is wrong or missing, or the registry is on a local disk.

    Example:
        >>> from sparkdl import serving
        >>> serving.kserve("digits", version="stable", canary={"canary": 10})
        Traceback (most recent call last):
        sparkdl.errors.ModelNotFoundError: the model 'digits' has no alias 'stable'; it has none.
    """
    if mode not in _MODES:
        raise ConfigError(f"mode is {mode!r}; expected 'Standard' or 'Knative'.")
    _check_replicas(min_replicas, max_replicas, mode)
    _check_scale(scale_on, mode)
    stable = _find(name, version, root)
    _positive(workers, "workers")
    server = _Server(_resources(cpu, memory, gpus), image, token_secret, workers)
    predictor = {
        "minReplicas": min_replicas,
        "maxReplicas": max_replicas,
        **({"scaleMetric": scale_on, "scaleTarget": _TARGETS[scale_on]} if scale_on else {}),
        **({"batcher": {"maxBatchSize": _positive(batch, "batch")}} if batch is not None else {}),
        **({"logger": _logger(log_to)} if log_to is not None else {}),
    }
    spec: dict[str, Any] = {}
    share = _share(canary)
    if share is None:
        spec["predictor"] = {**predictor, **server.model(stable)}
    else:
        other_name, percent = share
        other = _find(name, other_name, root)
        spec = _with_canary(stable, other, percent, predictor, server, mode)
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": _service_name(name),
            # The events of the log have the name of the service, which cannot have each name.
            "annotations": {**_annotations(mode, scale_on), MODEL_ANNOTATION: name},
            "labels": {"sparkdl/model": name, "sparkdl/version": str(stable.version)},
        },
        "spec": spec,
    }
    return str(yaml.safe_dump(service, sort_keys=False))


def _with_canary(
    stable: ModelVersion,
    other: ModelVersion,
    percent: int,
    predictor: dict[str, Any],
    server: "_Server",
    mode: str,
) -> dict[str, Any]:
    if mode == "Knative":
        # Knative sends the rest to the revision before, which is the one that is deployed now.
        predictor = {**predictor, "canaryTrafficPercent": percent}
        return {"predictor": {**predictor, **server.model(other)}}
    least = min(1, predictor["minReplicas"])
    canary = {"name": f"v{other.version}", "minReplicas": least}
    return {
        "predictor": {"name": f"v{stable.version}", **predictor, **server.model(stable)},
        "canary": [{"trafficPercent": percent, "predictor": {**canary, **server.model(other)}}],
    }


@dataclass(frozen=True)
class _Server:
    """The server of a version.

    Attributes:
        resources: the requests and limits of its container.
        image: see `kserve`.
        token_secret: see `kserve`.
        workers: see `kserve`.
    """

    resources: dict[str, Any]
    image: str | None
    token_secret: str | None
    workers: int

    def model(self, version: ModelVersion) -> dict[str, Any]:
        """Return the part of a predictor that names the server and the files of a version."""
        if storage.is_local(version.path):
            raise ConfigError(
                f"the model is at {version.path}, a local disk, which the cluster does not reach. "
                "Keep the registry on a store, such as root='s3://bucket/runs', or copy the "
                "version there with models.export(version, name, root='s3://bucket/runs')."
            )
        # The servers take the folder above a version.
        if LOADER_FILE in version.details.get("files", {}):
            parts, folder = self._own(version), f"/mnt/models/{version.name}"
        elif self.image or self.token_secret or self.workers > 1:
            raise ConfigError(
                f"image, token_secret or workers is given, but {version} is a SavedModel, which "
                "TensorFlow Serving takes. Leave them out."
            )
        else:
            parts, folder = {"model": {**self._container(), **_TENSORFLOW}}, "/mnt/models"
        mount = {"uri": version.path, "mountPath": f"{folder}/{version.version}"}
        return {**parts, "storageUris": [mount]}

    def _container(self) -> dict[str, Any]:
        return {"name": "kserve-container", "resources": self.resources}

    def _own(self, version: ModelVersion) -> dict[str, Any]:
        if not self.image or not self.token_secret:
            raise ConfigError(
                f"{version} has a loader, which needs image= (a container with "
                "sparkdl-platform[serving] and the packages of the loader) and token_secret= (a "
                "secret of Kubernetes with the key 'token')."
            )
        command = ["sparkdl", "serve", f"/mnt/models/{version.name}", "--host", "0.0.0.0"]
        command += ["--port", "8080", "--token-file", f"{_SECRETS}/token"]
        command += ["--workers", str(self.workers)] if self.workers > 1 else []
        container = {
            **self._container(),
            "image": self.image,
            "command": command,
            "ports": [{"containerPort": 8080, "protocol": "TCP"}],
            "volumeMounts": [{"name": "token", "mountPath": _SECRETS, "readOnly": True}],
        }
        volume = {"name": "token", "secret": {"secretName": self.token_secret}}
        return {"containers": [container], "volumes": [volume]}


def _find(name: str, version: int | str | None, root: str | None) -> ModelVersion:
    if isinstance(version, str):
        return registry.get(name, alias=version, root=root)
    return registry.get(name, version, root=root)


def _share(canary: Any) -> tuple[int | str, int] | None:
    if not canary:
        return None
    if not isinstance(canary, dict) or len(canary) != 1:
        raise ConfigError(f"canary is {canary!r}; expected one version, such as {{'canary': 10}}.")
    ((version, percent),) = canary.items()
    if isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100:
        raise ConfigError(f"canary gives {version!r} {percent!r} percent; expected 0 to 100.")
    return version, percent


def _check_replicas(least: Any, most: Any, mode: str) -> None:
    _positive(most, "max_replicas")
    if isinstance(least, bool) or not isinstance(least, int) or not 0 <= least <= most:
        raise ConfigError(
            f"min_replicas is {least!r}; expected 0 to max_replicas, which is {most}."
        )
    if least == 0 and mode == "Standard":
        raise ConfigError(
            "min_replicas is 0, which only mode='Knative' can do; expected 1 or more."
        )


def _check_scale(scale_on: str | None, mode: str) -> None:
    if scale_on is not None and scale_on not in _MODES[mode]:
        other = next((m for m, metrics in _MODES.items() if scale_on in metrics), None)
        hint = f" Pass mode={other!r}." if other else ""
        raise ConfigError(
            f"scale_on is {scale_on!r}; in the mode {mode} expected "
            f"{' or '.join(map(repr, _MODES[mode]))}.{hint}"
        )


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; expected a number of at least 1.")
    return value


def _logger(url: Any) -> dict[str, Any]:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigError(f"log_to is {url!r}; expected a URL that takes CloudEvents by HTTP.")
    return {"mode": "all", "url": url, "metadataAnnotations": [MODEL_ANNOTATION]}


def _resources(cpu: str, memory: str, gpus: Any) -> dict[str, Any]:
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0:
        raise ConfigError(f"gpus is {gpus!r}; expected a number of at least 0.")
    amounts = {"cpu": str(cpu), "memory": str(memory)}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def _annotations(mode: str, scale_on: str | None) -> dict[str, str]:
    annotations = {"serving.kserve.io/deploymentMode": mode}
    if mode == "Standard" and scale_on:
        annotations["serving.kserve.io/autoscalerClass"] = "hpa"
    return annotations


def _service_name(name: str) -> str:
    """Return a name that Kubernetes takes for a service.

    Example:
        >>> _service_name("Digits_v2.cnn")
        'digits-v2-cnn'
    """
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:53].strip("-")
    return text if text[:1].isalpha() else f"m-{text}".strip("-")
