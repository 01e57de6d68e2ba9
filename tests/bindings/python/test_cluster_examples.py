# SPDX-License-Identifier: Apache-2.0
"""examples/cluster: the manifests are what Kubernetes' schemas say, and their names fit together."""
import pathlib
import subprocess

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "examples" / "cluster"
MANIFESTS = {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())}
PROVIDERS = MANIFESTS["StatefulSet"]["spec"]


def container(kind):
    return MANIFESTS[kind]["spec"]["template"]["spec"]["containers"][0]


def test_kubernetes_takes_the_manifests():
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate (120 MB) is not installed")
    for manifest in MANIFESTS.values():
        validator.validate(manifest, "1.30", strict=True)


def test_workers_name_the_pods_of_the_providers():
    name, service = MANIFESTS["StatefulSet"]["metadata"]["name"], MANIFESTS["Service"]["metadata"]["name"]
    port = MANIFESTS["Service"]["spec"]["ports"][0]["port"]
    command = container("Job")["command"]
    pods = ",".join(f"tcp://{name}-{i}.{service}:{port}" for i in range(PROVIDERS["replicas"]))
    assert command[command.index("--repo") + 1] == pods
    assert PROVIDERS["serviceName"] == service
    reached_at = container("StatefulSet")["command"]
    assert reached_at[reached_at.index("--reached-at") + 1] == f"tcp://$(POD).{service}:{port}"
    labels = PROVIDERS["template"]["metadata"]["labels"]
    for selector in (MANIFESTS["Service"]["spec"]["selector"], PROVIDERS["selector"]["matchLabels"],
                     MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]):
        assert selector == labels


def test_only_providers_have_credentials():
    assert "freshet-bucket" in str(container("StatefulSet")) and "freshet-bucket" not in str(MANIFESTS["Job"])


def test_bash_takes_the_script():
    subprocess.run(["bash", "-n", FOLDER / "search.sbatch"], check=True)
