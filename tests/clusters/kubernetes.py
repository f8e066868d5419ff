"""Pods as processes: what nodes of Kubernetes do, for the API server of `kubernetes_api`.

Each pod is a host of its own (`tests.clusters.hosts`): a network, an address, a process table. Its
files are the system's, the repository and the Python environment, which stand for the image;
everything else is empty, or a volume. The entry point is that of conf/kubernetes/.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.clusters.hosts import Host, Network, network
from tests.clusters.kubernetes_api import Api, Object, Refused, served
from tests.clusters.kubernetes_settings import CONF, PATIENCE, settings
from tests.clusters.standalone import Driver, DriverError
from tests.helpers.processes import eventually
from tests.helpers.spark import DEFAULTS
from tests.helpers.standalone import SPARK

__all__ = ["NAMESPACE", "Kubernetes", "Pod", "kubernetes"]

REPOSITORY = Path(__file__).parents[2]
NAMESPACE = "spark"
TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"
USER = 185

# Arguments: the folder of the root, the file of users, then the files of the image.
IMAGE = """
set -e
root=$1 users=$2
shift 2
mount -t tmpfs -o mode=755 tmpfs "$root"
for path in "$@"; do
    if [ -L "$path" ]; then
        cp -P "$path" "$root$path"
    elif [ -d "$path" ]; then
        mkdir -p "$root$path"
        mount --rbind "$path" "$root$path"
    fi
