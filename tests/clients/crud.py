"""The Python client as its users use it: typed calls, a watch, errors, and its own leader election.

Usage: crud.py KUBECONFIG. Exits with 0 if everything is as on a real cluster.
"""

import os
import sys
import threading

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock

NAMESPACE = "python"


def main(kubeconfig):
    config.load_kube_config(kubeconfig)
    core, coordination = client.CoreV1Api(), client.CoordinationV1Api()
    assert client.VersionApi().get_code().git_version.startswith("v1.")
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    crud(core)
    leases(coordination)
    watching(core)
    errors(core)
    election(core)
    core.delete_namespace(NAMESPACE)


def crud(core):
    body = client.V1ConfigMap(
        metadata=client.V1ObjectMeta(name="a", labels={"app": "x"}), data={"k": "1"}
    )
    made = core.create_namespaced_config_map(NAMESPACE, body)
    assert made.metadata.uid and made.metadata.creation_timestamp
    made.data["k"] = "2"
    replaced = core.replace_namespaced_config_map("a", NAMESPACE, made)
    assert replaced.metadata.resource_version != made.metadata.resource_version
    patched = core.patch_namespaced_config_map("a", NAMESPACE, {"data": {"l": "3"}})
    assert patched.data == {"k": "2", "l": "3"}
    assert [m.metadata.name for m in core.list_namespaced_config_map(
        NAMESPACE, label_selector="app=x").items] == ["a"]
    assert core.list_namespaced_config_map(NAMESPACE, label_selector="app=y").items == []
    assert any(m.metadata.namespace == NAMESPACE for m in core.list_config_map_for_all_namespaces().items)
    core.delete_namespaced_config_map("a", NAMESPACE)


def leases(coordination):
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
            "renewTime": "2026-01-02T03:04:05.678900Z"}}
    coordination.create_namespaced_lease(NAMESPACE, body)
    lease = coordination.read_namespaced_lease("l", NAMESPACE)
    assert lease.spec.renew_time.microsecond == 678900
    coordination.delete_namespaced_lease("l", NAMESPACE)


def watching(core):
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "w"}})
    core.patch_namespaced_config_map("w", NAMESPACE, {"data": {"x": "y"}})
    core.delete_namespaced_config_map("w", NAMESPACE)
    seen, stream = [], watch.Watch()
    for event in stream.stream(core.list_namespaced_config_map, NAMESPACE,
                               resource_version=version, timeout_seconds=20):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 3:
            stream.stop()
    assert seen == [("ADDED", "w"), ("MODIFIED", "w"), ("DELETED", "w")], seen


def errors(core):
    for code, reason, call in [
        (404, "NotFound", lambda: core.read_namespaced_config_map("none", NAMESPACE)),
        (422, "Invalid", lambda: core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "A_"}})),
        (404, "NotFound", lambda: core.create_namespaced_config_map("nowhere", {"metadata": {"name": "a"}})),
    ]:
        try:
            call()
            raise AssertionError(f"{reason} expected")
        except ApiException as error:
            assert error.status == code and reason in error.body, (error.status, error.body)


def election(core):
    """The elector of the Python client must be able to win an election."""
    leading = threading.Event()
    lock = ConfigMapLock("election", NAMESPACE, "python")
    elector = leaderelection.LeaderElection(electionconfig.Config(
        lock, lease_duration=4, renew_deadline=3, retry_period=1,
        onstarted_leading=leading.set, onstopped_leading=lambda: None))
    threading.Thread(target=elector.run, daemon=True).start()
    assert leading.wait(20), "the Python elector never led"
    record = core.read_namespaced_config_map("election", NAMESPACE).metadata.annotations
    assert '"python"' in record["control-plane.alpha.kubernetes.io/leader"]


main(sys.argv[1])
# The elector has no way to stop, and a thread that prints while the interpreter exits would abort it.
sys.stdout.flush()
os._exit(0)
