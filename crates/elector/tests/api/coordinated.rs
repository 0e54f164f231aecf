//! Coordinated election; the test acts as the controller.

use serde_json::{Value, json};
use tenure::{Coordinated, Elector, StopReason};
use tenure_apiserver::TestServer;

use crate::server::{LEASES, client, get, lead, lease, send, until, within};

const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/default/leasecandidates";

#[tokio::test]
async fn a_candidate_announces_itself_answers_pings_leads_when_assigned_and_steps_down() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let versions = Coordinated::oldest_emulation_version("1.37.0", "1.36.0");
    let elector = Elector::lease(client.clone(), "default", "x")
        .identity("me")
        .coordinated(versions)
        .build()
        .unwrap();
    let mut candidate = elector.start();

    // Case 37: created with versions, lease name and a time.
    let path = format!("{CANDIDATES}/me");
    until(async || get(&client, &path).await.is_some()).await;
    let spec = get(&client, &path).await.unwrap()["spec"].clone();
    assert_eq!(spec["leaseName"], "x");
    assert_eq!(spec["binaryVersion"], "1.37.0");
    assert_eq!(spec["emulationVersion"], "1.36.0");
    assert_eq!(spec["strategy"], "OldestEmulationVersion");
    let renewed = spec["renewTime"].as_str().unwrap().to_owned();

    // Case 38: after a ping, the candidate moves its renew time past the ping time.
    let ping = "2100-01-01T00:00:00.000000Z";
    send(
        &client,
        "PATCH",
        &path,
        &json!({ "spec": { "pingTime": ping } }),
    )
    .await;
    until(async || {
        let object = get(&client, &path).await.unwrap();
        object["spec"]["renewTime"].as_str().unwrap() > ping
    })
    .await;
    assert!(renewed.as_str() < ping);
    assert_eq!(
        lease(&client, "x").await,
        None,
        "candidates never create it"
    );

    // The controller assigns the Lease.
    let assigned: Value = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "x" },
        "spec": {
            "holderIdentity": "me", "leaseDurationSeconds": 5,
            "renewTime": "2026-01-01T00:00:00.000000Z", "strategy": "OldestEmulationVersion",
        },
    });
    send(&client, "POST", LEASES, &assigned).await;
    let term = lead(&mut candidate).await;
    let object = lease(&client, "x").await.unwrap();
    assert_eq!(object["spec"]["strategy"], "OldestEmulationVersion", "kept");
    assert_eq!(object["spec"]["leaseDurationSeconds"], 15);

    // The controller prefers another candidate.
    let better = json!({ "spec": { "preferredHolder": "better" } });
    send(&client, "PATCH", &format!("{LEASES}/x"), &better).await;
    within(term.tenure().cancelled()).await;
    assert_eq!(
        term.tenure().reason(),
        Some(StopReason::PreferredHolder("better".into()))
    );
}

#[tokio::test]
async fn versions_that_the_server_would_refuse_are_found_at_build() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let versions = Coordinated::oldest_emulation_version("v1", "1.36.0");
    let error = Elector::lease(client, "default", "x")
        .coordinated(versions)
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("binary version"), "{error}");
}
