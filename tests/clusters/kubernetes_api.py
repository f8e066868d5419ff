"""A small API server of Kubernetes: objects, watches, server-side apply, and access rights (RBAC).

It has the part of the API that Spark uses: https://kubernetes.io/docs/reference/using-api/. Pods
are only kept here; `tests.clusters.kubernetes` starts them as processes.
"""

import contextlib
import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

__all__ = ["ADMIN", "Access", "Api", "Request", "served"]

ADMIN = "admin"
KINDS = {
    "pods": ("", "v1", "Pod"),
    "services": ("", "v1", "Service"),
    "configmaps": ("", "v1", "ConfigMap"),
    "persistentvolumeclaims": ("", "v1", "PersistentVolumeClaim"),
    "networkpolicies": ("networking.k8s.io", "v1", "NetworkPolicy"),
}
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/\w+)/namespaces/(?P<namespace>[^/]+)/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)
Object = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A request that a client has made."""

    user: str
    verb: str
    resource: str
    name: str | None
    body: Any = field(default=None, repr=False)


class Access:
    """The rules of Role and RoleBinding objects, and the tokens of service accounts."""

    def __init__(self) -> None:
        self._roles: dict[tuple[str, str], list[Object]] = {}
        self._bindings: list[Object] = []
        self.accounts: set[tuple[str, str]] = set()

    def add(self, manifests: str) -> None:
        """Take the objects of a file in YAML."""
        for item in yaml.safe_load_all(manifests):
            meta = item["metadata"]
            if item["kind"] == "ServiceAccount":
                self.accounts.add((meta["namespace"], meta["name"]))
            elif item["kind"] == "Role":
                self._roles[meta["namespace"], meta["name"]] = item["rules"]
            elif item["kind"] == "RoleBinding":
                self._bindings.append(item)

    def allows(self, user: str, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Return True if a rule grants this verb on this resource."""
        if user == ADMIN:
            return True
        for binding in self._bindings:
            names = [f"{item['namespace']}:{item['name']}" for item in binding["subjects"]]
            where = binding["metadata"]["namespace"]
            if user in names and where == namespace:
                for rule in self._roles[where, binding["roleRef"]["name"]]:
                    wanted = ((group, "apiGroups"), (resource, "resources"), (verb, "verbs"))
                    if all({value, "*"} & set(rule[key]) for value, key in wanted):
                        return True
        return False


