"""``kubernetes``: the line as an Indexed Job with a PostgreSQL server, printed as a manifest.

autotune never talks to a cluster: the manifest goes to stdout, for ``kubectl apply -f -``. Its
passwords are references to a secret that the user makes; the manifest holds none. The names of the
fields are those of Kubernetes' API, ``batch/v1`` and ``apps/v1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import yaml

from autotune.cli.executors.base import Executor, MemberState, OptionParser, Submission

SECRET = "autotune-storage"  # noqa: S105 - the name of a secret, not one
DATABASE = "autotune-postgres"
WORKER = "autotune-worker"
URL = f"postgresql://autotune:PASSWORD@{DATABASE}/autotune"
# A pod that is killed is started again, as one that is evicted; six times is Kubernetes' default
RETRIES = 6
HEAD = f"""\
# Written by autotune search --executor kubernetes. Make its secret first, from a file secret.env
# that only you can read, with these two lines:
#   url={URL}
#   password=PASSWORD
# kubectl create secret generic {SECRET} --from-env-file=secret.env
# Who has a PostgreSQL server leaves out all that is named {DATABASE}, and puts its url there.
"""


class Kubernetes(Executor):
    """Renders a manifest and starts nothing."""

    name: ClassVar[str] = "kubernetes"
    usage: ClassVar[str] = "'kubernetes --image=IMAGE --cpus=8 --gpus=1 --memory=32Gi'"

    def __init__(self, options: str) -> None:
        """Take the image of the training, and what each worker asks its node for."""
        parser = OptionParser(Kubernetes)
        parser.add_argument("--image", required=True)
        parser.add_argument("--cpus", type=int, required=True)
        parser.add_argument("--gpus", type=int, default=0)
        parser.add_argument("--memory")
        self._wanted = parser.parse_args(parser.words(options))

    def submit(self, line: Sequence[str], count: int) -> Submission:
        """Render the manifest; the workers take the storage's URL from the secret."""
        parts = (self._job(without_storage(line), count), *_postgres())
        body = yaml.safe_dump_all(parts, sort_keys=False, width=100, explicit_start=True)
        return Submission(manifest=HEAD + body)

    def poll(self) -> Mapping[str, MemberState]:
        """Return nothing: nobody is asked."""
        return {}

    def _job(self, line: Sequence[str], count: int) -> Mapping[str, Any]:
        pod = {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "worker",
                    "image": self._wanted.image,
                    "command": [*line],
                    "env": [_from_secret("AUTOTUNE_STORAGE", "url")],
                    "resources": {"requests": self._room(), "limits": self._room()},
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
                }
            ],
            # Loader workers hand over batches in it, and a container's own has 64 MiB
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
            # Two workers of one node would measure each other
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"app": WORKER}},
                        }
                    ]
                }
            },
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "autotune"},
            "spec": {
                "completionMode": "Indexed",
                "completions": count,
                "parallelism": count,
                "backoffLimit": RETRIES,
                "template": {"metadata": {"labels": {"app": WORKER}}, "spec": pod},
            },
        }

    def _room(self) -> dict[str, str]:
        room = {"cpu": str(self._wanted.cpus)}
        if self._wanted.memory:
            room["memory"] = self._wanted.memory
        if self._wanted.gpus:
            room["nvidia.com/gpu"] = str(self._wanted.gpus)
        return room


def without_storage(line: Sequence[str]) -> list[str]:
    """Return a member's line without ``--storage``, which AUTOTUNE_STORAGE stands for in a pod."""
    end = line.index("--") if "--" in line else len(line)
    words = list[str]()
    skip = False
    for number, word in enumerate(line):
        is_ours = number < end and not skip
        if not (skip or (is_ours and word.partition("=")[0] == "--storage")):
            words.append(word)
        skip = is_ours and word == "--storage"
    return words


def _from_secret(variable: str, key: str) -> Mapping[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}}


def _postgres() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a service, and the one server behind it, whose disk outlives its pod."""
    labels = {"app": DATABASE}
    server = {
        "name": "postgres",
        "image": "postgres:17",
        "env": [
            {"name": "POSTGRES_USER", "value": "autotune"},
            _from_secret("POSTGRES_PASSWORD", "password"),
            # A disk's own folder holds lost+found, where PostgreSQL makes no database
            {"name": "PGDATA", "value": "/var/lib/postgresql/data/pgdata"},
        ],
        "ports": [{"containerPort": 5432}],
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/postgresql/data"}],
    }
    disk = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "5Gi"}},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": DATABASE},
        "spec": {"selector": labels, "ports": [{"port": 5432, "protocol": "TCP"}]},
    }
    stateful = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": DATABASE},
        "spec": {
            "serviceName": DATABASE,
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [server]}},
            "volumeClaimTemplates": [disk],
        },
    }
    return service, stateful