done
mount --bind "$users" "$root/etc/passwd"
mkdir -m 1777 "$root/tmp"
"""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys")


@dataclass
class Pod:
    """A pod that runs, or has run.

    Attributes:
        host: the host that stands for the pod.
        log: the file of its output.
        exit_code: the exit code of its container; None until its end.
    """

    name: str
    host: Host
    process: "subprocess.Popen[bytes] | None" = None
    is_cut: bool = False
    exit_code: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def log(self) -> Path:
        return self.host.folder / "log"

    @property
    def root(self) -> Path:
        return self.host.folder / "root"

    def send(self, number: int) -> None:
        """Send a signal to the first process of the container."""
        if self.process and not self.ended.is_set():
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            with contextlib.suppress(OSError):
                for pid in str(eventually(children.read_text, 5)).split():
                    os.kill(int(pid), number)


class Kubernetes:
    """A cluster.

    Args:
        net: the network of the pods; its first host is where clients run.
        api: the objects.
        url: the URL of the API server.

    Attributes:
        pods: all pods so far, by name.
        secrets: the values of Secret objects, by name.
    """

    def __init__(self, net: Network, api: Api, url: str) -> None:
        self.net, self.api, self.url = net, api, url
        self.pods: dict[str, Pod] = {}
        self.secrets = {"s3": {"id": "testing", "key": "testing"}}
        self._drivers: list[Driver] = []
        self._threads: list[threading.Thread] = []
        self._naming = threading.Lock()
        self._users = net.folder / "users"
        self._users.write_text(f"root:x:0:0::/root:/bin/sh\nspark:x:{USER}:{USER}::/tmp:/bin/sh\n")
        self._client = Pod("client", net.hosts[0])
        self._make_root(self._client, [(str(self.volume), "/shared")])
        api.access.add((CONF / "kubernetes/rbac.yaml").read_text())
        api.on_pod, api.on_delete = self._start, self._end

    def claim(self, name: str, group: int) -> Path:
        """Return the folder of a volume, which is given to a group."""
        folder = self.net.folder / f"claim-{name}"
        folder.mkdir(exist_ok=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2775)
        return folder

    @property
    def volume(self) -> Path:
        """The folder of the volume `runs`, which clients see as /shared."""
        return self.claim("runs", USER)

    def drivers(self) -> list[Pod]:
        """Return the drivers in pods, the oldest first."""
        return self._select("spark-role=driver")

    def executors(self, application: str) -> list[Pod]:
        """Return the executors of an application."""
        return self._select(f"spark-role=executor,spark-app-selector={application}")

    def application(self, driver: Pod) -> str:
        """Return the id of the application of a driver in a pod."""
        found = self.api.get("pods", NAMESPACE, driver.name)
        assert found
        return str(found["metadata"]["labels"]["spark-app-selector"])

    def _select(self, labels: str) -> list[Pod]:
        found = self.api.select("pods", NAMESPACE, {"labelSelector": labels})
        names = (item["metadata"]["name"] for item in found)
        return [self.pods[name] for name in names if name in self.pods]

    def delete(self, pod: Pod) -> None:
        """Delete a pod as `kubectl delete pod` does."""
        self.api.delete("pods", NAMESPACE, pod.name, None)

    def cut(self, pod: Pod) -> None:
        """Cut off the node of a pod: nothing on it can be reached, or ended."""
        pod.is_cut = True
        self.net.cut(pod.host)

    def mend(self, pod: Pod) -> None:
        """Connect a node that was cut off; what was deleted meanwhile is ended."""
        self.net.mend(pod.host)
        pod.is_cut = False
        if self.is_deleted(pod):
            self._end(pod.name, 1)

    def is_deleted(self, pod: Pod) -> bool:
        """Return True if a pod is to end, or has ended and is gone."""
        found = self.api.get("pods", NAMESPACE, pod.name)
        return found is None or "deletionTimestamp" in found["metadata"]

    def start_driver(self, account: str = "spark", **conf: str) -> Driver:
        """Start a driver in client mode; a double underscore in a name stands for a dot."""
        settings = {
            **DEFAULTS,
            **PATIENCE,
            "spark.master": f"k8s://{self.url}",
            "spark.kubernetes.namespace": NAMESPACE,
            "spark.kubernetes.container.image": "image-of-the-tests",
            "spark.kubernetes.authenticate.oauthToken": f"token-of-{NAMESPACE}:{account}",
            "spark.kubernetes.executor.podTemplateFile": str(CONF / "kubernetes/executor-pod.yaml"),
            "spark.kubernetes.allocation.batch.delay": "1s",
            "spark.driver.host": self.net.hosts[0].address,
            "spark.executor.memory": "1g",
            **{name.replace("__", "."): value for name, value in conf.items()},
        }
        log = self.net.folder / f"driver-{len(self._drivers)}.log"
        command = [sys.executable, "-m", "tests.clusters.driver", json.dumps(settings)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.client_command(*command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        try:
            self._drivers.append(driver := Driver(process, log))
        except (AssertionError, DriverError) as exc:
            process.kill()
            process.communicate()
            raise DriverError(log.read_text()) from exc
        return driver

    def submit(
        self, program: str, *arguments: str, account: str = "spark-submit", **conf: str
    ) -> "subprocess.CompletedProcess[str]":
        """Submit a program in cluster mode, with the template of conf/ and the volume `runs`."""
        changes = {
            **{name.replace(".", "__"): value for name, value in DEFAULTS.items()},
            "spark__kubernetes__authenticate__submission__oauthToken": (
                f"token-of-{NAMESPACE}:{account}"
            ),
            "spark__kubernetes__driver__master": self.url,
            "spark__kubernetes__allocation__batch__delay": "1s",
            "spark__pyspark__python": sys.executable,
            "spark__executor__instances": "2",
            "spark__executor__cores": "1",
            **conf,
        }
        optional = r"spark\.kubernetes\.(driver|executor)\.(volumes|secretKeyRef)\.\S+"
        folder = self.volume / f"conf-{secrets.token_hex(4)}"
        folder.mkdir()
        defaults = settings(self.url, optional, **changes).replace("/shared/runs", "/shared")
        (folder / "spark-defaults.conf").write_text(defaults)
        command = self.client_command(
            str(SPARK / "bin/spark-submit"),
            f"local://{program}",
            *arguments,
            SPARK_CONF_DIR=f"/shared/{folder.name}",
        )
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    def client_command(self, *command: str, **env: str) -> list[str]:
        """Return a command that runs another one on the host of clients."""
        env = {**self._image_variables(self._client.host.address), **env}
        return self._inside(self._client, USER, USER, env, list(command))

    def close(self) -> None:
        """End drivers and pods; assert that no process is left."""
        for driver in self._drivers:
            driver.end()
        for item in self.api.select("pods", NAMESPACE):
            name = item["metadata"]["name"]
            if name in self.pods:
                self.pods[name].is_cut = False
            with contextlib.suppress(Refused):
                self.api.delete("pods", NAMESPACE, name, 0)
        for thread in self._threads:
            thread.join(60)
        assert self.api.select("pods", NAMESPACE) == []
        assert eventually(lambda: not self.net.hosts[0].processes(), 30)

    def _start(self, pod: Object) -> None:
        thread = threading.Thread(target=self._run, args=(pod,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, pod: Object) -> None:
        """Run a pod from its creation to its end."""
        name, spec = pod["metadata"]["name"], pod["spec"]
        (container,) = spec["containers"]
        user = spec["securityContext"]["runAsUser"]
        group = spec["securityContext"]["fsGroup"]
        self.pods[name] = entry = Pod(name, self.net.add(name))
        address = entry.host.address
        self._make_root(entry, self._mounts(entry, spec, container, group))
        if spec.get("automountServiceAccountToken", True):
            account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
            token = f"mkdir -p {TOKENS}; printf token-of-{NAMESPACE}:{account} > {TOKENS}/token"
            self._call(entry, "chroot", str(entry.root), "sh", "-c", token)
        fields = {
            "status.podIP": address,
            "metadata.name": name,
            "metadata.namespace": NAMESPACE,
        }
        env = {**self._image_variables(address), **self._variables(container, fields)}
        start = container.get("command") or [str(CONF / "kubernetes/entrypoint.sh")]
        command = self._inside(entry, user, group, env, [*start, *container.get("args", ())])
        self._name_services()
        with entry.log.open("wb") as output:
            entry.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        with contextlib.suppress(Refused):
            self._say(entry, "Running", {"running": {}}, address)
        if self.is_deleted(entry):  # Before it was started.
            entry.send(signal.SIGKILL)
        self._name_services()
        code = entry.process.wait()
        code = entry.exit_code = code if code >= 0 else 128 - code
        self.net.discard(entry.host)
        entry.ended.set()
        phase = "Succeeded" if code == 0 else "Failed"
        with contextlib.suppress(Refused):  # It may have been deleted.
            self._say(entry, phase, {"terminated": {"exitCode": code}}, address)
        if self.is_deleted(entry):
            self.api.remove("pods", NAMESPACE, name)

    def _end(self, name: str, seconds: float) -> bool:
        """End a pod with SIGTERM, then SIGKILL; return True if it has ended already."""
        entry = self.pods.get(name)
        if entry is None or entry.ended.is_set():
            return True
        if not entry.is_cut:
            entry.send(signal.SIGTERM if seconds else signal.SIGKILL)
            timer = threading.Timer(seconds, entry.send, [signal.SIGKILL])
            timer.daemon = True
            timer.start()
        return False

    def _say(self, pod: Pod, phase: str, state: Object, address: str) -> None:
        status = {
            "phase": phase,
            "podIP": address,
            "conditions": [{"type": "Ready", "status": str(phase == "Running")}],
            "containerStatuses": [
                {
                    "name": "spark",
                    "image": "",
                    "imageID": "",
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        self.api.update("pods", NAMESPACE, pod.name, lambda item: item.update(status=status))

    def _variables(self, container: Object, fields: Mapping[str, str]) -> dict[str, str]:
        found = {}
        for item in container.get("env", ()):
            source = item.get("valueFrom", {})
            if "fieldRef" in source:
                found[item["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                key = source["secretKeyRef"]
                found[item["name"]] = self.secrets[key["name"]][key["key"]]
            else:
                found[item["name"]] = item.get("value", "")
        return found

    def _mounts(
        self, pod: Pod, spec: Object, container: Object, group: int
    ) -> list[tuple[str, str]]:
        """Return the volumes of a pod: a folder, or nothing for memory, and the path."""
        volumes = {item["name"]: item for item in spec.get("volumes", ())}
        found = []
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            source = ""
            if "configMap" in volume:
                source = self._files(pod, volume["configMap"])
            elif "persistentVolumeClaim" in volume:
                source = str(self.claim(volume["persistentVolumeClaim"]["claimName"], group))
            found.append((source, mount["mountPath"]))
        return sorted(found, key=lambda item: item[1])

    def _files(self, pod: Pod, volume: Object) -> str:
        """Write the files of a ConfigMap, which may be made after the pod."""
        folder = pod.host.folder / volume["name"]
        folder.mkdir()
        self.api.wait_for(lambda: self.api.get("configmaps", NAMESPACE, volume["name"]), 60)
        found = self.api.get("configmaps", NAMESPACE, volume["name"])
        assert found, f"there is no ConfigMap {volume['name']}"
        paths = {item["key"]: item["path"] for item in volume.get("items", ())}
        for key, text in found.get("data", {}).items():
            (folder / paths.get(key, key)).write_text(text)
        return str(folder)

    def _make_root(self, pod: Pod, mounts: list[tuple[str, str]]) -> None:
        """Make the file system of a pod, in its own view of the disk."""
        pod.root.mkdir()
        own = {REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)}
        own |= {Path(os.environ["JAVA_HOME"])} if os.environ.get("JAVA_HOME") else set()
        others = [path for path in sorted(own) if not set(path.parents) & {*own, Path("/usr")}]
        paths = [*SYSTEM, *map(str, others)]
        self._call(pod, "bash", "-c", IMAGE, "image", str(pod.root), str(self._users), *paths)
        for source, path in mounts:
            target = f"{pod.root}{path}"
            kind = ["--bind", source] if source else ["-t", "tmpfs", "-o", "mode=1777", "tmpfs"]
            self._call(pod, "mkdir", "-p", target)
            self._call(pod, "mount", *kind, target)

    def _call(self, pod: Pod, *command: str) -> None:
        done = subprocess.run(pod.host.command(*command), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def _inside(
        self, pod: Pod, user: int, group: int, env: Mapping[str, str], command: list[str]
    ) -> list[str]:
        """Return a command that runs another one in a pod."""
        enter = ["chroot", f"--userspec={user}:{group}", f"--groups={group}", str(pod.root)]
        variables = [f"{name}={value}" for name, value in env.items()]
        return pod.host.command(*enter, "/usr/bin/env", "-i", *variables, *command)

    def _image_variables(self, address: str) -> dict[str, str]:
        """Return the variables of the image."""
        kept = ("PATH", "LANG", "JAVA_HOME", "SPARK_SUBMIT_OPTS")
        folders = [str(REPOSITORY), str(REPOSITORY / "examples"), os.environ.get("PYTHONPATH", "")]
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "HOME": "/tmp",
            "PYTHONPATH": os.pathsep.join(folders),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": address,
        }

    def _name_services(self) -> None:
        """Let all pods know the names of services, as the name server of a cluster does."""
        with self._naming:  # The newest list is written last.
            lines = "".join(self._service_names())
            for pod in list(self.pods.values()):  # Other threads add pods.
                own = f"127.0.0.1 localhost\n{pod.host.address} {pod.host.name}\n"
                # The file is mounted: it must stay the same file.
                (pod.host.folder / "hosts").write_text(own + lines)

    def _service_names(self) -> Iterator[str]:
        for service in self.api.select("services", NAMESPACE):
            wanted = service["spec"]["selector"]
            terms = {"labelSelector": ",".join(f"{k}={v}" for k, v in wanted.items())}
            for item in self.api.select("pods", NAMESPACE, terms):
                if pod := self.pods.get(item["metadata"]["name"]):
                    name = service["metadata"]["name"]
                    full = f"{name}.{NAMESPACE}.svc"
                    yield f"{pod.host.address} {full} {full}.cluster.local {name}\n"


@contextlib.contextmanager
def kubernetes(folder: Path) -> Iterator[Kubernetes]:
    """Yield a cluster with a host for clients; no process of it is left afterwards."""
    api = Api()
    with network(folder, 1) as net, served(api, net.address) as url:
        cluster = Kubernetes(net, api, url)
        try:
            yield cluster
        finally:
            cluster.close()