class Refused(Exception):
    """An answer with the status of an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class Api:
    """The objects of a cluster, and the requests of its clients.

    Attributes:
        access: the rules by which requests are allowed.
        requests: all requests so far; those that were refused, too.
        on_pod: called with each new pod.
        on_delete: called with the name of a pod that a client deletes, and the seconds that it is
            given; returns False if the pod still runs. `remove` is then called at its end.
    """

    def __init__(self) -> None:
        self.access = Access()
        self.requests: list[Request] = []
        self.on_pod: Callable[[Object], None] = lambda pod: None
        self.on_delete: Callable[[str, float], bool] = lambda name, seconds: True
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._events: list[tuple[int, str, str, Object]] = []
        self._changed = threading.Condition(threading.RLock())
        self._version = 0
        self._closed = False

    def close(self) -> None:
        """End all watches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return a copy of an object."""
        with self._changed:
            return copy.deepcopy(self._objects.get((resource, namespace, name)))

    def select(
        self, resource: str, namespace: str, query: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return copies of the objects that the selectors of a request choose."""
        with self._changed:
            found = [
                item
                for (kind, where, _), item in self._objects.items()
                if kind == resource and where == namespace and _is_chosen(item, query or {})
            ]
            return copy.deepcopy(found)

    def wait_for(self, condition: Callable[[], Any], seconds: float) -> Any:
        """Wait for a condition on the objects; return its last value."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def create(self, resource: str, namespace: str, item: Object) -> Object:
        """Add an object."""
        with self._changed:
            meta = item.setdefault("metadata", {})
            if (key := (resource, namespace, meta["name"])) in self._objects:
                message = f'{resource} "{meta["name"]}" already exists'
                raise Refused(409, "AlreadyExists", message)
            group, version, kind = KINDS[resource]
            item.setdefault("kind", kind)
            item.setdefault("apiVersion", f"{group}/{version}" if group else version)
            meta.update(namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=_now())
            if resource == "pods":
                item["status"] = {"phase": "Pending"}
            self._store("ADDED", key, item)
            created = copy.deepcopy(item)
        if resource == "pods":
            self.on_pod(created)
        return created

    def update(
        self, resource: str, namespace: str, name: str, change: Callable[[Object], None]
    ) -> Object:
        """Change an object."""
        with self._changed:
            if (key := (resource, namespace, name)) not in self._objects:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found')
            item = copy.deepcopy(self._objects[key])
            change(item)
            self._store("MODIFIED", key, item)
            return item

    def delete(self, resource: str, namespace: str, name: str, seconds: float | None) -> Object:
        """Delete an object, after its end if it is a pod."""
        with self._changed:
            item = self.get(resource, namespace, name)
            if item is None:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found')
            if resource == "pods":
                default = item["spec"].get("terminationGracePeriodSeconds", 30)
                seconds = default if seconds is None else seconds
                ends = {"deletionTimestamp": _now()}
                self.update(resource, namespace, name, lambda pod: pod["metadata"].update(ends))
        if resource != "pods" or self.on_delete(name, seconds or 0):
            self.remove(resource, namespace, name)
        return item

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Remove an object, then what it owns."""
        with self._changed:
            item = self._objects.pop((resource, namespace, name), None)
            if item is None:
                return
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            self._events.append((self._version, "DELETED", resource, item))
            self._changed.notify_all()
            owned = [
                key
                for key, other in self._objects.items()
                for owner in other["metadata"].get("ownerReferences", ())
                if owner["uid"] == item["metadata"]["uid"]
            ]
        for key in owned:
            self.delete(*key, seconds=None)

    def apply(self, resource: str, namespace: str, name: str, kind: str, body: Any) -> Object:
        """Patch an object; server-side apply makes an object that does not exist."""
        if kind.startswith("application/apply-patch") and not self.get(resource, namespace, name):
            return self.create(resource, namespace, body)
        patch = _patch_list if kind.startswith("application/json-patch") else _merge
        return self.update(resource, namespace, name, lambda item: patch(item, body))

    def watch(
        self, resource: str, namespace: str, query: Mapping[str, str], version: int, seconds: float
    ) -> Iterator[Object]:
        """Yield the events after a version; without a version, all objects first."""
        deadline = time.monotonic() + seconds
        if not version:
            with self._changed:
                items, version = self.select(resource, namespace, query), self._version
            yield from ({"type": "ADDED", "object": item} for item in items)
        while not self._closed and time.monotonic() < deadline:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._version > version,
                    max(0.0, deadline - time.monotonic()),
                )
                news = [event for event in self._events if event[0] > version]
                version = self._version
            for _, kind, what, item in news:
                place = what, item["metadata"]["namespace"]
                if place == (resource, namespace) and _is_chosen(item, query):
                    yield {"type": kind, "object": item}

    def snapshot(self, resource: str, namespace: str, query: Mapping[str, str]) -> Object:
        """Return the answer to a request for a list."""
        with self._changed:
            group, version, kind = KINDS[resource]
            return {
                "kind": f"{kind}List",
                "apiVersion": f"{group}/{version}" if group else version,
                "metadata": {"resourceVersion": str(self._version)},
                "items": self.select(resource, namespace, query),
            }

    def _store(self, event: str, key: tuple[str, str, str], item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._objects[key] = item
        self._events.append((self._version, event, key[0], copy.deepcopy(item)))
        self._changed.notify_all()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _is_chosen(item: Object, select: Mapping[str, str]) -> bool:
    """Return True if the label and field selectors of a request choose an object."""
    labels = item["metadata"].get("labels", {})
    for term in re.split(r",(?![^(]*\))", select.get("labelSelector", "")):
        if many := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term):
            is_in = labels.get(many[1]) in [value.strip() for value in many[3].split(",")]
            if is_in != (many[2] == "in"):
                return False
        elif one := re.fullmatch(r"([^!=]+)(!?=)=?(.*)", term):
            if (labels.get(one[1]) == one[3]) != (one[2] == "="):
                return False
        elif term and (term.lstrip("!") in labels) == term.startswith("!"):
            return False
    for term in filter(None, select.get("fieldSelector", "").split(",")):
        name, _, value = term.partition("=")
        found: Any = item
        for part in name.rstrip("!").split("."):
            found = found.get(part, "")
        if (found == value.lstrip("=")) == name.endswith("!"):
            return False
    return True


