"""The manifest of the executor ``kubernetes`` against the schemas of Kubernetes and of Kubeflow."""

from typing import Any

import pytest
import yaml

from autotune.cli.executors import executor_of

LINE = ("autotune", "search", "--name", "x", "--", "train.py")
OPTIONS = "--image=registry.example.org/train:1 --cpus=8 --gpus=1 --memory=32Gi"
VERSIONS = ("1.29", "1.33")


@pytest.fixture
def parts() -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(executor_of(f"kubernetes {OPTIONS}").submit(LINE, 4).manifest)]


def test_kubernetes_takes_every_part_of_the_manifest(parts: list[dict[str, Any]]) -> None:
    checker = pytest.importorskip("kubernetes_validate")
    for part in parts:
        for version in VERSIONS:
            checker.validate(part, version, strict=True)
    broken = {**parts[0], "spec": {**parts[0]["spec"], "completionsMode": "Indexed"}}
    with pytest.raises(checker.ValidationError):
        checker.validate(broken, VERSIONS[-1], strict=True)


def test_the_clients_of_kubeflow_read_the_job_and_the_service(parts: list[dict[str, Any]]) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job, service, _ = parts
    for model, part in (
        (models.IoK8sApiBatchV1Job, job),
        (models.IoK8sApiCoreV1Service, service),
    ):
        assert set(as_read := model.from_dict(part).to_dict()) == set(part)
        assert as_read == part


def test_no_password_stands_in_a_manifest(parts: list[dict[str, Any]]) -> None:
    """They are references to a secret, which the head of the manifest says how to make."""
    job, _, server = parts
    pods = (part["spec"]["template"]["spec"]["containers"][0] for part in (job, server))
    referred = [
        one["valueFrom"]["secretKeyRef"] for pod in pods for one in pod["env"] if "valueFrom" in one
    ]
    assert referred == [
        {"name": "autotune-storage", "key": "url"},
        {"name": "autotune-storage", "key": "password"},
    ]