def _merge(item: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict) and isinstance(item.get(key), dict):
            _merge(item[key], value)
        else:
            item[key] = value


def _patch_list(item: Object, patch: list[Object]) -> None:
    """Apply a patch of RFC 6902 to members of objects."""
    for step in patch:
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
        ]
        target = item
        for part in path:
            target = target.setdefault(part, {})
        if step["op"] == "remove":
            target.pop(last, None)
        elif step["op"] in ("add", "replace"):
            target[last] = step["value"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = yaml.safe_load(self.rfile.read(length)) if length else None
        try:
            status, answer = self._handle(body)
        except Refused as exc:
            status, answer = exc.status["code"], exc.status
        if answer is not None:
            self._send(status, json.dumps(answer).encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _handle(self, body: Any) -> tuple[int, Any]:
        api, url = self.server.api, urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match = _PATH.fullmatch(url.path)
        if not match or match["resource"] not in KINDS:
            raise Refused(404, "NotFound", f"no resource at {url.path}")
        place = match["resource"], match["namespace"]
        verb = self._verb(match["name"], query)
        user = self._user()
        api.requests.append(Request(user, verb, place[0], match["name"], copy.deepcopy(body)))
        if not api.access.allows(user, verb, match["group"] or "", *place):
            message = f'{place[0]} is forbidden: User "system:serviceaccount:{user}" cannot {verb} '
            message += f'resource "{place[0]}" in the namespace "{place[1]}"'
            raise Refused(403, "Forbidden", message)
        if verb == "watch":
            self._watch(*place, query)
            return 200, None
        return self._call(verb, place, match["name"], query, body)

    def _call(
        self, verb: str, place: tuple[str, str], name: Any, query: Mapping[str, str], body: Any
    ) -> tuple[int, Any]:
        api = self.server.api
        if verb == "create":
            return 201, api.create(*place, body)
        if verb == "list":
            return 200, api.snapshot(*place, query)
        if verb == "patch":
            return 200, api.apply(*place, name, self.headers["Content-Type"], body)
        if verb == "update":
            return 200, api.update(*place, name, lambda item: item.update(body))
        if verb.startswith("delete"):
            seconds = (body or {}).get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
            names = [name] if name else [i["metadata"]["name"] for i in api.select(*place, query)]
            for each in names:
                api.delete(*place, each, seconds if seconds is None else float(seconds))
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if (found := api.get(*place, name)) is None:
            raise Refused(404, "NotFound", f'{place[0]} "{name}" not found')
        return 200, found

    def _verb(self, name: str | None, query: Mapping[str, str]) -> str:
        if self.command == "GET":
            if query.get("watch") == "true":
                return "watch"
            return "get" if name else "list"
        if self.command == "DELETE":
            return "delete" if name else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}[self.command]

    def _user(self) -> str:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        user = token.removeprefix("token-of-")
        known = [f"{namespace}:{name}" for namespace, name in self.server.api.access.accounts]
        if user != ADMIN and user not in known:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def _watch(self, resource: str, namespace: str, query: Mapping[str, str]) -> None:
        if self.headers.get("Upgrade"):
            # No WebSocket here: with this status, fabric8's client asks again for a stream.
            self._send(200, b"{}")
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        version = int(query.get("resourceVersion") or 0)
        seconds = float(query.get("timeoutSeconds") or 3600)
        try:
            for event in self.server.api.watch(resource, namespace, query, version, seconds):
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()
        except OSError:
            pass  # The client has gone.

    def _send(self, status: int, answer: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, api: Api, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.api = api


@contextlib.contextmanager
def served(api: Api, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve an API at an address until the end of the block; yield the URL."""
    server = _Server(api, address)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}"
    finally:
        api.close()
        server.shutdown()
        server.server_close()
        thread.join(10)
